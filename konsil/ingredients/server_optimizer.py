"""Server optimisers: the mean of the sites' models is a direction, not the next model.

The step from the global model w to the mean is a pseudo-gradient for an optimiser at the server
(Reddi et al., ICLR 2021). Running statistics and counters are no parameters: they take the mean,
as in FedAvg.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from konsil.ingredients.context import SERVER_ONLY, Means, Shared
from konsil.weights import Layout, Parts, Weights, mix


def trainable_part(weights: Weights) -> Weights:
    """A copy of the trainable entries alone: what an optimiser moves."""
    return weights.only({e.name for e in weights.layout.entries if e.kind == "trainable"})


def partial_step(w: Weights, mean: Weights, lr: float) -> Weights:
    """w + lr (mean - w), with the mean's statistics; lr = 1 is the mean itself, bit for bit."""
    step = mix([(1 - lr, trainable_part(w)), (lr, trainable_part(mean))])
    return mean.replaced(step)


class ServerOptimizer(ABC):
    """An optimiser for the mean of any shared part; what it remembers stays at the server."""

    moments: ClassVar[tuple[str, ...]] = ()

    def start(self, part: str, model: Weights) -> dict[str, Weights]:
        """Its moments before round 1, under the names by which the server keeps them."""
        layout = trainable_part(model).layout
        return {_kept(part, moment): self.first(moment, layout) for moment in self.moments}

    def first(self, moment: str, layout: Layout) -> Weights:
        """A moment before round 1."""
        return Weights.zeros(layout)

    def merge(self, part: str, shared: Shared, means: Means, new: Shared) -> None:
        """One step from the shared part, given the mean; into `new`."""
        w, mean = trainable_part(shared[part]), trainable_part(means[part])
        stepped, moments = self.step(w, mean, {n: shared[_kept(part, n)] for n in self.moments})
        new[part] = means[part].replaced(stepped)
        new.update({_kept(part, name): moment for name, moment in moments.items()})

    @abstractmethod
    def step(self, w: Weights, mean: Weights, moments: Parts) -> tuple[Weights, dict[str, Weights]]:
        """The next model and moments; trainable entries alone."""


def _kept(part: str, moment: str) -> str:
    return f"{SERVER_ONLY}{part}.{moment}"


@dataclass(frozen=True)
class ServerMomentum(ServerOptimizer):
    """v <- beta v + (w - mean), w <- w - eta v (Hsu, Qi and Brown, 2019, Sec. 4.3).

    Nesterov's looks ahead with the new speed: w <- w - eta (beta v + w - mean), v the new one.
    """

    beta: float
    eta: float = 1.0
    nesterov: bool = False

    moments = ("velocity",)

    def step(self, w: Weights, mean: Weights, moments: Parts) -> tuple[Weights, dict[str, Weights]]:
        """w - eta (beta v + w - mean), multiplied out so that no rounding parts it from FedAvg."""
        old = moments["velocity"]
        new = mix([(self.beta, old), (1.0, w), (-1.0, mean)])
        v = new if self.nesterov else old
        stepped = mix([(1 - self.eta, w), (self.eta, mean), (-self.eta * self.beta, v)])
        return stepped, {"velocity": new}


@dataclass(frozen=True)
class ServerAdam(ServerOptimizer):
    """Adam without bias correction, from m = 0 and v = tau^2 (Reddi et al., Algorithm 2)."""

    eta: float
    beta1: float
    beta2: float
    tau: float

    moments = ("m", "v")

    def first(self, moment: str, layout: Layout) -> Weights:
        value = self.tau**2 if moment == "v" else 0.0
        return Weights(layout, torch.full((layout.size,), value))

    def step(self, w: Weights, mean: Weights, moments: Parts) -> tuple[Weights, dict[str, Weights]]:
        """Lines 10-13 of Algorithm 2."""
        delta = mean.flat - w.flat
        m = self.beta1 * moments["m"].flat + (1 - self.beta1) * delta
        v = self.second_moment(moments["v"].flat, delta.square())
        stepped = w.flat + self.eta * m / (v.sqrt() + self.tau)
        return Weights(w.layout, stepped), {"m": Weights(w.layout, m), "v": Weights(w.layout, v)}

    def second_moment(self, v: Tensor, squares: Tensor) -> Tensor:
        """v forgets at the same rate whatever comes."""
        return self.beta2 * v + (1 - self.beta2) * squares


class ServerYogi(ServerAdam):
    """Adam whose second moment grows fast and shrinks slowly (Reddi et al., Algorithm 2)."""

    def second_moment(self, v: Tensor, squares: Tensor) -> Tensor:
        """v changes by at most (1 - b2) D^2, up or down."""
        return v - (1 - self.beta2) * squares * (v - squares).sign()
