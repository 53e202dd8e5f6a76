"""FedAvg (McMahan et al., AISTATS 2017, Algorithm 1): the mean of the models."""

from konsil.ingredients.context import MethodSettings, TrainedNetwork, Upload
from konsil.ingredients.learner import OptimizerPolicy
from konsil.ingredients.method import Method, method
from konsil.ingredients.site import Site
from konsil.weights import Parts


class FedAvgSettings(MethodSettings):
    """What becomes of a site's optimiser between rounds."""

    optimizer_state: OptimizerPolicy = "persist"


@method("fedavg", paper="McMahan et al., AISTATS 2017")
class FedAvg(Method):
    """One model for all: w <- sum_k p_k w_k with p_k = n_k / n."""

    Settings = FedAvgSettings

    def networks(self) -> dict[str, TrainedNetwork]:
        """One."""
        return {"global": TrainedNetwork(self.context.network, self.settings.optimizer_state)}

    def local(self, site: Site, shared: Parts) -> Upload:
        """Train the global model on the site's images."""
        model = site.train(site.learner("global", shared["global"]))
        return Upload().add("global", model.weights(), weight=site.images)
