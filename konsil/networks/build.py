"""A network of its specification: normalisation, the net itself, and features for those who ask."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from konsil.errors import ConfigError
from konsil.networks.classifiers import Classifier
from konsil.networks.layers import PerImageNorm, quicken
from konsil.networks.spec import NetworkSpec, arguments_of, check_spec, target_class

if TYPE_CHECKING:  # a saved super model needs no experiment file
    from konsil.config import ComputeConfig


class Network(nn.Module):
    """A network with its own input normalisation.

    Parameter names are the same with and without normalisation, which has no parameters.
    """

    def __init__(
        self,
        net: nn.Module,
        normalise: bool,
        deepest: Callable[[nn.Module], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.entry = PerImageNorm() if normalise else nn.Identity()
        self.net = net
        self.deepest = deepest
        self.memory_format = torch.contiguous_format  # in which the network computes

    def forward(self, images: Tensor) -> Tensor:
        """Logits of raw images in [0, 1]."""
        x = self.entry(images).contiguous(memory_format=self.memory_format)
        logits: Tensor = self.net(x)
        return logits

    def features(self, images: Tensor) -> Tensor:
        """What the head of a classifier sees, [B, features]."""
        if not isinstance(self.net, Classifier):
            raise ConfigError("features: a segmentation network has none; use a classifier")
        features: Tensor = self.net[0](self.entry(images))
        return features

    def from_features(self, features: Tensor) -> Tensor:
        """The logits that the head of a classifier makes of `features`."""
        assert isinstance(self.net, Classifier)
        logits: Tensor = self.net[1](features)
        return logits

    def with_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and of the same pass one vector an image: what a classifier's head sees, or
        the average over a segmenter's bottleneck.
        """
        with Watched(self.net, self.deepest and self.deepest(self.net)) as watched:
            logits = self(images)
        return logits, watched.bottleneck if logits.dim() == 4 else watched.before_head


def build_network(spec: NetworkSpec) -> Network:
    """The network with random initial weights from torch's global generator."""
    check_spec(spec)
    if spec.is_target:
        cls = target_class(spec.name)
        return Network(cls(**arguments_of(cls, spec)), spec.normalise)
    kind = spec.kind
    options: dict[str, Any] = dict(spec.arguments)
    if kind.norm is not None:
        options["norm"] = spec.norm or kind.norm
    if spec.width is not None:
        options["width"] = spec.width
    net = kind.build(spec.in_channels, spec.outputs, **options)
    return Network(net, spec.normalise, kind.deepest)


def arranged(network: Network, compute: ComputeConfig) -> Network:
    """The network, to compute with this memory format and these kernels."""
    if compute.memory_format == "channels_last":
        network.memory_format = torch.channels_last
    if compute.kernels == "fast":
        quicken(network)
    return network


class Watched:
    """Notes of one forward pass: which layer ran last, what it saw, and the deepest one.

    All that is known of the network are the types of its layers; and its deepest one, if given.
    """

    def __init__(self, net: nn.Module, deepest: nn.Module | None = None) -> None:
        layers = {n: m for n, m in net.named_modules() if isinstance(m, _ConvNd | nn.Linear)}
        convolutions = [m for m in layers.values() if isinstance(m, _ConvNd)]
        self._hooks = [m.register_forward_hook(self._noting(name)) for name, m in layers.items()]
        for module in convolutions if deepest is None else [deepest]:
            self._hooks.append(module.register_forward_hook(self._note_depth))
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

        return note

    def _note_depth(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if self._deepest is None or _depth(output) >= _depth(self._deepest):
            self._deepest = output

    @property
    def before_head(self) -> Tensor:
        """What the layer that ran last was given, an average over its positions."""
        assert self._before is not None  # a network without layers is refused before round 1
        return _averaged(self._before)

    @property
    def bottleneck(self) -> Tensor:
        """The deepest convolution, averaged; without one, what the head sees."""
        return self.before_head if self._deepest is None else _averaged(self._deepest)


@lru_cache(maxsize=16)
@torch.no_grad()
def decoder_of(spec: NetworkSpec, last_level: bool = False) -> frozenset[str]:
    """The modules of a segmenter's decoder, or of its last level; none if it has no decoder.

    Found by what runs: all layers after the last one whose picture is the smallest of all; for
    the last level, after the last one whose picture is smaller than the answer.
    """
    ran: list[tuple[str, int]] = []

    def noting(name: str) -> Callable[..., None]:
        return lambda _, __, output: ran.append((name, output.shape[2:].numel()))

    with torch.random.fork_rng(devices=[]):  # the weights do not matter, nor shall their draw
        net = build_network(spec).eval()
    for name, module in net.named_modules():
        if next(module.children(), None) is None:
            module.register_forward_hook(noting(name))
    logits = net(torch.zeros(1, spec.in_channels, spec.image_size, spec.image_size))
    full, smallest = logits.shape[2:].numel(), min(pixels for _, pixels in ran)
    if logits.dim() != 4 or smallest == full:
        return frozenset()
    below = full - 1 if last_level else smallest
    last = max(place for place, (_, pixels) in enumerate(ran) if pixels <= below)
    return frozenset(name for name, _ in ran[last + 1 :])


def _depth(x: Tensor) -> tuple[int, int]:
    """Fewest pixels, most channels."""
    return -x[0, 0].numel(), x.shape[1]


def _averaged(x: Tensor) -> Tensor:
    """One vector an image: convolutions have positions last, transformers before the channels."""
    if x.dim() == 4:
        return x.mean(dim=(2, 3))
    return x if x.dim() == 2 else x.mean(dim=tuple(range(1, x.dim() - 1)))
