"""A network that nobody here has seen is tried out before round 1: one image there and back."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from konsil.errors import ConfigError
from konsil.networks.build import Network, build_network
from konsil.networks.kinds import NETWORKS
from konsil.networks.spec import NetworkSpec
from konsil.networks.watch import Watched
from konsil.weights import BoundNetwork, head_module


@cache
def try_out(spec: NetworkSpec, segments: bool) -> None:
    """Build a class of one's own, train it on one image, and look at its logits and its weights.

    Networks that say how far they shrink an image are known, and not tried.
    """
    if not spec.is_target:
        kind = NETWORKS.find(spec.name, "network.name")
        segments = kind.segments
        if kind.shrink is not None:
            return
    with torch.random.fork_rng(devices=[]):  # nobody else's numbers may depend on this
        network = _built(spec)
        _check_weights(network, spec)
        _check_logits(network.train(), spec, segments, images=1)  # an epoch may end with one
        _check_logits(network.eval(), spec, segments, images=2)


def _built(spec: NetworkSpec) -> Network:
    try:
        return build_network(spec)
    except ConfigError:
        raise
    except Exception as error:
        raise _refused(spec, "cannot be built with these arguments", error) from None


def _check_weights(network: Network, spec: NetworkSpec) -> None:
    """Methods mix weights by the names of their entries, and keep heads and norm layers apart."""
    if not any(p.requires_grad for p in network.parameters()):
        raise ConfigError(f"{spec.key}: it has no parameter to train")
    try:
        head_module(network)
        BoundNetwork(network)
    except ConfigError as error:
        raise ConfigError(f"{spec.key}: {error}") from None
    except Exception as error:
        why = "its weights cannot be exchanged: every parameter and buffer must stand once in its "
        raise _refused(spec, f"{why}state_dict, shared or hidden ones do not", error) from None


def _check_logits(network: Network, spec: NetworkSpec, segments: bool, images: int) -> None:
    mode = "training" if network.training else "evaluation"
    size, what = spec.image_size, "image" if images == 1 else "images"
    given = f"{images} {what} of {spec.in_channels} x {size} x {size} in {mode}"
    try:
        with Watched(network) as watched:
            logits = network(torch.rand(images, spec.in_channels, size, size))
        _check_shape(logits, spec, (images, spec.outputs, *([size] * 2 if segments else [])))
        if network.training:
            logits.sum().backward()
    except ConfigError:
        raise
    except Exception as error:
        raise _refused(spec, f"it does not take {given}", error) from None
    if watched.last != head_module(network):
        raise ConfigError(
            f"{spec.key}: its head should be the convolution or linear layer that is defined last, "
            f"{head_module(network)}, but {watched.last} runs last; methods would cut at the wrong "
            "place"
        )


def _check_shape(logits: Tensor, spec: NetworkSpec, expected: tuple[int, ...]) -> None:
    if not isinstance(logits, Tensor):
        kind = type(logits).__name__
        raise ConfigError(f"{spec.key}: it gives a {kind}, and not one tensor of logits")
    if tuple(logits.shape) != expected:
        raise ConfigError(
            f"{spec.key}: it gives {list(logits.shape)}, this task needs logits of {list(expected)}"
        )


def _refused(spec: NetworkSpec, what: str, error: Exception) -> ConfigError:
    first = str(error).strip().splitlines()[:1]
    return ConfigError(f"{spec.key}: {what} ({': '.join([type(error).__name__, *first])})")
