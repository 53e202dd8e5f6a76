"""What runs inside a network of which nothing is known but the types of its layers."""

from __future__ import annotations

from typing import Any, Self

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd


class Watched:
    """Notes of one forward pass: which layer ran last, what it saw, and the deepest one."""

    def __init__(self, net: nn.Module) -> None:
        layers = [(n, m) for n, m in net.named_modules() if isinstance(m, _ConvNd | nn.Linear)]
        self._hooks = [m.register_forward_hook(self._noting(name)) for name, m in layers]
        self.last = ""  # the name of the convolution or linear layer that ran last
        self._before: Tensor | None = None
        self._deepest: Tensor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *trouble: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _noting(self, name: str) -> Any:
        def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            self.last, self._before = name, inputs[0]
            if isinstance(layer, _ConvNd):
                deeper = self._deepest is None or _depth(output) >= _depth(self._deepest)
                self._deepest = output if deeper else self._deepest

        return note

    @property
    def before_head(self) -> Tensor:
        """What the layer that ran last was given, an average over its positions."""
        assert self._before is not None  # a network without layers is refused before round 1
        return averaged(self._before)

    @property
    def bottleneck(self) -> Tensor:
        """The deepest convolution, averaged; without one, what the head sees."""
        return self.before_head if self._deepest is None else averaged(self._deepest)


def _depth(x: Tensor) -> tuple[int, int]:
    """Fewest pixels, most channels."""
    return -x[0, 0].numel(), x.shape[1]


def averaged(x: Tensor) -> Tensor:
    """One vector an image: convolutions have positions last, transformers before the channels."""
    if x.dim() == 4:
        return x.mean(dim=(2, 3))
    return x if x.dim() == 2 else x.mean(dim=tuple(range(1, x.dim() - 1)))
