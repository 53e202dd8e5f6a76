"""The networks that sites train, built from a specification that fits into a JSON file.

Raw images in [0, 1] go in, logits come out. Nothing here knows about training, so that a saved
super model needs only this package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor, nn

from konsil.errors import ConfigError, StateError
from konsil.networks.features import features
from konsil.networks.layers import NORMS, Classifier, PerImageNorm
from konsil.networks.resnet import resnet18
from konsil.networks.small import small
from konsil.networks.unet import ClassicUNet, bottleneck, residual_unet
from konsil.networks.vgg import vgg11, vgg11_pooled

__all__ = ["Network", "NetworkSpec", "PerImageNorm", "build_network", "check_spec"]


@dataclass(frozen=True)
class NetworkSpec:
    """Everything needed to build a network again; a super model's model.json holds it."""

    name: str
    in_channels: int
    outputs: int
    image_size: int
    norm: str | None = None  # instance, batch or group; None: the network's own default
    normalise: bool = False  # PerImageNorm as the first module
    # U-Nets: channels of the first level, which double four times; None: the network's own.
    # Not in the repr, by which initial weights are drawn: they outlive the field.
    width: int | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> NetworkSpec:
        """The specification that `to_json` wrote."""
        try:
            return cls(**data)
        except TypeError as error:
            raise StateError(
                f"network {data!r} is not a specification of this version of Konsil ({error}); "
                "save the model again with this version"
            ) from None


class Network(nn.Module):
    """A network with its own input normalisation.

    Parameter names are the same with and without normalisation, which has no parameters.
    """

    def __init__(self, net: nn.Module, normalise: bool) -> None:
        super().__init__()
        self.entry = PerImageNorm() if normalise else nn.Identity()
        self.net = net

    def forward(self, images: Tensor) -> Tensor:
        """Logits of raw images in [0, 1]."""
        logits: Tensor = self.net(self.entry(images))
        return logits

    def features(self, images: Tensor) -> Tensor:
        """What the head of a classifier sees, [B, features]."""
        if not isinstance(self.net, Classifier):
            raise ConfigError("features: a segmentation network has none; use a classifier")
        return self.net.features(self.entry(images))

    def with_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and of the same pass one vector an image: what a classifier's head sees, or
        the average over a U-Net's bottleneck.
        """
        if isinstance(self.net, Classifier):
            features = self.net.features(self.entry(images))
            return self.net.head(features), features
        seen: list[Tensor] = []
        hook = bottleneck(self.net).register_forward_hook(lambda *call: seen.append(call[2]))
        try:
            logits = self(images)
        finally:
            hook.remove()
        return logits, seen[0].mean(dim=(2, 3))


@dataclass(frozen=True)
class _Kind:
    """How a network is built, its own norm (None: it has no norm layers), how far it shrinks."""

    build: Callable[..., nn.Module]
    norm: str | None
    shrink: int
    segments: bool = False


_KINDS = {
    "unet": _Kind(residual_unet, "instance", 16, segments=True),
    "unet_classic": _Kind(ClassicUNet, "instance", 16, segments=True),
    "resnet18": _Kind(resnet18, "batch", 32),
    "vgg11": _Kind(vgg11, None, 32),
    "vgg11_pooled": _Kind(vgg11_pooled, None, 32),
    "small": _Kind(small, "group", 16),
    "features": _Kind(features, None, 16),
}


def build_network(spec: NetworkSpec) -> Network:
    """The network with random initial weights from torch's global generator."""
    check_spec(spec)
    kind = _KINDS[spec.name]
    options: dict[str, Any] = {} if kind.norm is None else {"norm": spec.norm or kind.norm}
    if spec.width is not None:
        options["width"] = spec.width
    return Network(kind.build(spec.in_channels, spec.outputs, **options), spec.normalise)


def check_spec(spec: NetworkSpec) -> None:
    """Refuse a network that cannot be built, or not for images of this size."""
    if spec.name not in _KINDS:
        raise ConfigError(f"network.name = {spec.name!r}: one of {', '.join(_KINDS)}")
    for key in ("in_channels", "outputs"):
        if getattr(spec, key) < 1:
            raise ConfigError(f"network {spec.name}: {key} = {getattr(spec, key)}: at least 1")
    if spec.width is not None and not _KINDS[spec.name].segments:
        raise ConfigError(f"network.width = {spec.width}: for U-Nets only; leave it out")
    _check_norm(spec)
    _check_size(spec)


def _check_norm(spec: NetworkSpec) -> None:
    if spec.norm is None:
        return
    if spec.norm not in NORMS:
        raise ConfigError(f"network.norm = {spec.norm!r}: one of {', '.join(NORMS)}")
    if _KINDS[spec.name].norm is None:
        raise ConfigError(
            f"network.norm = {spec.norm!r}: {spec.name} has no norm layers; leave norm out"
        )


def _check_size(spec: NetworkSpec) -> None:
    kind = _KINDS[spec.name]
    if kind.segments:
        if spec.image_size % kind.shrink or spec.image_size < 2 * kind.shrink:
            raise ConfigError(
                f"federation.image_size = {spec.image_size}: {spec.name} halves the image four "
                f"times; take a multiple of {kind.shrink}, at least {2 * kind.shrink}"
            )
        return
    # Instance norm, and batch norm of one image, need more than one pixel on the last grid.
    smallest = kind.shrink + ((spec.norm or kind.norm) in ("instance", "batch"))
    if spec.image_size < smallest:
        raise ConfigError(
            f"federation.image_size = {spec.image_size}: {spec.name} needs at least {smallest}"
        )
