"""A plugin: federated averaging whose sites train nothing, so that a round is its messages."""

from konsil.ingredients.context import Upload
from konsil.ingredients.method import Method, method
from konsil.ingredients.site import Site
from konsil.weights import Parts


@method("benchmark-echo", paper="none: it only moves bytes")
class Echo(Method):
    """Every site sends back what it received."""

    def local(self, site: Site, shared: Parts) -> Upload:
        """Nothing but the way there and back."""
        return Upload().add("global", shared["global"], weight=1)
