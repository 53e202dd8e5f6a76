"""A selector that looks at images through another network's first layers."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from konsil.networks.build import build_network
from konsil.networks.classifiers import Classifier, zeroed
from konsil.networks.layers import InstanceNorm
from konsil.networks.spec import NetworkSpec, network
from konsil.weights import Weights

CHANNELS = 80  # of the first convolutions: with more, more numbers travel and no site is found more
QUANTILES = (0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98)  # of the grey values of each raw channel


@network("encoder", segments=False, offered=False)
def encoder(in_channels: int, outputs: int, of: dict[str, Any]) -> Classifier:
    """The first convolutions of a network, the image's grey values, and one linear layer.

    `of`: that network's specification. Only the linear layer is for learning, and starts at zero.
    """
    body = EncoderFeatures(in_channels, NetworkSpec.from_json(of))
    return Classifier(body, zeroed(nn.Linear(body.size, outputs)))


class EncoderFeatures(nn.Module):
    """Means and deviations of the first convolutions' channels and of the raw image's, quantiles.

    A network that normalises its images does not see how bright and how rich in contrast they
    were, which tells sites apart: hence the raw image beside it.
    """

    def __init__(self, in_channels: int, spec: NetworkSpec) -> None:
        super().__init__()
        self.of = build_network(spec).requires_grad_(False)
        for norm in (m for m in self.of.modules() if isinstance(m, InstanceNorm)):
            norm.quick = True  # nobody asks a selector for the bits of the network it looks through
        self.layers, channels = first_convolutions(self.of, spec)
        self.size = 2 * channels + in_channels * (2 + len(QUANTILES))

    def forward(self, images: Tensor) -> Tensor:
        """[B, size] of images in [0, 1]."""
        found = [*_mean_and_deviation(images), _quantiles(images)]
        for seen in self._watch(images):
            found += _mean_and_deviation(seen)
        return torch.cat(found, dim=1)

    def _watch(self, images: Tensor) -> list[Tensor]:
        """What the first convolutions give; the rest of the network does not run."""
        if not self.layers:
            return []
        seen: dict[str, Tensor] = {}

        def note(name: str) -> Any:
            def hook(_: nn.Module, __: Any, output: Tensor) -> None:
                seen[name] = output
                if len(seen) == len(self.layers) and not torch.compiler.is_exporting():
                    raise _Enough

            return hook

        modules = dict(self.of.named_modules())
        hooks = [modules[name].register_forward_hook(note(name)) for name in self.layers]
        try:
            self.of(images)
        except _Enough:
            pass
        finally:
            for hook in hooks:
                hook.remove()
        return [seen[name] for name in self.layers]


class _Enough(Exception):
    """All that is wanted of a pass has been seen."""


def encoder_weights(spec: NetworkSpec, watched: Weights) -> Weights:
    """An encoder that looks through a network with these weights; its linear layer is zero."""
    result = Weights.of(build_network(spec))
    for entry in watched.layout.entries:
        result[f"net.body.of.{entry.name}"].copy_(watched[entry.name])
    return result


@torch.no_grad()
def first_convolutions(net: nn.Module, spec: NetworkSpec) -> tuple[list[str], int]:
    """The convolutions that run first, as many as have 80 channels together, but at least one."""
    ran: list[tuple[str, int]] = []

    def noting(name: str) -> Any:
        return lambda _, __, output: ran.append((name, output.shape[1]))

    named = [(name, m) for name, m in net.named_modules() if isinstance(m, _ConvNd)]
    hooks = [module.register_forward_hook(noting(name)) for name, module in named]
    training = net.training
    net.eval()(torch.zeros(1, spec.in_channels, spec.image_size, spec.image_size))
    net.train(training)
    for hook in hooks:
        hook.remove()
    names: list[str] = []
    total = 0
    for name, channels in ran:
        if names and total + channels > CHANNELS:
            break
        if name not in names:  # a layer may run twice
            names, total = [*names, name], total + channels
    return names, total


def _mean_and_deviation(x: Tensor) -> tuple[Tensor, Tensor]:
    """Over the positions: two values a channel.

    torch's own `std` is no more exact, and takes up to twenty times as long.
    """
    flat = x.flatten(2)
    mean = flat.mean(dim=2)
    squares = (flat - mean.unsqueeze(2)).square().sum(dim=2)
    return mean, (squares / (flat.shape[2] - 1)).sqrt()


def _quantiles(images: Tensor) -> Tensor:
    """[B, channels * quantiles], by sorting: the value at the nearest place."""
    ordered = _sorted(images.flatten(2))
    places = [round(q * (ordered.shape[2] - 1)) for q in QUANTILES]
    return ordered[:, :, places].flatten(1)


def _sorted(values: Tensor) -> Tensor:
    """By the last axis. numpy sorts with vector instructions, ten to thirty times as fast."""
    if values.device.type != "cpu" or torch.compiler.is_exporting():
        return values.sort(dim=-1).values
    return torch.from_numpy(np.sort(values.detach().numpy(), axis=-1))
