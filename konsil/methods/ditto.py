"""Ditto (Li et al., ICML 2021, Algorithm 1): a model of one's own, held near the global one.

Beside FedAvg's model each site trains v_k on the same batches by
min F_k(v) + (lambda / 2) ||v - w_g||^2, with w_g the global model of the round (Eq. 2). It is
never reset. With lambda = 0 it is local training; the global model is FedAvg's in any case.
"""

from pydantic import Field
from torch import Tensor

from konsil.ingredients.context import MethodSettings, Upload
from konsil.ingredients.method import method
from konsil.ingredients.personaliser import OwnModel, Personalised, personaliser
from konsil.ingredients.proximal import Coupling, step_with_pull
from konsil.ingredients.site import Site
from konsil.weights import Parts, Weights


class DittoSettings(MethodSettings):
    """lambda = 0 is local training."""

    lambda_: float = Field(0.1, ge=0, alias="lambda")
    coupling: Coupling = "coupled"


@personaliser("ditto")
class DittoPersonaliser(OwnModel):
    """v_k, pulled towards the global model of the round."""

    Settings = DittoSettings

    def begin(self, site: Site, shared: Parts) -> None:
        """Go on with v_k."""
        self.site = site
        self.v = site.learner("personal", site.private["personal"])
        self.w_g = shared["global"].trainable.to(self.v.device)

    def see(self, x: Tensor, y: Tensor) -> None:
        """v <- v - eta (grad F_k(v) + lambda (v - w_g))."""
        loss = self.site.task.loss(self.v(x), y)
        step_with_pull(self.v, loss, self.settings.lambda_, self.w_g, self.settings.coupling)

    def end(self, upload: Upload) -> None:
        """v_k stays at the site."""
        self.site.private["personal"] = self.v.weights()

    def opinion(self, site: Site, shared: Parts) -> Weights:
        """v_k."""
        return site.private["personal"]


@method("ditto", paper="Li et al., ICML 2021, Algorithm 1")
class Ditto(Personalised):
    """FedAvg, and a model a site that is pulled towards FedAvg's."""

    Settings = DittoSettings
    Personaliser = DittoPersonaliser
