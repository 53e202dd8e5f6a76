"""FedPer (Arivazhagan et al., 2019, Algorithms 1-2): each site has a head of its own.

Body (base layers) and head (personalisation layers) are trained together on every batch; only the
body is averaged. With head = none it is FedAvg.
"""

from konsil.ingredients.method import Method, method
from konsil.ingredients.partition import AveragedBody, HeadSettings
from konsil.ingredients.piece import Piece


@method("fedper", paper="Arivazhagan et al., arXiv 1912.00818, Algorithms 1-2")
class FedPer(Method):
    """FedAvg of the body, under a head that stays at the site."""

    Settings = HeadSettings

    def pieces(self) -> list[Piece]:
        return [AveragedBody(self.settings.head)]
