"""SiloBN (Andreux et al., DCL at MICCAI 2020): running statistics stay at the site.

Scale and shift are shared: each site normalises by its own images, and all learn one function of
the normalised ones. On a network without running statistics it is FedAvg.
"""

from konsil.ingredients.method import Method, method
from konsil.ingredients.partition import AveragedButNorms, norm_statistics
from konsil.ingredients.piece import Piece


@method("silobn", paper="Andreux et al., DCL at MICCAI 2020")
class SiloBN(Method):
    """FedAvg of all that is trained; statistics of batch norm are the site's own."""

    def pieces(self) -> list[Piece]:
        return [AveragedButNorms(norm_statistics)]
