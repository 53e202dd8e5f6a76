"""What `konsil methods` prints: every method's traffic, work and settings, computed from itself."""

from __future__ import annotations

import inspect
import json
import re
import sys
from dataclasses import asdict, dataclass, field
from functools import cache
from types import UnionType
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
# The bounds of pydantic's fields, in words.
LOW = {"gt": "above", "ge": "at least"}
HIGH = {"lt": "to below", "le": "to"}
TYPES: dict[Any, str] = {
    int: "a whole number", float: "a number", str: "a text", dict: "a block of keys",
    list: "a list", tuple: "a list",
}  # fmt: skip
LEFT = 38  # columns for `setting = default`


@dataclass(frozen=True)
class Setting:
    """One key of a method's block in the experiment file."""

    name: str
    default: Any  # None may be a value; `required` says if there is no default
    allowed: str
    description: str = ""
    required: bool = False

    @property
    def value(self) -> str:
        """The default as one writes it into the file."""
        return "(required)" if self.required else json.dumps(self.default).strip('"')


@dataclass(frozen=True)
class Facts:
    """What there is to know of a method before it runs."""

    name: str
    paper: str
    summary: str
    needs: str  # means, or individual models, or all images
    models: list[str]  # who answers
    settings: list[Setting]
    gets: float | None = None  # by a site in round 1, in models; None: not defined
    sends: float | None = None
    work: float | None = None  # local, in units of FedAvg's
    remarks: list[str] = field(default_factory=list)


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

    def initial(self, spec: NetworkSpec) -> Weights:
        """As in a run."""
        return _initial(spec)


@cache
def _initial(spec: NetworkSpec) -> Weights:
    return Context.initial(reference(), spec)


@cache
def reference() -> Reference:
    """Three sites with one structure to find, and every default in force."""
    task = make_task(TaskConfig(), ["structure"])
    # twice as many images to train with as to validate, as the default split has it
    train, val = (dict.fromkeys(SITES, count) for count in (200, 100))
    return Reference(
        NETWORK,
        task,
        TrainingConfig(),
        SITES,
        rounds=100,
        seed=0,
        images=train,
        validation=val,
    )


def facts_of(cls: type[Method]) -> Facts:
    """What a method is, and what it costs in the reference federation."""
    known: dict[str, Any] = {
        "name": cls.name,
        "paper": cls.paper,
        "summary": (inspect.getdoc(cls) or "").split("\n")[0],
        "needs": "images" if cls.pooled else cls.needs,
        "settings": [_setting(name, field) for name, field in cls.Settings.model_fields.items()],
        "remarks": [cls.travels] if cls.travels else [],
    }
    try:
        method = make_method(MethodConfig(name=cls.name), reference())
    except ConfigError as error:  # a method need not fit this federation, or have all defaults
        return Facts(**known | {"models": ["?"], "remarks": [*known["remarks"], str(error)]})
    known["models"] = [*method.shared_roles, *method.private_roles]
    known["models"] += ["super"] if cls.super_model else []
    gets, sends = (None, None) if cls.pooled else traffic(method)
    return Facts(**known, gets=gets, sends=sends, work=method.work())


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
    if get_origin(annotation) in (Union, UnionType):
        kinds = [a for a in get_args(annotation) if a is not type(None)]
        return " or ".join(_allowed(kind, metadata) for kind in kinds)
    if get_origin(annotation) is Literal:
        return ", ".join(map(str, get_args(annotation)))
    if annotation is bool:
        return "true, false"
    kind, bounds = TYPES.get(get_origin(annotation) or annotation, ""), _bounds(metadata)
    return bounds if annotation is float and bounds else f"{kind} {bounds}".strip()


def _bounds(metadata: list[Any]) -> str:
    """The range of a number, in words."""
    found = {k: getattr(m, k) for m in metadata for k in (*LOW, *HIGH) if hasattr(m, k)}
    low = next((f"{words} {found[k]:g}" for k, words in LOW.items() if k in found), "")
    high = next((f"{words} {found[k]:g}" for k, words in HIGH.items() if k in found), "")
    if low and high:
        low = low.replace("at least", "from")
    return f"{low} {high}".strip()


# How it is printed


def overview(facts: list[Facts]) -> Group:
    """A line a method, and its paper below."""
    lines = [Text(_row("method", "gets", "sends", "work", "server needs", "models"), "underline")]
    for f in facts:
        sizes = (_size(f.gets), _size(f.sends), _number(f.work))
        lines.append(Text(_row(f.name, *sizes, _needs(f), ", ".join(f.models)), "bold"))
        lines.append(Text(f"  {f.paper}", "dim"))
    return Group(*lines)


def _row(name: str, gets: str, sends: str, work: str, needs: str, models: str) -> str:
    """Below 80 columns, but for the longest lists of models."""
    return f"{name:<17} {gets:>7} {sends:>7} {work:>5}  {needs:<12}  {models}"


def _needs(facts: Facts) -> str:
    return "nothing" if facts.sends == 0 else NEEDS[facts.needs]


NEEDS = {"means": "means", "individual": "each model", "images": "all images"}


def remarks(facts: list[Facts]) -> Group:
    """What the numbers mean, and where they are not the whole truth."""
    size = reference().initial(NETWORK).layout.size
    legend = (
        "gets, sends: what a site receives and sends in a round, in models (1 is the default "
        f"U-Net's {size / 1e6:.2f} M values), with three sites and default settings. work: local "
        "training in units of FedAvg's, by definition. server needs: means of what sites send, or "
        "each site's own model."
    )
    lines: list[RenderableType] = [Text(), Text(legend)]
    lines += [Text(f"{f.name}: {remark}") for f in facts for remark in f.remarks]
    return Group(*lines)


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
        meaning = f"null: {s.description}" if s.value == "null" and s.description else s.description
        words = "; ".join(text for text in (s.allowed, meaning) if text)
        grid.add_row(f"{s.name} = {s.value}", words)
    return Padding(grid, (0, 0, 0, 2))


def in_full(facts: Facts, cls: type[Method]) -> Group:
    """One method: what its class and its file say, its numbers, its settings."""
    module = sys.modules[cls.__module__]
    parts: list[RenderableType] = [Text.assemble((facts.name, "bold"), f": {facts.paper}"), Text()]
    for text in (inspect.getdoc(cls), inspect.getdoc(module)):
        parts += [Text(paragraph + "\n") for paragraph in _paragraphs(text or "")]
    parts += [overview([facts]), remarks([facts])]
    if facts.settings:
        parts += [Text("\nSettings, with their defaults\n"), settings_grid(facts.settings)]
        parts += [Text(f"\n{p}") for p in _paragraphs(inspect.getdoc(cls.Settings) or "")]
    parts.append(Text(f"\n{module.__file__}", style="dim"))
    return Group(*parts)


def _paragraphs(text: str) -> list[str]:
    """Paragraphs that may be wrapped; those with indented lines (equations) as they are."""
    return [
        block if re.search(r"^\s", block, re.MULTILINE) else block.replace("\n", " ")
        for block in text.split("\n\n")
        if block.strip()
    ]


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f}".rstrip("0").rstrip(".")


def _size(value: float | None) -> str:
    if value is None:
        return "-"
    return "nothing" if value == 0 else _number(value)
