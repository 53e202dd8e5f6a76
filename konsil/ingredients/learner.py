"""A learner: one resident network and its optimiser, both on flat buffers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from konsil.config import Precision, TrainingConfig
from konsil.ingredients.optimizers import make_optimizer, moments_layout
from konsil.weights import BoundNetwork, Weights

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
SCALES = {"fp16": 2.0**12}  # fixed, so that a round depends on nothing but its weights and batches


class Learner:
    """Steps a network along its gradients; every site of a process takes its turn with it.

    The optimiser sees one flat tensor instead of a hundred small ones: the same arithmetic per
    value, at a fraction of the calls. If only some entries are trained, it sees their spans.
    """

    def __init__(
        self,
        bound: BoundNetwork,
        training: TrainingConfig,
        lr: float | None = None,
        only: Collection[str] | None = None,
        precision: Precision = "float32",
    ) -> None:
        self.bound = bound
        self.full_lr = self.lr = lr or training.lr
        self.clip = training.clip
        self.precision, self.scale = precision, SCALES.get(precision, 1.0)
        self.device = bound.flat.device
        # views: what changes in them changes the network
        self.parameters = bound.trainable  # the trainable values
        self.grad = bound.grad  # the accumulated gradient: for terms that need no backward pass
        names = {e.name for e in bound.layout.entries} if only is None else set(only)
        for name, parameter in bound.net.named_parameters():
            if name not in names:  # a backward pass through it would change nothing
                parameter.requires_grad_(False)
        self.trained_layout = bound.layout.only(names)
        self.moments_layout = moments_layout(self.trained_layout, training.optimizer)
        self._moved = _flat_parameters(bound, names)
        self.optimizer = (
            make_optimizer(self._moved, self.moments_layout, training) if self._moved else None
        )

    def load(self, weights: Weights, moments: Weights | None = None, rate: float = 1.0) -> Learner:
        """Take these weights, and these optimiser moments or fresh ones.

        `rate`: by what the learning rate is multiplied until the next time.
        """
        self.bound.load(weights)
        self.bound.grad.zero_()
        self.bound.mode(training=True)
        if self.optimizer is not None:
            self.optimizer.load(moments)
        self.lr = self.full_lr * rate
        return self

    def __call__(self, x: Tensor) -> Tensor:
        """The network's logits."""
        with self._autocast():
            logits = self.bound.net(x)
        return logits.float()

    def with_features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The network's logits, and of the same pass one vector an image."""
        with self._autocast():
            found = self.bound.net.with_features(x)  # type: ignore[operator]  # networks have it
        return found[0].float(), found[1].float()

    def _autocast(self) -> torch.autocast:
        """Inside, convolutions and the like compute in the learner's precision."""
        kind = DTYPES.get(self.precision)
        return torch.autocast(self.device.type, kind, enabled=kind is not None)

    def step(self, loss: Tensor) -> None:
        """One optimiser step along the gradient of `loss`."""
        self.accumulate(loss)
        self.apply()

    def accumulate(self, loss: Tensor) -> None:
        """Add the gradient of `loss` to what is there, without a step.

        Half precision has no room for small gradients: they are computed `scale` times as large. A
        batch whose gradient is then too large for it counts for nothing.
        """
        if self.scale == 1:
            loss.backward()
            return
        before = self.grad.clone()
        self.grad.zero_()
        (self.scale * loss).backward()
        self.grad.div_(self.scale).add_(before)
        if not self.grad.isfinite().all():
            self.grad.copy_(before)

    def apply(self) -> None:
        """One optimiser step along the gradient that is there."""
        if self.optimizer is not None:
            if self.clip is not None:
                nn.utils.clip_grad_norm_(self._moved, self.clip)
            self.optimizer.step(self.lr)
        self.bound.grad.zero_()

    @contextmanager
    def at(self, values: Tensor) -> Iterator[None]:
        """Inside, the network has these trainable values: for a gradient taken elsewhere."""
        own = self.parameters.clone()
        self.parameters.copy_(values)
        try:
            yield
        finally:
            self.parameters.copy_(own)

    @contextmanager
    def statistics_kept(self) -> Iterator[None]:
        """Inside, forward passes leave the running statistics as they are."""
        own = [(buffer, buffer.clone()) for buffer in self.bound.net.buffers()]
        try:
            yield
        finally:
            for buffer, before in own:
                buffer.copy_(before)

    def weights(self) -> Weights:
        """A copy of the weights as they are now."""
        return self.bound.weights()

    def gradient(self) -> Weights:
        """A copy of the accumulated gradient, as weights (zero for what is not trainable)."""
        result = Weights.zeros(self.bound.layout)
        result.trainable.copy_(self.bound.grad)
        return result

    def moments(self) -> Weights:
        """A copy of the optimiser's state: its moments, and the step as a counter."""
        return self.optimizer.state() if self.optimizer else Weights.zeros(self.moments_layout)


def _flat_parameters(bound: BoundNetwork, names: Collection[str]) -> list[Tensor]:
    """What the optimiser moves, with the gradient where backward passes put it."""
    trainable = {e.name for e in bound.layout.entries if e.kind == "trainable"}
    parameters = []
    for span in bound.layout.spans(trainable.intersection(names)):
        parameter = bound.trainable[span]
        parameter.grad = bound.grad[span]
        parameters.append(parameter)
    return parameters


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
    bound.mode(training=True)
    for x, _ in batches:
        bound.net(x)
    for layer, momentum in zip(layers, usual, strict=True):
        layer.momentum = momentum
