"""FedAdam (Reddi et al., ICLR 2021, Algorithm 2): Adam at the server.

With D the mean of the sites' steps, m <- b1 m + (1 - b1) D, v <- b2 v + (1 - b2) D^2 and
w <- w + eta m / (sqrt(v) + tau), from m = 0 and v = tau^2, without bias correction. With
b1 = b2 = 0 and eta = tau far above every step, it comes to FedAvg (up to D / tau).
"""

from pydantic import Field

from konsil.ingredients.method import method
from konsil.ingredients.piece import Averaged, Piece
from konsil.ingredients.server_optimizer import ServerAdam
from konsil.methods.fedavg import FedAvg, FedAvgSettings


class FedAdamSettings(FedAvgSettings):
    """beta1 = beta2 = 0 and server_lr = tau, both large, comes to FedAvg."""

    # eta. A value moves by about eta a round. The sites' Adam (lr 1e-3) moves it by about 1e-3 a
    # batch: ten batches' worth. The paper's 0.1 and more go with sites that take steps of SGD.
    server_lr: float = Field(0.01, gt=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.99, ge=0, lt=1)
    tau: float = Field(1e-3, gt=0)  # the paper's: how far a value counts as not moving


@method("fedadam", paper="Reddi et al., ICLR 2021, Algorithm 2")
class FedAdam(FedAvg):
    """FedAvg's mean, taken as a gradient for Adam at the server."""

    Settings = FedAdamSettings
    optimizer = ServerAdam

    def server(self) -> ServerAdam:
        s = self.settings
        return self.optimizer(s.server_lr, s.beta1, s.beta2, s.tau)

    def pieces(self) -> list[Piece]:
        return [Averaged("global", self.settings.optimizer_state, server=self.server())]
