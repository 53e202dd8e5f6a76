"""The result of a check on a terminal: facts as tables, then errors, then warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from konsil.data.findings import paragraph
from konsil.data.sources import SPLITS
from konsil.prepare.check import CheckResult, Problem
from konsil.prepare.check.facts import SiteFacts

NOTHING = "–"
VALUES_SHOWN = 6
NAME_WIDTH = 24  # columns of a site's name before it is folded
Numbers = Sequence[float]
Cells = dict[str, str]  # column -> text; the same columns at every site


def print_check(console: Console, result: CheckResult) -> None:
    """Everything that a person should know, the most important thing last."""
    for title, cells_of in _tables(result):
        console.print(Text(title, "bold"))
        console.print(_table({site: cells_of(own) for site, own in result.sites.items()}))
        console.print()
    for problem in result.errors:
        _print_error(console, problem)
    for note in result.warnings:
        console.print(_hanging(Text("warning:", "bold yellow"), Text(note.text)))
    console.print()
    console.print(_closing(result))


def _tables(result: CheckResult) -> Iterable[tuple[str, Callable[[SiteFacts], Cells]]]:
    facts = list(result.sites.values())
    if not any(own.images for own in facts):
        return
    volumes = any(own.volumes for own in facts)
    known = any(own.patients_known for own in facts)
    yield "images" + (" (patients)" if known else ""), lambda own: _counts(own, volumes)
    yield "files", lambda own: _files(own, volumes)
    if any(own.areas for own in facts):
        title = "masks: the mean part of an image that a structure covers"
        yield title, lambda own: _masks(own, result.labels)
    if any(own.classes for own in facts):
        names = list(dict.fromkeys(name for own in facts for name in own.classes))
        yield "classes", lambda own: _classes(own, names)


def _table(rows: Mapping[str, Cells]) -> Table:
    table = Table(header_style="dim", box=None, padding=(0, 2, 0, 0))
    longest = max(map(len, rows))
    table.add_column("  site", overflow="fold", min_width=2 + min(longest, NAME_WIDTH))
    for name in next(iter(rows.values())):
        table.add_column(Text(name), justify="right", overflow="fold")
    for site, cells in rows.items():
        table.add_row(Text(f"  {site}"), *map(Text, cells.values()))
    return table


# --- cells --------------------------------------------------------------------------------------


def _counts(own: SiteFacts, volumes: bool) -> Cells:
    return {
        "images": str(own.images),
        **({"volumes": str(own.volumes)} if volumes else {}),
        "patients": str(own.patients) if own.patients_known else "not given",
        **{split: _split(own, split) for split in SPLITS},
    }


def _split(own: SiteFacts, split: str) -> str:
    if own.splits is None:
        return NOTHING
    images, patients = (own.splits[split][what] for what in ("images", "patients"))
    return f"{images} ({patients})" if own.patients_known else str(images)


def _files(own: SiteFacts, volumes: bool) -> Cells:
    return {
        "size": _range(own.size, own.smallest, own.largest),
        **({"spacing in mm": _range(own.spacing, own.finest, own.coarsest)} if volumes else {}),
        "format": _several(own.formats),
        "pixels": _several(own.pixels),
        "intensities": NOTHING if own.low is None else f"{own.low:g} to {own.high:g}",
    }


def _range(usual: Numbers | None, low: Numbers | None, high: Numbers | None) -> str:
    """One size or spacing, or the smallest and the largest of several."""
    if usual is None or low is None or high is None:
        return NOTHING
    alike = all(round(a, 2) == round(b, 2) for a, b in zip(low, high, strict=True))
    return _by(usual) if alike else f"{_by(low)} to {_by(high)}"


def _by(numbers: Numbers) -> str:
    return " x ".join(f"{number:.3g}" if number < 100 else f"{number:.0f}" for number in numbers)


def _several(counts: Mapping[str, int]) -> str:
    """One kind by its name, several with how many there are of each."""
    if len(counts) < 2:
        return next(iter(counts), NOTHING)
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _masks(own: SiteFacts, structures: Sequence[str]) -> Cells:
    names = list(own.values)
    more = ", ..." if len(names) > VALUES_SHOWN else ""
    return {
        **{name: _area(own, name) for name in structures},
        "values": ", ".join(names[:VALUES_SHOWN]) + more if names else NOTHING,
        "without any": str(own.unmarked),
    }


def _area(own: SiteFacts, name: str) -> str:
    if name not in own.areas:
        return NOTHING
    missing = f", missing on {own.without[name]}" if own.without[name] else ""
    return f"{own.areas[name]:.1%}{missing}"


def _classes(own: SiteFacts, names: Sequence[str]) -> Cells:
    total = sum(own.classes.values())
    counts = {name: own.classes.get(name, 0) for name in names}
    return {name: f"{n} ({n / total:.0%})" if total else NOTHING for name, n in counts.items()}


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
