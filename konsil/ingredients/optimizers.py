"""Optimisers of flat buffers: torch's Adam, AdamW and SGD, on a few long tensors.

The very kernels of `torch.optim`, called without it: its classes import torch's compiler, which
costs every worker process one to two seconds, and keep a state a tensor, where a learner has one
buffer.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from konsil.config import TrainingConfig
from konsil.weights import Group, Kind, Layout, Weights

OptimizerPolicy = Literal["persist", "reset", "average"]  # what becomes of moments between rounds
Item = tuple[str, tuple[int, ...], Kind, Group]  # of a layout
EPSILON = 1e-8  # Adam's


def moments_layout(layout: Layout, optimizer: str) -> Layout:
    """How an optimiser's state is laid out for a network: moments averaged, steps the maximum."""
    names = ("momentum_buffer",) if optimizer == "sgd" else ("exp_avg", "exp_avg_sq")
    items: list[Item] = [(name, (layout.trainable,), "trainable", "body") for name in names]
    if optimizer != "sgd":
        items.append(("step", (), "counter", "body"))
    return Layout.build(items)


class FlatOptimizer(ABC):
    """Moves parameters along their gradients; each of its moments is one buffer for all of them."""

    def __init__(self, parameters: Sequence[Tensor], layout: Layout) -> None:
        """`parameters` have their gradients beside them; `layout` is that of the moments."""
        self.parameters, self.layout = list(parameters), layout
        device = parameters[0].device
        self.moments = {e.name: torch.zeros(e.shape, device=device) for e in layout.entries}

    def load(self, moments: Weights | None) -> None:
        """Go on with these moments, or begin afresh."""
        for name, own in self.moments.items():
            if moments is None or not moments.layout.entries:
                own.zero_()
            else:
                own.copy_(moments[name])

    def state(self) -> Weights:
        """A copy of the moments."""
        result = Weights.zeros(self.layout)
        for name, own in self.moments.items():
            result[name].copy_(own)
        return result

    @abstractmethod
    def step(self, lr: float) -> None:
        """Move all parameters, the moments with them."""

    def views(self, moment: str) -> list[Tensor]:
        """A moment's part of each parameter."""
        return list(self.moments[moment].split([len(p) for p in self.parameters]))

    @property
    def grads(self) -> list[Tensor]:
        """The gradients as they are now."""
        return [p.grad for p in self.parameters if p.grad is not None]  # which all have


class FlatAdam(FlatOptimizer):
    """Adam (Kingma and Ba, 2015), or AdamW, whose decay is no part of the gradient."""

    def __init__(
        self, parameters: Sequence[Tensor], layout: Layout, training: TrainingConfig
    ) -> None:
        super().__init__(parameters, layout)
        self.betas, self.decay = training.betas, training.weight_decay
        adamw = training.optimizer == "adamw"
        self._kernel = torch._fused_adamw_ if adamw else torch._fused_adam_

    def step(self, lr: float) -> None:
        step = self.moments["step"].add_(1)
        self._kernel(
            self.parameters, self.grads, self.views("exp_avg"), self.views("exp_avg_sq"), [],
            [step] * len(self.parameters), lr=lr, beta1=self.betas[0], beta2=self.betas[1],
            weight_decay=self.decay, eps=EPSILON, amsgrad=False, maximize=False,
        )  # fmt: skip


class FlatSGD(FlatOptimizer):
    """Gradient descent with momentum: b <- mu b + g, w <- w - lr b."""

    def __init__(
        self, parameters: Sequence[Tensor], layout: Layout, training: TrainingConfig
    ) -> None:
        super().__init__(parameters, layout)
        self.momentum, self.decay = training.momentum, training.weight_decay

    def step(self, lr: float) -> None:
        pairs = zip(self.parameters, self.grads, self.views("momentum_buffer"), strict=True)
        for parameter, grad, buffer in pairs:
            direction = grad.add(parameter, alpha=self.decay) if self.decay else grad
            if self.momentum:
                direction = buffer.mul_(self.momentum).add_(direction)
            parameter.add_(direction, alpha=-lr)


def make_optimizer(
    parameters: Sequence[Tensor], layout: Layout, training: TrainingConfig
) -> FlatOptimizer:
    """The optimiser of an experiment, for these parameters."""
    kind = FlatSGD if training.optimizer == "sgd" else FlatAdam
    return kind(parameters, layout, training)
