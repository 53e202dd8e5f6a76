"""A learner: one resident network and its optimiser, both on flat buffers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from konsil.config import TrainingConfig
from konsil.weights import BoundNetwork, Layout, Weights

OptimizerPolicy = Literal["persist", "reset", "average"]


class Learner:
    """Steps a network along its gradients; every site of a process takes its turn with it.

    The optimiser sees one flat tensor instead of a hundred small ones: the same arithmetic per
    value, at a fraction of the calls.
    """

    def __init__(self, bound: BoundNetwork, training: TrainingConfig, lr: float | None = None):
        self.bound = bound
        self.optimizer = _optimizer(bound, training, lr or training.lr)

    def load(self, weights: Weights, moments: Weights | None = None) -> Learner:
        """Take these weights, and these optimiser moments or fresh ones."""
        self.bound.load(weights)
        self.bound.gradient.zero_()
        self.bound.net.train()
        self._load_moments(moments)
        return self

    def __call__(self, x: Tensor) -> Tensor:
        """The network's logits."""
        return self.bound.net(x)

    def step(self, loss: Tensor) -> None:
        """One optimiser step along the gradient of `loss`."""
        self.accumulate(loss)
        self.apply()

    def accumulate(self, loss: Tensor) -> None:
        """Add the gradient of `loss` to what is there, without a step."""
        loss.backward()

    def apply(self) -> None:
        """One optimiser step along the gradient that is there."""
        self.optimizer.step()
        self.bound.gradient.zero_()

    def weights(self) -> Weights:
        """A copy of the weights as they are now."""
        return self.bound.weights()

    def gradient(self) -> Weights:
        """A copy of the accumulated gradient, as weights (zero for what is not trainable)."""
        result = Weights.zeros(self.bound.layout)
        result.moving.copy_(self.bound.gradient)
        return result

    @property
    def moments_layout(self) -> Layout:
        """The layout of this optimiser's state."""
        return moments_layout(self.bound.layout, self.optimizer)

    def moments(self) -> Weights:
        """A copy of the optimiser's state: its moments, and the step as a counter."""
        result = Weights.zeros(self.moments_layout)
        state = self.optimizer.state.get(self._parameter, {})
        for entry in result.layout.entries:
            if entry.name in state:
                result.flat[entry.span] = state[entry.name].reshape(-1).cpu()
        return result

    @property
    def _parameter(self) -> Tensor:
        return self.optimizer.param_groups[0]["params"][0]

    def _load_moments(self, moments: Weights | None) -> None:
        self.optimizer.state.clear()
        if moments is None or not moments.layout.entries:
            return
        device = self.bound.flat.device
        fused = self.optimizer.defaults.get("fused")
        self.optimizer.state[self._parameter] = {
            # torch wants the step on the device for fused Adam, and on the CPU otherwise
            e.name: moments[e.name].clone().to(device if fused or e.name != "step" else "cpu")
            for e in moments.layout.entries
        }


def _optimizer(bound: BoundNetwork, training: TrainingConfig, lr: float) -> torch.optim.Optimizer:
    flat = bound.moving
    flat.grad = bound.gradient
    if training.optimizer == "sgd":
        return torch.optim.SGD(
            [flat], lr=lr, momentum=training.momentum, weight_decay=training.weight_decay
        )
    fused = flat.device.type in ("cpu", "cuda")
    return torch.optim.Adam(
        [flat], lr=lr, betas=training.betas, weight_decay=training.weight_decay, fused=fused
    )


def moments_layout(layout: Layout, optimizer: torch.optim.Optimizer | str) -> Layout:
    """How an optimiser's state is laid out for a network: moments averaged, steps the maximum."""
    sgd = optimizer == "sgd" or isinstance(optimizer, torch.optim.SGD)
    names = ("momentum_buffer",) if sgd else ("exp_avg", "exp_avg_sq")
    size = (layout.trainable,)
    items = [(name, size, "trainable", "body") for name in names]
    if not sgd:
        items.append(("step", (), "counter", "body"))  # type: ignore[arg-type]
    return Layout.build(items)  # type: ignore[arg-type]


@torch.no_grad()
def recompute_statistics(bound: BoundNetwork, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Running statistics of the loaded weights, as a plain mean over these batches.

    Averaged weights do not produce the averaged statistics of their ingredients (SWA, Sec. 3.2).
    `torch.optim.swa_utils.update_bn` would replace the buffers and so cut them from the flat one.
    """
    layers = list(bound.norm_layers())
    if not layers:
        return
    usual = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a cumulative mean
    bound.net.train()
    for x, _ in batches:
        bound.net(x)
    for layer, momentum in zip(layers, usual, strict=True):
        layer.momentum = momentum
