"""Server optimisers: the mean of the sites' models is a direction, not the next model.

The step from the global model w to the mean is a pseudo-gradient for an optimiser at the server
(Reddi et al., ICLR 2021). Running statistics and counters are no parameters: they take the mean,
as in FedAvg.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from konsil.ingredients.context import SERVER_ONLY, Means
from konsil.ingredients.method import Method
from konsil.weights import Layout, Parts, Weights, mix


def trainable_part(weights: Weights) -> Weights:
    """A copy of the trainable entries alone: what an optimiser moves."""
    return weights.only({e.name for e in weights.layout.entries if e.kind == "trainable"})


def partial_step(w: Weights, mean: Weights, lr: float) -> Weights:
    """w + lr (mean - w), with the mean's statistics; lr = 1 is the mean itself, bit for bit."""
    step = mix([(1 - lr, trainable_part(w)), (lr, trainable_part(mean))])
    return mean.replaced(step)


class ServerOptimised(Method):
    """The mean is handed to an optimiser at the server. Goes with FedAvg: sites notice nothing."""

    moments: ClassVar[tuple[str, ...]] = ()  # what the optimiser remembers between rounds

    def start(self) -> dict[str, Weights]:
        """The global model, and the optimiser's moments, which stay at the server."""
        parts = super().start()
        layout = trainable_part(parts["global"]).layout
        return parts | {SERVER_ONLY + name: self.first(name, layout) for name in self.moments}

    def first(self, moment: str, layout: Layout) -> Weights:
        """A moment before round 1."""
        return Weights.zeros(layout)

    def merge(self, shared: dict[str, Weights], means: Means) -> dict[str, Weights]:
        """One step of the optimiser from the global model, given the mean."""
        w, mean = trainable_part(shared["global"]), trainable_part(means["global"])
        stepped, moments = self.step(
            w, mean, {name: shared[SERVER_ONLY + name] for name in self.moments}
        )
        new = {"global": means["global"].replaced(stepped)}
        new |= {SERVER_ONLY + name: moment for name, moment in moments.items()}
        return {**shared, **means, **new}

    @abstractmethod
    def step(self, w: Weights, mean: Weights, moments: Parts) -> tuple[Weights, dict[str, Weights]]:
        """The next model and moments; trainable entries alone."""
