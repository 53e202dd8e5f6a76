"""FedProx (Li et al., MLSys 2020): local training is held near the model it began with.

Eq. 2 of the paper: h_k(w; w_g) = F_k(w) + (mu / 2) ||w - w_g||^2, minimised from w_g by as many
steps as the others take. With mu = 0 it is FedAvg.
"""

from pydantic import Field

from konsil.ingredients.context import MethodSettings
from konsil.ingredients.method import Method, method
from konsil.ingredients.piece import Averaged, Piece
from konsil.ingredients.proximal import Coupling, Pull


class FedProxSettings(MethodSettings):
    """mu = 0 is FedAvg."""

    mu: float = Field(0.01, ge=0)
    coupling: Coupling = "coupled"  # the term's gradient goes through Adam; or not


@method("fedprox", paper="Li et al., MLSys 2020, Eq. 2")
class FedProx(Method):
    """FedAvg with a penalty on the way from the global model: (mu / 2) ||w - w_g||^2."""

    Settings = FedProxSettings

    def pieces(self) -> list[Piece]:
        return [Averaged("global", step=Pull(self.settings.mu, self.settings.coupling))]
