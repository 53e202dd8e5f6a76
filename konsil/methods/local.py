"""Local training: each hospital alone. Nothing travels."""

from konsil.ingredients.context import Shared, TrainedNetwork, Upload
from konsil.ingredients.method import Method, method
from konsil.ingredients.piece import Piece
from konsil.ingredients.site import Site
from konsil.weights import Weights


@method("local", paper="the control: no federation")
class Local(Method):
    """One model a site, trained on that site's images and used there."""

    private_roles = ("local",)

    def pieces(self) -> list[Piece]:
        """Nothing is shared: a site draws the common initial weights itself."""
        return []

    def work(self) -> float:
        return 1.0

    def networks(self) -> dict[str, TrainedNetwork]:
        return {"local": TrainedNetwork(self.context.network)}

    def receive(self, site: Site, shared: Shared) -> None:
        """Begin with the initial weights that every method begins with."""
        if "local" not in site.private:
            site.private["local"] = self.context.initial(self.context.network)

    def local(self, site: Site, shared: Shared) -> Upload:
        """One more round on the site's own images."""
        model = site.train(site.learner("local", site.private["local"]))
        site.private["local"] = model.weights()
        return Upload()

    def answers(self, site: Site, shared: Shared) -> dict[str, Weights]:
        """The site's own model."""
        return {"local": site.private["local"]}
