"""FedAdam (Reddi et al., ICLR 2021, Algorithm 2): Adam at the server.

With D the mean of the sites' steps, m <- b1 m + (1 - b1) D, v <- b2 v + (1 - b2) D^2 and
w <- w + eta m / (sqrt(v) + tau), from m = 0 and v = tau^2, without bias correction. With
b1 = b2 = 0 and eta = tau far above every step, it comes to FedAvg (up to D / tau).
"""

import torch
from pydantic import Field
from torch import Tensor

from konsil.ingredients.method import method
from konsil.ingredients.server_optimizer import ServerOptimised
from konsil.methods.fedavg import FedAvg, FedAvgSettings
from konsil.weights import Layout, Parts, Weights


class FedAdamSettings(FedAvgSettings):
    """beta1 = beta2 = 0 and server_lr = tau, both large, comes to FedAvg."""

    # eta. A value moves by about eta a round. The sites' Adam (lr 1e-3) moves it by about 1e-3 a
    # batch: ten batches' worth. The paper's 0.1 and more go with sites that take steps of SGD.
    server_lr: float = Field(0.01, gt=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.99, ge=0, lt=1)
    tau: float = Field(1e-3, gt=0)  # the paper's: how far a value counts as not moving


@method("fedadam", paper="Reddi et al., ICLR 2021, Algorithm 2")
class FedAdam(ServerOptimised, FedAvg):
    """FedAvg's mean, taken as a gradient for Adam at the server."""

    Settings = FedAdamSettings
    moments = ("m", "v")

    def first(self, moment: str, layout: Layout) -> Weights:
        """m = 0, v = tau^2."""
        value = self.settings.tau**2 if moment == "v" else 0.0
        return Weights(layout, torch.full((layout.size,), value))

    def step(self, w: Weights, mean: Weights, moments: Parts) -> tuple[Weights, dict[str, Weights]]:
        """Lines 10-13 of Algorithm 2."""
        s = self.settings
        delta = mean.flat - w.flat
        m = s.beta1 * moments["m"].flat + (1 - s.beta1) * delta
        v = self.second_moment(moments["v"].flat, delta.square())
        stepped = w.flat + s.server_lr * m / (v.sqrt() + s.tau)
        return Weights(w.layout, stepped), {"m": Weights(w.layout, m), "v": Weights(w.layout, v)}

    def second_moment(self, v: Tensor, squares: Tensor) -> Tensor:
        """v forgets at the same rate whatever comes."""
        beta2: float = self.settings.beta2
        return beta2 * v + (1 - beta2) * squares
