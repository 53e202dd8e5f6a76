"""FedAvgM (Hsu, Qi and Brown, 2019, arXiv:1909.06335, Sec. 4.3): momentum at the server.

v <- beta v + (w - mean), w <- w - eta v. With eta = 1 and beta = 0 it is FedAvg.
"""

from pydantic import Field

from konsil.ingredients.method import method
from konsil.ingredients.server_optimizer import ServerOptimised
from konsil.methods.fedavg import FedAvg, FedAvgSettings
from konsil.weights import Parts, Weights, mix


class FedAvgMSettings(FedAvgSettings):
    """momentum = 0 and server_lr = 1 is FedAvg."""

    momentum: float = Field(0.9, ge=0, lt=1)  # beta
    server_lr: float = Field(1.0, gt=0)  # eta; the way of a round grows to eta / (1 - beta) steps


@method("fedavgm", paper="Hsu et al., 2019, Sec. 4.3")
class FedAvgM(ServerOptimised, FedAvg):
    """FedAvg whose global model keeps part of its speed from round to round."""

    Settings = FedAvgMSettings
    moments = ("velocity",)

    def step(self, w: Weights, mean: Weights, moments: Parts) -> tuple[Weights, dict[str, Weights]]:
        """w - eta (beta v + w - mean), multiplied out so that no rounding parts it from FedAvg."""
        beta, eta, v = self.settings.momentum, self.settings.server_lr, moments["velocity"]
        stepped = mix([(1 - eta, w), (eta, mean), (-eta * beta, v)])
        return stepped, {"velocity": mix([(beta, v), (1.0, w), (-1.0, mean)])}
