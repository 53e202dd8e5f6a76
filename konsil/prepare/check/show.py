"""The result of a check on a terminal: facts as tables, then errors, then warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from konsil.data.findings import paragraph
from konsil.data.sources import SPLITS
from konsil.prepare.check import CheckResult, Problem
from konsil.prepare.check.facts import SiteFacts, Spacing

NOTHING = "–"
VALUES_SHOWN = 6
NAME_WIDTH = 24  # columns of a site's name before it is folded
Cell = Callable[[SiteFacts], str]


def print_check(console: Console, result: CheckResult) -> None:
    """Everything that a person should know, the most important thing last."""
    for title, columns in _tables(result):
        console.print(Text(title, "bold"))
        console.print(_table(columns, result.sites))
        console.print()
    for problem in result.errors:
        _print_error(console, problem)
    for note in result.warnings:
        console.print(_hanging(Text("warning:", "bold yellow"), Text(note.text)))
    console.print()
    console.print(_closing(result))


def _tables(result: CheckResult) -> Iterable[tuple[str, dict[str, Cell]]]:
    facts = list(result.sites.values())
    if not any(own.images for own in facts):
        return
    volumes = any(own.volumes for own in facts)
    known = any(own.patients_known for own in facts)
    yield "images" + (" (patients)" if known else ""), _counts(volumes)
    yield "files", _files(volumes)
    if any(own.areas for own in facts):
        yield "masks: the mean part of an image that a structure covers", _masks(result.labels)
    if any(own.classes for own in facts):
        names = dict.fromkeys(name for own in facts for name in own.classes)
        yield "classes", {name: _class(name) for name in names}


def _table(columns: Mapping[str, Cell], sites: Mapping[str, SiteFacts]) -> Table:
    table = Table(header_style="dim", box=None, padding=(0, 2, 0, 0))
    longest = max(map(len, sites))
    table.add_column("  site", overflow="fold", min_width=2 + min(longest, NAME_WIDTH))
    for name in columns:
        table.add_column(Text(name), justify="right", overflow="fold")
    for site, own in sites.items():
        table.add_row(Text(f"  {site}"), *(Text(cell(own)) for cell in columns.values()))
    return table


# --- cells --------------------------------------------------------------------------------------


def _counts(volumes: bool) -> dict[str, Cell]:
    columns: dict[str, Cell] = {"images": lambda own: str(own.images)}
    if volumes:
        columns["volumes"] = lambda own: str(own.volumes)
    columns["patients"] = lambda own: str(own.patients) if own.patients_known else "not given"
    return columns | {split: _split(split) for split in SPLITS}


def _split(split: str) -> Cell:
    def cell(own: SiteFacts) -> str:
        if own.splits is None:
            return NOTHING
        images, patients = (own.splits[split][what] for what in ("images", "patients"))
        return f"{images} ({patients})" if own.patients_known else str(images)

    return cell


def _files(volumes: bool) -> dict[str, Cell]:
    columns: dict[str, Cell] = {"size": _size}
    if volumes:
        columns["spacing in mm"] = _spacing
    columns["format"] = lambda own: _several(own.formats)
    columns["pixels"] = lambda own: _several(own.pixels)
    columns["intensities"] = _intensities
    return columns


def _size(own: SiteFacts) -> str:
    if own.size is None or own.smallest is None or own.largest is None:
        return NOTHING
    if own.smallest == own.largest:
        return _by(own.size)
    return f"{_by(own.smallest)} to {_by(own.largest)}"


def _by(numbers: Sequence[float]) -> str:
    return " x ".join(f"{number:.3g}" if number < 100 else f"{number:.0f}" for number in numbers)


def _spacing(own: SiteFacts) -> str:
    if own.spacing is None or own.finest is None or own.coarsest is None:
        return NOTHING
    if _rounded(own.finest) == _rounded(own.coarsest):
        return _by(own.spacing)
    return f"{_by(own.finest)} to {_by(own.coarsest)}"


def _rounded(spacing: Spacing) -> tuple[float, ...]:
    return tuple(round(number, 2) for number in spacing)


def _several(counts: Mapping[str, int]) -> str:
    """One kind by its name, several with how many there are of each."""
    if len(counts) < 2:
        return next(iter(counts), NOTHING)
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _intensities(own: SiteFacts) -> str:
    return NOTHING if own.low is None else f"{own.low:g} to {own.high:g}"


def _masks(structures: Sequence[str]) -> dict[str, Cell]:
    columns: dict[str, Cell] = {name: _area(name) for name in structures}
    columns["values"] = _values
    columns["without any"] = lambda own: str(own.unmarked)
    return columns


def _area(name: str) -> Cell:
    def cell(own: SiteFacts) -> str:
        if name not in own.areas:
            return NOTHING
        missing = f", missing on {own.without[name]}" if own.without[name] else ""
        return f"{own.areas[name]:.1%}{missing}"

    return cell


def _values(own: SiteFacts) -> str:
    names = list(own.values)
    more = ", ..." if len(names) > VALUES_SHOWN else ""
    return ", ".join(names[:VALUES_SHOWN]) + more if names else NOTHING


def _class(name: str) -> Cell:
    def cell(own: SiteFacts) -> str:
        count, total = own.classes.get(name, 0), sum(own.classes.values())
        return f"{count} ({count / total:.0%})" if total else NOTHING

    return cell


# --- words --------------------------------------------------------------------------------------


def _print_error(console: Console, problem: Problem) -> None:
    """The first places with the cure; a path is never broken, so that it can be copied."""
    lines = [problem.what]
    if problem.places:
        lines = paragraph(problem.what, problem.cure, problem.places).splitlines()
    console.print(Text("error: ", "bold red").append(lines[0].strip(), "default"), soft_wrap=True)
    for line in lines[1:-1]:
        console.print(Text(line), soft_wrap=True)
    if problem.places:
        console.print(_hanging(Text("    ->"), Text(lines[-1].strip().removeprefix("-> "))))


def _hanging(begin: Text, text: Text) -> Table:
    """A word, and beside it a text of several lines."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(begin, text)
    return grid


def _closing(result: CheckResult) -> Text:
    odd = _number(len(result.warnings), "warning")
    if result.ok:
        line = Text("nothing stands in the way of training", "bold green")
        return line.append(f", with {odd}" if result.warnings else "", "default")
    line = Text(_number(len(result.errors), "error"), "bold red")
    line.append(f" and {odd}" if result.warnings else "", "default")
    return line.append(": training would refuse this federation", "default")


def _number(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
