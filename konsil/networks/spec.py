"""Networks by name or by the path of a class, as plain data that is checked before it is built.

A path may come from a super model's folder or from a server, so nothing of it is called before it
is known to be a network's class. Its module is imported, as every `import` of it would do.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from konsil.errors import ConfigError, StateError, suggestion
from konsil.networks.layers import NORMS
from konsil.registry import Registry

if TYPE_CHECKING:  # a saved super model needs no experiment file
    from konsil.config import NetworkConfig, Targets

B = TypeVar("B", bound=Callable[..., nn.Module])
USUAL: dict[Targets, str] = {"masks": "unet", "classes": "resnet18"}  # if none is named
# What constructors call the channels of the image, and those of the logits.
IN_CHANNELS = ("in_channels", "input_channels", "n_input_channels", "n_channels", "in_chans")
OUTPUTS = ("out_channels", "outputs", "num_classes", "n_classes", "classes")
IMAGE_SIZE = ("img_size", "image_size")


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

    @property
    def required(self) -> list[str]:
        """Those of them that have no value of their own: it is not built by its name alone."""
        given = {"norm"}  # by the specification
        settings = self.settings().items()
        return [n for n, s in settings if s.default is s.empty and n not in given]


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
    offered: bool = True,
) -> Callable[[B], B]:
    """Register a builder, a function or a class, under a name that no other network has.

    What is not `offered` is Konsil's own, and listed nowhere.
    """

    def register(build: B) -> B:
        NETWORKS.add(name, Kind(build, segments, norm, shrink, deepest), build, offered)
        return build

    return register


@dataclass(frozen=True)
class NetworkSpec:
    """Everything needed to build a network again; a super model's model.json holds it."""

    name: str  # of a registered network, or the path of a class: package.module.Class
    in_channels: int
    outputs: int
    image_size: int
    norm: str | None = None  # one of NORMS; None: the network's own default
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
    def kind(self) -> Kind:
        """The registered network of its name."""
        return NETWORKS.find(self.name, "network.name")

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
        """Plain data, as model.json holds it."""
        return {k: v for k, v in asdict(self).items() if k != "arguments" or v}

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
    segments = targets == "masks"
    if plain.kind.segments != segments:
        fitting = networks_for(targets)
        raise ConfigError(
            f"network.name = {name!r}: not for a task of {targets}; choose one of "
            f"{', '.join(fitting)}"
        )
    norm, width = settings.pop("norm", None), settings.pop("width", None)
    return replace(plain, norm=norm, width=width, arguments=settings)


def networks_for(targets: Targets) -> list[str]:
    """The names that an experiment may give for a task with these targets."""
    segments = targets == "masks"
    return [name for name, kind in NETWORKS.all().items() if kind.segments == segments]


def check_spec(spec: NetworkSpec) -> None:
    """Refuse a network that cannot be built, or not for images of this size."""
    for key in ("in_channels", "outputs"):
        if getattr(spec, key) < 1:
            raise ConfigError(f"network {spec.name}: {key} = {getattr(spec, key)}: at least 1")
    if spec.is_target:
        arguments_of(target_class(spec.name), spec)
    else:
        _check_settings(spec)
        _check_size(spec)


def _check_settings(spec: NetworkSpec) -> None:
    takes = spec.kind.settings()
    for key in (*spec.arguments, *(["width"] if spec.width is not None else [])):
        if key not in takes:
            hint = suggestion(key, ["name", *takes])
            raise ConfigError(f"network.{key}: {spec.name} has no such setting; {hint}")
    missing = [key for key in spec.kind.required if key not in (*spec.arguments, "width")]
    if missing:
        raise ConfigError(f"network.{missing[0]}: missing; {spec.name} is not built without it")
    if spec.width is not None and (type(spec.width) is not int or spec.width < 1):
        raise ConfigError(f"network.width = {spec.width!r}: must be a whole number, at least 1")
    if spec.norm is not None and spec.kind.norm is None:
        raise ConfigError(
            f"network.norm = {spec.norm!r}: {spec.name} has no norm layers; leave norm out"
        )
    if spec.norm not in (None, *NORMS):
        raise ConfigError(f"network.norm = {spec.norm!r}: one of {', '.join(NORMS)}")


def _check_size(spec: NetworkSpec) -> None:
    size, kind, shrink = spec.image_size, spec.kind, spec.kind.shrink
    if shrink is None:
        return
    if kind.segments:
        if size % shrink or size < 2 * shrink:
            raise ConfigError(
                f"federation.image_size = {size}: {spec.name} makes images {shrink} times smaller; "
                f"take a multiple of {shrink}, at least {2 * shrink}"
            )
        return
    # Instance norm, and batch norm of one image, need more than one pixel on the last grid.
    smallest = shrink + ((spec.norm or kind.norm) in ("instance", "instance_affine", "batch"))
    if size < smallest:
        raise ConfigError(f"federation.image_size = {size}: {spec.name} needs at least {smallest}")


# --- any class by its path ----------------------------------------------------------------------


def target_class(path: str) -> type[nn.Module]:
    """The class at a path; it must be a network's."""
    where = f"network.target = {path!r}"
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", path):
        raise ConfigError(f"{where}: not the path of a class, package.module.Class")
    home, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(home)
    except Exception as error:  # whatever its import runs into
        raise ConfigError(
            f"{where}: {home} cannot be imported ({type(error).__name__}: {error}); mend the path, "
            "or install what it needs"
        ) from None
    found = getattr(module, name, None)
    if not inspect.isclass(found) or not issubclass(found, nn.Module):
        raise ConfigError(f"{where}: {_what_instead(module, name)}")
    return found


def _what_instead(module: Any, name: str) -> str:
    found = inspect.getmembers(module, inspect.isclass)
    classes = [name for name, cls in found if issubclass(cls, nn.Module)]
    close = difflib.get_close_matches(name, classes, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    if not hasattr(module, name):
        return f"{module.__name__} has no {name}{hint}"
    return f"it is no class of networks (a subclass of torch.nn.Module){hint}"


def arguments_of(cls: type[nn.Module], spec: NetworkSpec) -> dict[str, Any]:
    """What was given, and what follows from the federation and is not given."""
    signature = inspect.signature(cls)
    takes = signature.parameters
    known = {
        **dict.fromkeys(IN_CHANNELS, spec.in_channels),
        **dict.fromkeys(OUTPUTS, spec.outputs),
        **dict.fromkeys(IMAGE_SIZE, spec.image_size),
        "spatial_dims": 2,  # MONAI's networks are for two dimensions and for three
    }
    takes_all = any(one.kind is one.VAR_KEYWORD for one in takes.values())
    for key in spec.arguments:
        if key not in takes and not takes_all:
            hint = suggestion(key, ["target", *takes])
            raise ConfigError(f"network.{key}: {cls.__name__} has no such argument; {hint}")
    filled = {name: value for name, value in known.items() if name in takes} | spec.arguments
    try:
        signature.bind(**filled)
    except TypeError as error:
        raise ConfigError(
            f"network.target: {cls.__name__} is built with more ({error}); give it beside target"
        ) from None
    return filled
