"""Ditto (Li et al., ICML 2021, Algorithm 1): a model of one's own, held near the global one.

Beside FedAvg's model each site trains v_k on the same batches by
min F_k(v) + (lambda / 2) ||v - w_g||^2, with w_g the global model of the round (Eq. 2). It is
never reset. With lambda = 0 it is local training; the global model is FedAvg's in any case.
"""

from pydantic import Field
from torch import Tensor

from konsil.ingredients.context import MethodSettings, Shared
from konsil.ingredients.method import Method, method
from konsil.ingredients.piece import Averaged, Personal, Piece
from konsil.ingredients.proximal import Coupling, Pull
from konsil.ingredients.site import Site


class DittoSettings(MethodSettings):
    """lambda = 0 is local training."""

    lambda_: float = Field(0.1, ge=0, alias="lambda")
    coupling: Coupling = "coupled"
    personal_epochs: int | None = Field(None, ge=1, description="training.local_epochs")


class NearGlobal(Personal):
    """v_k, pulled towards the global model of the round."""

    def __init__(self, pull: Pull, epochs: int | None = None) -> None:
        self.pull, self.epochs = pull, epochs

    def begin(self, site: Site, shared: Shared) -> None:
        super().begin(site, shared)
        self.w_g = shared["global"].trainable.to(self.v.device)

    def on_batch(self, x: Tensor, y: Tensor) -> None:
        """v <- v - eta (grad F_k(v) + lambda (v - w_g))."""
        self.pull(self.v, self.site.task.loss(self.v(x), y), self.w_g)


@method("ditto", paper="Li et al., ICML 2021, Algorithm 1")
class Ditto(Method):
    """FedAvg, and a model a site that is pulled towards FedAvg's."""

    Settings = DittoSettings

    def personal(self) -> list[Piece]:
        s = self.settings
        return [NearGlobal(Pull(s.lambda_, s.coupling), s.personal_epochs)]

    def pieces(self) -> list[Piece]:
        return [*self.personal(), Averaged("global")]
