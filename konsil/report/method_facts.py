"""What a method says of itself: its traffic, work and settings, computed from the method.

This imports all that training needs. `methods.py`, which prints it, does so only if it must.
"""

import inspect
import json
import re
import sys
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from konsil.config import MethodConfig, TaskConfig, TrainingConfig
from konsil.errors import ConfigError
from konsil.ingredients.context import Context
from konsil.ingredients.method import METHODS, Method, make_method, method_class
from konsil.networks import NetworkSpec
from konsil.report.methods import Facts, Listing, Setting
from konsil.tasks import make_task
from konsil.weights import Weights

SITES = ("one", "two", "three")
NETWORK = NetworkSpec("unet", in_channels=3, outputs=1, image_size=64, normalise=True)
# The bounds of pydantic's fields, in words; with two of them "at least" is "from".
BOUNDS = {"gt": "above", "ge": "at least", "lt": "to below", "le": "to"}
TYPES: dict[Any, str] = {
    int: "a whole number", float: "a number", str: "a text", dict: "a block of keys",
    list: "a list", tuple: "a list",
}  # fmt: skip


def listing(name: str | None = None) -> Listing:
    """All methods, or one."""
    chosen = METHODS.all().values() if name is None else [method_class(MethodConfig(name=name))]
    size = reference().initial(NETWORK).layout.size
    return Listing(size, [facts_of(cls) for cls in chosen])


class Reference(Context):
    """A context whose initial weights are drawn once for all methods: that takes the time."""

    def drawn(self, spec: NetworkSpec) -> Weights:
        """As in a run."""
        return _drawn(spec)


@cache
def _drawn(spec: NetworkSpec) -> Weights:
    return Context.drawn(reference(), spec)


@cache
def reference() -> Reference:
    """Three sites with one structure to find, and every default in force."""
    task = make_task(TaskConfig(), ["structure"])
    # twice as many images to train with as to validate, as the default split has it
    train, val = (dict.fromkeys(SITES, count) for count in (200, 100))
    return Reference(NETWORK, task, TrainingConfig(), SITES, 100, 0, train, val)


def facts_of(cls: type[Method]) -> Facts:
    """What a method is, and what it costs in the reference federation."""
    remarks = [cls.travels] if cls.travels else []
    module = sys.modules[cls.__module__]
    models, gets, sends, work = ["?"], None, None, None
    try:
        method = make_method(MethodConfig(name=cls.name), reference())
    except ConfigError as error:  # a method need not fit this federation, or have all defaults
        remarks.append(str(error))
    else:
        models = [*method.shared_roles, *method.private_roles, *["super"] * cls.super_model]
        work = method.work()
        if not cls.pooled:
            gets, sends = traffic(method)
    return Facts(
        name=cls.name,
        paper=cls.paper,
        summary=(inspect.getdoc(cls) or "").split("\n")[0],
        needs="images" if cls.pooled else cls.needs,
        models=models,
        settings=[_setting(name, field) for name, field in cls.Settings.model_fields.items()],
        gets=gets,
        sends=sends,
        work=work,
        remarks=remarks,
        about=[*_paragraphs(cls), *_paragraphs(module)],
        about_settings=_paragraphs(cls.Settings),
        file=str(module.__file__),
    )


def traffic(method: Method) -> tuple[float, float]:
    """What a site gets and sends in round 1, in sizes of the network."""
    shared = method.initial_parts()
    model = reference().initial(NETWORK).layout.size
    down = max(sum(p.layout.size for p in method.sent(s, shared).values()) for s in SITES)
    up = sum(layout.size for layout in method.uploads(shared).values())
    return down / model, up / model


def _setting(name: str, field: FieldInfo) -> Setting:
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    return Setting(
        name=field.alias or name,
        default=json.loads(json.dumps(default, default=str)),
        allowed=_allowed(field.annotation, field.metadata),
        description=field.description or "",
        required=field.is_required(),
    )


def _allowed(annotation: Any, metadata: list[Any]) -> str:
    """The values that a setting takes, in words."""
    kinds = get_args(annotation)
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(_allowed(kind, metadata) for kind in kinds if kind is not NoneType)
    if get_origin(annotation) is Literal:
        return ", ".join(map(str, kinds))
    if annotation is bool:
        return "true, false"
    found = [(k, getattr(m, k)) for k in BOUNDS for m in metadata if hasattr(m, k)]
    bounds = " ".join(f"{BOUNDS[k]} {value:g}" for k, value in found)
    if len(found) > 1:
        bounds = bounds.replace("at least", "from")
    kind = TYPES.get(get_origin(annotation) or annotation, "")
    return bounds if annotation is float and bounds else f"{kind} {bounds}".strip()


def _paragraphs(documented: object) -> list[str]:
    """Of a docstring; those without indented lines (equations) may be wrapped."""
    return [
        block if re.search(r"^\s", block, re.MULTILINE) else block.replace("\n", " ")
        for block in (inspect.getdoc(documented) or "").split("\n\n")
        if block.strip()
    ]
