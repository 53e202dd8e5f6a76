"""FedAvgM (Hsu, Qi and Brown, 2019, arXiv:1909.06335, Sec. 4.3): momentum at the server.

v <- beta v + (w - mean), w <- w - eta v. With eta = 1 and beta = 0 it is FedAvg.
"""

from pydantic import Field

from konsil.ingredients.method import method
from konsil.ingredients.piece import Averaged, Piece
from konsil.ingredients.server_optimizer import ServerMomentum
from konsil.methods.fedavg import FedAvg, FedAvgSettings


class FedAvgMSettings(FedAvgSettings):
    """momentum = 0 and server_lr = 1 is FedAvg."""

    momentum: float = Field(0.9, ge=0, lt=1)  # beta
    server_lr: float = Field(1.0, gt=0)  # eta; the way of a round grows to eta / (1 - beta) steps
    nesterov: bool = False  # look ahead with the new speed


@method("fedavgm", paper="Hsu et al., 2019, Sec. 4.3")
class FedAvgM(FedAvg):
    """FedAvg whose global model keeps part of its speed from round to round."""

    Settings = FedAvgMSettings

    def server(self) -> ServerMomentum:
        s = self.settings
        return ServerMomentum(s.momentum, s.server_lr, s.nesterov)

    def pieces(self) -> list[Piece]:
        return [Averaged("global", self.settings.optimizer_state, server=self.server())]
