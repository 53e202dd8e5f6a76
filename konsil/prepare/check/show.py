"""The result of a check on a terminal: facts as tables, then errors, then warnings."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from konsil.data.findings import paragraph
from konsil.data.sources import SPLITS
from konsil.prepare.check import CheckResult, Problem
from konsil.prepare.check.sites import SiteFacts

NOTHING = "–"
VALUES_SHOWN = 6
NAME_WIDTH = 24  # columns of a site's name before it is folded
Numbers = Sequence[float]
Cells = dict[str, str]  # column -> text; the same columns at every site


def print_check(console: Console, result: CheckResult) -> None:
    """Everything that a person should know, the most important thing last."""
    if any(own.images for own in result.sites.values()):
        for title, rows in _tables(result):
            console.print(Text(title, "bold"))
            console.print(_table(rows))
            console.print()
    for problem in result.errors:
        _print_error(console, problem)
    for note in result.warnings:
        console.print(_hanging(Text("warning:", "bold yellow"), Text(note.text)))
    console.print()
    console.print(_closing(result))


def _tables(result: CheckResult) -> Iterator[tuple[str, dict[str, Cells]]]:
    sites, facts = result.sites.items(), result.sites.values()
    volumes = any(own.volumes for own in facts)
    known = any(own.patients_known for own in facts)
    counts = {site: _counts(own, volumes) for site, own in sites}
    yield "images (patients)" if known else "images", counts
    yield "files", {site: _files(own, volumes) for site, own in sites}
    if any(own.areas for own in facts):
        title = "masks: the mean part of an image that a structure covers"
        yield title, {site: _masks(own, result.labels) for site, own in sites}
    names = list(dict.fromkeys(name for own in facts for name in own.classes))
    if names:
        yield "classes", {site: _classes(own, names) for site, own in sites}


def _table(rows: Mapping[str, Cells]) -> Table:
    width = 2 + min(max(map(len, rows)), NAME_WIDTH)
    names = next(iter(rows.values()))
    table = Table(
        Column("  site", overflow="fold", min_width=width),
        *(Column(Text(name), justify="right", overflow="fold") for name in names),
        header_style="dim",
        box=None,
        padding=(0, 2, 0, 0),
    )
    for site, cells in rows.items():
        table.add_row(Text(f"  {site}"), *map(Text, cells.values()))
    return table


# --- cells --------------------------------------------------------------------------------------


def _counts(own: SiteFacts, volumes: bool) -> Cells:
    cells = {"images": str(own.images)}
    if volumes:
        cells["volumes"] = str(own.volumes)
    cells["patients"] = str(own.patients) if own.patients_known else "not given"
    for split in SPLITS:
        form = "{images} ({patients})" if own.patients_known else "{images}"
        cells[split] = NOTHING if own.splits is None else form.format(**own.splits[split])
    return cells


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
    cells = dict.fromkeys(structures, NOTHING)
    for name in own.areas.keys() & cells.keys():
        missing = f", missing on {own.without[name]}" if own.without[name] else ""
        cells[name] = f"{own.areas[name]:.1%}{missing}"
    values = list(own.values)[:VALUES_SHOWN] + ["..."] * (len(own.values) > VALUES_SHOWN)
    return cells | {"values": ", ".join(values) or NOTHING, "without any": str(own.unmarked)}


def _classes(own: SiteFacts, names: Sequence[str]) -> Cells:
    total = sum(own.classes.values())
    counts = {name: own.classes.get(name, 0) for name in names}
    return {name: f"{n} ({n / total:.0%})" if total else NOTHING for name, n in counts.items()}


# --- words --------------------------------------------------------------------------------------


def _print_error(console: Console, problem: Problem) -> None:
    """The first places with the cure; a path is never broken, so that it can be copied."""
    first, lines = problem.what, list[str]()
    if problem.places:
        first, *lines, _ = paragraph(problem.what, problem.cure, problem.places).splitlines()
    console.print(Text("error: ", "bold red").append(first.strip(), "default"), soft_wrap=True)
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    if problem.places:
        console.print(_hanging(Text("    ->"), Text(problem.cure)))


def _hanging(begin: Text, text: Text) -> Table:
    """A word, and beside it a text of several lines."""
    grid = Table.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 1, 0, 0))
    grid.add_row(begin, text)
    return grid


def _closing(result: CheckResult) -> Text:
    odd = _number(len(result.warnings), "warning") if result.warnings else ""
    if result.ok:
        line = Text("nothing stands in the way of training", "bold green")
        return line.append(odd and f", with {odd}", "default")
    line = Text(_number(len(result.errors), "error"), "bold red")
    line.append(odd and f" and {odd}", "default")
    return line.append(": training would refuse this federation", "default")


def _number(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
