"""FedBN (Li et al., ICLR 2021, Algorithm 1): norm layers stay at the site.

All of every norm layer, found by its type: scale, shift, running statistics. (The code published
with FedSoup asks names for "bn", and so shares the norm layers of ResNet's shortcuts.) On a
network whose norm layers keep nothing it is FedAvg.
"""

from konsil.ingredients.method import method
from konsil.ingredients.partition import Names, OwnNorm, norm_entries
from konsil.weights import Layout


@method("fedbn", paper="Li et al., ICLR 2021, Algorithm 1")
class FedBN(OwnNorm):
    """FedAvg of everything but the norm layers, which each site has for itself."""

    def partition(self, layout: Layout) -> Names:
        """Every norm layer."""
        return norm_entries(layout)
