"""What `konsil methods` prints: every method's traffic, work and settings.

The methods say all of it themselves (`method_facts.py`), which takes the libraries that train:
seconds. What they said is kept in the cache folder, for as long as no line of Konsil's changes.
"""

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from konsil.config import usual_cache
from konsil.files import write_text

LIBRARIES = ("torch", "pydantic")  # that what is said may change with
GROUP = "konsil.methods"  # of entry points
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
    about: list[str]  # paragraphs, of its class and its file
    about_settings: list[str]
    file: str


@dataclass(frozen=True)
class Listing:
    """Methods, and how many values the network has that their traffic is counted in."""

    size: int
    facts: list[Facts]

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> "Listing":
        """The listing of `asdict`."""
        found = [f | {"settings": [Setting(**s) for s in f["settings"]]} for f in plain["facts"]]
        return cls(plain["size"], [Facts(**f) for f in found])


def print_methods(
    console: Console, name: str | None = None, as_json: bool = False, plugged: bool = False
) -> None:
    """All methods, or one in full; as text, or as JSON. `plugged`: some are a plugin's."""
    with console.status("asking the methods"):
        listing = _listing(name, plugged)
    if as_json:
        print(json.dumps([asdict(f) for f in listing.facts], indent=1))
    elif name is None:
        facts = listing.facts
        console.print(overview(facts), remarks(listing), settings_list(facts), highlight=False)
    else:
        console.print(in_full(listing), highlight=False)


# Asked, or known from the time before


def _listing(name: str | None, plugged: bool) -> Listing:
    """From the cache where all that could be said is Konsil's own."""
    if plugged or entry_points(group=GROUP):
        return _asked(name)
    known = known_listing()
    if name is None:
        return known
    of_it = [f for f in known.facts if f.name == name]
    return Listing(known.size, of_it) if of_it else _asked(name)  # which says that there is none


def _asked(name: str | None) -> Listing:
    from konsil.report import method_facts

    return method_facts.listing(name)


def known_listing() -> Listing:
    """What all methods say, asked only if Konsil is not what it was when they were last asked."""
    path = usual_cache() / "methods" / f"{sources_hash()}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        return Listing.from_json(json.loads(path.read_text(encoding="utf-8")))
    listing = _asked(None)
    with suppress(OSError):  # a cache that cannot be written costs time and nothing else
        write_text(path, json.dumps(asdict(listing)))
    return listing


def sources_hash() -> str:
    """Of every line of Konsil's, where it lies, and of the libraries' versions."""
    folder = Path(__file__).parent.parent
    digest = hashlib.sha256(json.dumps([str(folder), *map(version, LIBRARIES)]).encode())
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:32]


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


def remarks(listing: Listing) -> Group:
    """What the numbers mean, and where they are not the whole truth."""
    legend = (
        "\ngets, sends: what a site receives and sends in a round, in models (1 is the default "
        f"U-Net's {listing.size / 1e6:.2f} M values), with three sites and default settings. work: "
        "local training in units of FedAvg's, by definition. server needs: means of what sites "
        "send, or each site's own model."
    )
    lines = (Text(f"{f.name}: {remark}") for f in listing.facts for remark in f.remarks)
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


def in_full(listing: Listing) -> Group:
    """One method: what its class and its file say, its numbers, its settings."""
    [facts] = listing.facts
    parts: list[RenderableType] = [Text.assemble((facts.name, "bold"), f": {facts.paper}\n")]
    parts += [Text(f"{paragraph}\n") for paragraph in facts.about]
    parts += [overview([facts]), remarks(listing)]
    if facts.settings:
        parts += [Text("\nSettings, with their defaults\n"), settings_grid(facts.settings)]
        parts += [Text(f"\n{paragraph}") for paragraph in facts.about_settings]
    return Group(*parts, Text(f"\n{facts.file}", style="dim"))
