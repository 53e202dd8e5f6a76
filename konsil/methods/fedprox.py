"""FedProx (Li et al., MLSys 2020): local training is held near the model it began with.

Eq. 2 of the paper: h_k(w; w_g) = F_k(w) + (mu / 2) ||w - w_g||^2, minimised from w_g by as many
steps as the others take. With mu = 0 it is FedAvg.
"""

from pydantic import Field

from konsil.ingredients.context import MethodSettings, Upload
from konsil.ingredients.method import Method, method
from konsil.ingredients.proximal import Coupling, step_with_pull
from konsil.ingredients.site import Site
from konsil.weights import Parts


class FedProxSettings(MethodSettings):
    """mu = 0 is FedAvg."""

    mu: float = Field(0.01, ge=0)
    coupling: Coupling = "coupled"  # the term's gradient goes through Adam; or not


@method("fedprox", paper="Li et al., MLSys 2020, Eq. 2")
class FedProx(Method):
    """FedAvg with a penalty on the way from the global model: (mu / 2) ||w - w_g||^2."""

    Settings = FedProxSettings

    def local(self, site: Site, shared: Parts) -> Upload:
        """FedAvg's steps, each with the pull."""
        model = site.learner("global", shared["global"])
        w_g = shared["global"].trainable.to(model.device)
        for x, y in site.batches():
            loss = site.task.loss(model(x), y)
            step_with_pull(model, loss, self.settings.mu, w_g, self.settings.coupling)
        return Upload().add("global", model.weights(), weight=site.images)
