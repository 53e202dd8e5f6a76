"""FedBN (Li et al., ICLR 2021, Algorithm 1): norm layers stay at the site.

All of every norm layer, found by its type: scale, shift, running statistics. (The code published
with FedSoup asks names for "bn", and so shares the norm layers of ResNet's shortcuts.) On a
network whose norm layers keep nothing it is FedAvg.
"""

from konsil.ingredients.method import Method, method
from konsil.ingredients.partition import AveragedButNorms, norm_entries
from konsil.ingredients.piece import Piece


@method("fedbn", paper="Li et al., ICLR 2021, Algorithm 1")
class FedBN(Method):
    """FedAvg of everything but the norm layers, which each site has for itself."""

    def pieces(self) -> list[Piece]:
        return [AveragedButNorms(norm_entries)]
