"""What `konsil methods` prints: every method's traffic, work and settings, computed from itself."""

import inspect
import json
import re
import sys
from dataclasses import asdict, dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from konsil.config import MethodConfig, TaskConfig, TrainingConfig
from konsil.errors import ConfigError
from konsil.ingredients.context import Context
from konsil.ingredients.method import METHODS, Method, make_method, method_class
from konsil.networks import NetworkSpec
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
NEEDS = {"means": "means", "individual": "each model", "images": "all images"}
ROW = "{:<17} {:>7} {:>7} {:>5}  {:<12}  {}"  # 80 columns, but for the longest lists of models
LEFT = 38  # columns for `setting = default`


@dataclass(frozen=True)
class Setting:
    """One key of a method's block in the experiment file."""

    name: str
    default: Any  # None may be a value; `required` says if there is no default
    allowed: str
    description: str
    required: bool


@dataclass(frozen=True)
class Facts:
    """What there is to know of a method before it runs."""

    name: str
    paper: str
    summary: str
    needs: str  # means, or individual models, or all images
    models: list[str]  # who answers
    settings: list[Setting]
    gets: float | None  # by a site in round 1, in models; None: not defined
    sends: float | None
    work: float | None  # local, in units of FedAvg's
    remarks: list[str]


def print_methods(console: Console, name: str | None = None, as_json: bool = False) -> None:
    """All methods, or one in full; as text, or as JSON."""
    chosen = METHODS.all() if name is None else {name: method_class(MethodConfig(name=name))}
    with console.status("asking the methods"):
        facts = [facts_of(cls) for cls in chosen.values()]
    if as_json:
        print(json.dumps([asdict(f) for f in facts], indent=1))
    elif name is None:
        console.print(overview(facts), remarks(facts), settings_list(facts), highlight=False)
    else:
        console.print(in_full(facts[0], chosen[name]), highlight=False)


# What a method says of itself


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


# How it is printed


def overview(facts: list[Facts]) -> Group:
    """A line a method, and its paper below."""
    title = ROW.format("method", "gets", "sends", "work", "server needs", "models")
    lines = [Text(title, "underline")]
    for f in facts:
        needs = "nothing" if f.sends == 0 else NEEDS[f.needs]
        numbers = (_size(f.gets), _size(f.sends), "?" if f.work is None else _number(f.work))
        lines.append(Text(ROW.format(f.name, *numbers, needs, ", ".join(f.models)), "bold"))
        lines.append(Text(f"  {f.paper}", "dim"))
    return Group(*lines)


def _size(models: float | None) -> str:
    if models is None:
        return "-"
    return "nothing" if models == 0 else _number(models)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def remarks(facts: list[Facts]) -> Group:
    """What the numbers mean, and where they are not the whole truth."""
    size = reference().initial(NETWORK).layout.size
    legend = (
        "\ngets, sends: what a site receives and sends in a round, in models (1 is the default "
        f"U-Net's {size / 1e6:.2f} M values), with three sites and default settings. work: local "
        "training in units of FedAvg's, by definition. server needs: means of what sites send, or "
        "each site's own model."
    )
    lines = (Text(f"{f.name}: {remark}") for f in facts for remark in f.remarks)
    return Group(Text(legend), *lines)


def settings_list(facts: list[Facts]) -> Group:
    """Every method's settings: default, allowed values, what they mean."""
    parts: list[RenderableType] = [Text("\nSettings (method, setting = default, allowed)\n")]
    for f in facts:
        if f.settings:
            parts += [Text(f.name, style="bold"), settings_grid(f.settings)]
    none = [f.name for f in facts if not f.settings]
    if none:
        parts.append(Text(f"without settings: {', '.join(none)}"))
    return Group(*parts)


def settings_grid(settings: list[Setting]) -> RenderableType:
    """A line a setting; what is too long for it hangs below."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=LEFT, overflow="fold")
    grid.add_column(overflow="fold")
    for s in settings:
        default = "(required)" if s.required else json.dumps(s.default).strip('"')
        null = "null: " if s.description and default == "null" else ""
        words = "; ".join(filter(None, [s.allowed, f"{null}{s.description}"]))
        grid.add_row(f"{s.name} = {default}", words)
    return Padding(grid, (0, 0, 0, 2))


def in_full(facts: Facts, cls: type[Method]) -> Group:
    """One method: what its class and its file say, its numbers, its settings."""
    module = sys.modules[cls.__module__]
    parts: list[RenderableType] = [Text.assemble((facts.name, "bold"), f": {facts.paper}\n")]
    parts += [Text(f"{p}\n") for p in (*_paragraphs(cls), *_paragraphs(module))]
    parts += [overview([facts]), remarks([facts])]
    if facts.settings:
        parts += [Text("\nSettings, with their defaults\n"), settings_grid(facts.settings)]
        parts += [Text(f"\n{p}") for p in _paragraphs(cls.Settings)]
    return Group(*parts, Text(f"\n{module.__file__}", style="dim"))


def _paragraphs(documented: object) -> list[str]:
    """Of a docstring; those without indented lines (equations) may be wrapped."""
    return [
        block if re.search(r"^\s", block, re.MULTILINE) else block.replace("\n", " ")
        for block in (inspect.getdoc(documented) or "").split("\n\n")
        if block.strip()
    ]
