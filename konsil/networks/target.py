"""Any network by the path of its class, with what it is built with beside it.

A path may come from a super model's folder or from a server, so nothing of it is called before it
is known to be a network's class. Its module is imported, as every `import` of it would do.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from typing import TYPE_CHECKING, Any

from torch import nn

from konsil.errors import ConfigError, suggestion

if TYPE_CHECKING:
    from konsil.networks.spec import NetworkSpec

# What constructors call the channels of the image, and those of the logits.
IN_CHANNELS = ("in_channels", "input_channels", "n_input_channels", "n_channels", "in_chans")
OUTPUTS = ("out_channels", "outputs", "num_classes", "n_classes", "classes")
IMAGE_SIZE = ("img_size", "image_size")


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
