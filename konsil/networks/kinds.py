"""Networks by name: a builder a name, and what must be known of it before it is built."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from torch import nn

from konsil.errors import ConfigError
from konsil.registry import Registry

if TYPE_CHECKING:  # a saved super model needs no experiment file
    from konsil.config import Targets

B = TypeVar("B", bound=Callable[..., nn.Module])
USUAL: dict[Targets, str] = {"masks": "unet", "classes": "resnet18"}  # if none is named


@dataclass(frozen=True)
class Kind:
    """How a network is built, and for which images."""

    build: Callable[..., nn.Module]  # (in_channels, outputs, and settings of its own by name)
    segments: bool  # a value a pixel; otherwise one an image
    norm: str | None  # its own norm, for a builder that takes `norm`
    shrink: int | None  # image size over that of its smallest grid; None: it is tried out
    deepest: Callable[[nn.Module], nn.Module] | None  # its bottleneck; None: it is looked for

    def settings(self) -> dict[str, inspect.Parameter]:
        """What an experiment may say of it: the builder's arguments after the first two."""
        return dict(list(inspect.signature(self.build).parameters.items())[2:])


def _check(name: str, kind: Kind) -> None:
    parameters = list(inspect.signature(kind.build).parameters)
    if parameters[:2] != ["in_channels", "outputs"]:
        raise ConfigError(
            f"network {name}: {kind.build.__name__} begins with ({', '.join(parameters)}); the "
            "first two arguments of a network are in_channels and outputs"
        )
    if ("norm" in parameters) != (kind.norm is not None):
        raise ConfigError(
            f"network {name}: norm = {kind.norm!r} in @network; a builder with an argument `norm` "
            "says there which norm is its own, and no other does"
        )


NETWORKS: Registry[Kind] = Registry("network", "konsil.networks", _check)


def network(
    name: str,
    *,
    segments: bool,
    norm: str | None = None,
    shrink: int | None = None,
    deepest: Callable[[nn.Module], nn.Module] | None = None,
) -> Callable[[B], B]:
    """Register a builder, a function or a class, under a name that no other network has."""

    def register(build: B) -> B:
        NETWORKS.add(name, Kind(build, segments, norm, shrink, deepest), build)
        return build

    return register
