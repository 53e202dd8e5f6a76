"""SiloBN (Andreux et al., DCL at MICCAI 2020): running statistics stay at the site.

Scale and shift are shared: each site normalises by its own images, and all learn one function of
the normalised ones. On a network without running statistics it is FedAvg.
"""

from konsil.ingredients.method import method
from konsil.ingredients.partition import Names, OwnNorm, norm_statistics
from konsil.weights import Layout


@method("silobn", paper="Andreux et al., DCL at MICCAI 2020")
class SiloBN(OwnNorm):
    """FedAvg of all that is trained; statistics of batch norm are the site's own."""

    def partition(self, layout: Layout) -> Names:
        """Running statistics and counters."""
        return norm_statistics(layout)
