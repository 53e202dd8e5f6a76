"""Centralized training: all images in one place, which hospitals cannot do. The yardstick."""

from konsil.ingredients.context import TrainedNetwork, Upload
from konsil.ingredients.method import Method, method
from konsil.ingredients.site import Site
from konsil.weights import Parts, Weights


@method("centralized", paper="the yardstick: pooled images")
class Centralized(Method):
    """One model trained on the pooled training images, as many epochs as the others."""

    pooled = True
    shared_roles = ("centralized",)
    best_by = (("centralized", "centralized"),)

    def networks(self) -> dict[str, TrainedNetwork]:
        """One."""
        return {"centralized": TrainedNetwork(self.context.network)}

    def start(self) -> dict[str, Weights]:
        """The initial weights that every method begins with."""
        return {"centralized": self.context.initial(self.context.network)}

    def local(self, site: Site, shared: Parts) -> Upload:
        """One more round on all images."""
        model = site.train(site.learner("centralized", shared["centralized"]))
        return Upload().add("centralized", model.weights(), weight=site.images)

    def answers(self, site: Site, shared: Parts) -> dict[str, Weights]:
        """The one model."""
        return {"centralized": shared["centralized"]}
