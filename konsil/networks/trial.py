"""A network that nobody here has seen is tried out before round 1: one image there and back."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

from konsil.errors import ConfigError
from konsil.networks.build import Network, Watched, build_network
from konsil.networks.spec import NetworkSpec, check_spec
from konsil.weights import BoundNetwork, head_module

NOT_EXCHANGED = (
    "its weights cannot be exchanged: every parameter and buffer must stand once in its "
    "state_dict, shared or hidden ones do not"
)


@cache
def try_out(spec: NetworkSpec, segments: bool) -> None:
    """Build a class of one's own, train it on one image, and look at its logits and its weights.

    Networks that say how far they shrink an image are known, and not tried.
    """
    if not spec.is_target:
        segments = spec.kind.segments
        if spec.kind.shrink is not None:
            return
    check_spec(spec)
    with torch.random.fork_rng(devices=[]):  # nobody else's numbers may depend on this
        with _refusing(spec, "cannot be built with these arguments"):
            network = build_network(spec)
        with _refusing(spec, NOT_EXCHANGED):
            _check_weights(network)
        _check_pass(network.train(), spec, segments, images=1)  # an epoch may end with one
        _check_pass(network.eval(), spec, segments, images=2)


@contextmanager
def _refusing(spec: NetworkSpec, what: str) -> Iterator[None]:
    """Whatever goes wrong is this network's fault: `what`, unless it is said already."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{spec.key}: {error}") from None
    except Exception as error:
        first = str(error).strip().splitlines()[:1]
        why = ": ".join([type(error).__name__, *first])
        raise ConfigError(f"{spec.key}: {what} ({why})") from None


def _check_weights(network: Network) -> None:
    """Methods mix weights by the names of their entries, and keep heads and norm layers apart."""
    if not any(p.requires_grad for p in network.parameters()):
        raise ConfigError("it has no parameter to train")
    head_module(network)
    BoundNetwork(network)


def _check_pass(network: Network, spec: NetworkSpec, segments: bool, images: int) -> None:
    size, mode = spec.image_size, "training" if network.training else "evaluation"
    given = f"{images} image{'s' * (images > 1)} of {spec.in_channels} x {size} x {size} in {mode}"
    with _refusing(spec, f"it does not take {given}"):
        with Watched(network) as watched:
            logits = network(torch.rand(images, spec.in_channels, size, size))
        _check_shape(logits, [images, spec.outputs, *([size] * 2 if segments else [])])
        if network.training:
            logits.sum().backward()
        if watched.last != head_module(network):
            raise ConfigError(
                "its head should be the convolution or linear layer that is defined last, "
                f"{head_module(network)}, but {watched.last} runs last; methods would cut at the "
                "wrong place"
            )


def _check_shape(logits: Tensor, expected: list[int]) -> None:
    if not isinstance(logits, Tensor):
        raise ConfigError(f"it gives a {type(logits).__name__}, and not one tensor of logits")
    if list(logits.shape) != expected:
        raise ConfigError(f"it gives {list(logits.shape)}, this task needs logits of {expected}")
