"""A network as plain data: enough to build it again, and checked before it is built."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from konsil.errors import ConfigError, StateError, suggestion
from konsil.networks.kinds import NETWORKS, USUAL, Kind
from konsil.networks.layers import NORMS
from konsil.networks.target import arguments_of, target_class

if TYPE_CHECKING:
    from konsil.config import NetworkConfig, Targets


@dataclass(frozen=True)
class NetworkSpec:
    """Everything needed to build a network again; a super model's model.json holds it."""

    name: str  # of a registered network, or the path of a class: package.module.Class
    in_channels: int
    outputs: int
    image_size: int
    norm: str | None = None  # instance, batch or group; None: the network's own default
    normalise: bool = False  # PerImageNorm as the first module
    # Not in the repr, by which initial weights are drawn: they outlive these fields.
    # U-Nets: channels of the first level, which double four times; None: the network's own.
    width: int | None = field(default=None, repr=False)
    # What else a network of one's own, or a class, is built with.
    arguments: dict[str, Any] = field(default_factory=dict, repr=False, hash=False)

    @property
    def is_target(self) -> bool:
        """Whether it is a class by its path; names have no dots."""
        return "." in self.name

    @property
    def key(self) -> str:
        """Where the experiment file names it, for messages."""
        return f"network.{'target' if self.is_target else 'name'} = {self.name!r}"

    def settings(self) -> dict[str, Any]:
        """The block `network` of an experiment file that gives this network."""
        if self.is_target:
            return {"target": self.name, **self.arguments}
        return {"name": self.name, "norm": self.norm, "width": self.width, **self.arguments}

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary."""
        plain = asdict(self)
        return plain if self.arguments else {k: v for k, v in plain.items() if k != "arguments"}

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


def network_spec(
    config: NetworkConfig,
    targets: Targets,
    *,
    in_channels: int,
    outputs: int,
    image_size: int,
    normalise: bool,
) -> NetworkSpec:
    """The network that an experiment file means, for a task with these targets."""
    name = config.target or config.name or USUAL[targets]
    plain = NetworkSpec(name, in_channels, outputs, image_size, normalise=normalise)
    settings = config.settings
    if plain.is_target:
        return replace(plain, arguments=settings)
    _check_fits(name, targets)
    norm, width = settings.pop("norm", None), settings.pop("width", None)
    return replace(plain, norm=norm, width=width, arguments=settings)


def _check_fits(name: str, targets: Targets) -> None:
    segments = targets == "masks"
    if _kind(name).segments != segments:
        fitting = [n for n, kind in NETWORKS.all().items() if kind.segments == segments]
        raise ConfigError(
            f"network.name = {name!r}: not for a task of {targets}; choose one of "
            f"{', '.join(fitting)}"
        )


def _kind(name: str) -> Kind:
    return NETWORKS.find(name, "network.name")


def check_spec(spec: NetworkSpec) -> None:
    """Refuse a network that cannot be built, or not for images of this size."""
    for key in ("in_channels", "outputs"):
        if getattr(spec, key) < 1:
            raise ConfigError(f"network {spec.name}: {key} = {getattr(spec, key)}: at least 1")
    if spec.is_target:
        target_arguments(spec)
        return
    kind = _kind(spec.name)
    _check_settings(spec, kind)
    _check_norm(spec, kind)
    _check_size(spec, kind)


def target_arguments(spec: NetworkSpec) -> dict[str, Any]:
    """All that the class of a target is built with."""
    shape = spec.in_channels, spec.outputs, spec.image_size
    return arguments_of(target_class(spec.name), spec.arguments, *shape)


def _check_settings(spec: NetworkSpec, kind: Kind) -> None:
    takes = kind.settings()
    for key in (*spec.arguments, *(["width"] if spec.width is not None else [])):
        if key not in takes:
            hint = suggestion(key, ["name", *takes])
            raise ConfigError(f"network.{key}: {spec.name} has no such setting; {hint}")
    if spec.width is not None and (type(spec.width) is not int or spec.width < 1):
        raise ConfigError(f"network.width = {spec.width!r}: must be a whole number, at least 1")


def _check_norm(spec: NetworkSpec, kind: Kind) -> None:
    if spec.norm is None:
        return
    if kind.norm is None:
        raise ConfigError(
            f"network.norm = {spec.norm!r}: {spec.name} has no norm layers; leave norm out"
        )
    if spec.norm not in NORMS:
        raise ConfigError(f"network.norm = {spec.norm!r}: one of {', '.join(NORMS)}")


def _check_size(spec: NetworkSpec, kind: Kind) -> None:
    if kind.shrink is None:
        return
    if kind.segments:
        if spec.image_size % kind.shrink or spec.image_size < 2 * kind.shrink:
            raise ConfigError(
                f"federation.image_size = {spec.image_size}: {spec.name} makes images "
                f"{kind.shrink} times smaller; take a multiple of {kind.shrink}, at least "
                f"{2 * kind.shrink}"
            )
        return
    # Instance norm, and batch norm of one image, need more than one pixel on the last grid.
    smallest = kind.shrink + ((spec.norm or kind.norm) in ("instance", "batch"))
    if spec.image_size < smallest:
        raise ConfigError(
            f"federation.image_size = {spec.image_size}: {spec.name} needs at least {smallest}"
        )
