"""What `konsil personalise` shows: scores at home, on all sites' images alike, and at a site that
took no part, against local epochs (FedSoup's Table 1, Fig. 2b and 2c).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from konsil.errors import RunError
from konsil.evaluation.levels import LOCAL, OF_ALL, UNSEEN, Levels, Tuned
from konsil.evaluation.results import GLOBAL, Series
from konsil.evaluation.statistics import DRAWS, Difference
from konsil.report.compare import as_numbers, tests_of, verdict, with_interval
from konsil.report.series import ALONE, YARDSTICK, metric_name
from konsil.report.style import DASHES, MARKERS, new_figure
from konsil.report.tables import new_table

USUAL = "fedavg"  # what FedSoup's table is held against
APART = 0.012  # of the axis, between the bars of methods after equally many epochs, at most
TOGETHER = 0.6  # of the way to the next number of epochs, all bars of one
HIGH, LOW, A_LINE = 4.2, 3.2, 0.2  # inches: of the panels, and of a method in the key
TITLES = {
    LOCAL: "local: at home",
    OF_ALL: "global: on all sites' images alike",
    UNSEEN: "unseen: at a site that took no part",
}


def print_levels(console: Console, found: Levels, metric: str, less: bool, against: Series) -> None:
    """All tables of a metric; `against`: whom the others are held against."""
    if found.published:
        console.print(published_table(found, metric, less, against))
    console.print(levels_table(found, metric, less))
    if len(found.candidates) > len(found.epochs):
        console.print(differences_table(found, metric, less, against))


def reference_in(found: Levels, name: str | None) -> Series:
    """The candidate of that name; by default FedAvg, else a model for all, else the first."""
    known = list(dict.fromkeys(one.series for one in found.candidates))
    if name is not None:
        wanted = [one for one in known if one.name == name]
        if not wanted:
            names = ", ".join(one.name for one in known)
            raise RunError(f"--against {name}: nobody of that name is there; there are {names}")
        return wanted[0]
    shared = [one for one in known if one.role == GLOBAL]
    return next((one for one in known if one.method == USUAL), [*shared, *known][0])


def published_table(found: Levels, metric: str, less: bool, against: Series) -> Table:
    """FedSoup's Table 1: a line a method, each site's model right after its last local training."""
    table = _table(f"{metric_name(metric)} as FedSoup's Table 1 has it", found)
    reference = published_place(found, against)
    numbers = [averaged.estimates() for averaged in found.where.values()]
    gains = [own.differences(reference, found.published) for own in found.where.values()]
    for place in found.published:
        cells = [
            "\n".join([with_interval(of[place]), *_gained(gain[place], less)])
            for of, gain in zip(numbers, gains, strict=True)
        ]
        one = found.candidates[place]
        table.add_row(escape(one.series.name), str(one.epochs), *cells)
    table.caption = (
        f"below: minus {against.name}. Each site's model right after its last local training: a "
        "site's own as the run left it, one for all after one more local epoch"
    )
    return table


def published_place(found: Levels, series: Series) -> int:
    """Where that method's candidate of FedSoup's Table 1 is."""
    return next(k for k in found.published if found.candidates[k].series == series)


def _gained(difference: Difference | None, less: bool) -> list[str]:
    if difference is None:
        return []
    return [f"{difference.estimate.value:+.3f} {verdict(difference, less)}"]


def levels_table(found: Levels, metric: str, less: bool) -> Table:
    """A line a method and number of epochs."""
    words = ", less is better" if less else ""
    table = _table(f"{metric_name(metric)} after local epochs{words}", found)
    numbers = [averaged.estimates() for averaged in found.where.values()]
    for place, one in enumerate(found.candidates):
        _add_row(table, one, found, [with_interval(of[place]) for of in numbers])
    return table


def differences_table(found: Levels, metric: str, less: bool, against: Series) -> Table:
    """Everybody minus one of them after equally many epochs."""
    title = f"{metric_name(metric)} minus that of {against.name} after equally many epochs"
    table = _table(title, found)
    gains = [found.differences(where, against) for where in found.where]
    for place, one in enumerate(found.candidates):
        if one.series != against:
            _add_row(table, one, found, [_in_words(of[place], less) for of in gains])
    return table


def _table(title: str, found: Levels) -> Table:
    table = new_table(title, "method")
    table.add_column("epochs", justify="right")
    for where in found.where:
        table.add_column(where, justify="right")
    return table


def _add_row(table: Table, one: Tuned, found: Levels, cells: Sequence[str]) -> None:
    """The name stands in the first of a method's lines."""
    first, last = found.epochs[0], found.epochs[-1]
    name = one.series.name if one.epochs == first else ""
    table.add_row(escape(name), str(one.epochs), *cells, end_section=one.epochs == last != first)


def _in_words(difference: Difference | None, less: bool) -> str:
    if difference is None:
        return ""
    value, low, high = difference.estimate
    ends = f" ({low:+.3f} to {high:+.3f})" if low == low else ""
    return f"{value:+.3f}{ends}\n{verdict(difference, less)}"


def notes(found: Levels) -> Iterator[str]:
    """What the numbers are of."""
    folds, counts = found.folds, sorted({len(own) for own in found.seeds.values()})
    clients = sorted({len(fold.clients) for fold in folds})
    of_folds = "" if folds[0].left_out is None else f", then over {len(folds)} folds"
    of_seeds = f"{' or '.join(map(str, counts))} seed{'s' if counts != [1] else ''}"
    yield (
        f"local: each site's model on its own test images; global: on {found.per_site} drawn test "
        f"images of each of the {' or '.join(map(str, clients))} sites that took part"
        + ("; unseen: on those of the site that took none. " if of_folds else ". ")
        + f"Means over the sites' models{of_folds}, over {of_seeds}."
    )
    yield (
        "epochs: of each site's own training images after the run, the same for every method, "
        "soups as they are; 0: as the run left the models. Nothing is chosen with these numbers."
    )
    who = "patients"
    if not found.has_patients:
        who = "images (of no two is known that they are of one patient)"
    yield (
        f"Intervals: 95 %, bootstrap over {who}, {DRAWS} draws; they say nothing of other "
        "seeds. better and worse: p below .05 after Holm, in the last table for the lines with "
        "equally many epochs."
    )
    if any(one.series.role == YARDSTICK for one in found.candidates):
        yield f"{YARDSTICK} pools the images, which hospitals cannot do."


# --- the picture ----------------------------------------------------------------------------------


def draw_levels(found: Levels, metric: str, colours: Mapping[str, str]) -> Figure:
    """Global against local, a path a method (Fig. 2b); and each of the levels against epochs."""
    high = max(HIGH, 0.8 + A_LINE * len(_by_series(found)))
    if len(found.epochs) == 1:
        figure = new_figure(high)
        _draw_paths(figure.subplots(), found, metric, colours)
        return figure
    figure = new_figure(high + LOW)
    grid = figure.add_gridspec(2, 1, height_ratios=(high, LOW))
    above, below = (figure.add_subfigure(grid[row]) for row in range(2))
    _draw_paths(above.subplots(), found, metric, colours)
    panels = below.subplots(1, len(found.where))
    for axes, where in zip(panels, found.where, strict=True):
        _draw_against_epochs(axes, found, where, metric, colours)
    return figure


def _draw_paths(axes: Axes, found: Levels, metric: str, colours: Mapping[str, str]) -> None:
    name = metric_name(metric)
    axes.grid()
    numbers = {where: found.where[where].estimates() for where in (LOCAL, OF_ALL)}
    for series, places in _by_series(found).items():
        x = [numbers[LOCAL][place].value for place in places]
        y = [numbers[OF_ALL][place].value for place in places]
        look = _looks(series, colours)
        axes.plot(x, y, label=series.name, **look)
        for place, here, there in zip(places, x, y, strict=True):
            axes.annotate(
                str(found.candidates[place].epochs), (here, there), (4, 4),
                textcoords="offset points", fontsize=7, color=look["color"],
            )  # fmt: skip
    axes.set_xlabel(f"{name}, {TITLES[LOCAL]}")
    axes.set_ylabel(f"{name}, {TITLES[OF_ALL]}")
    axes.set_title("After so many local epochs: better at home to the right, elsewhere above")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))


def _draw_against_epochs(
    axes: Axes, found: Levels, where: str, metric: str, colours: Mapping[str, str]
) -> None:
    axes.grid(axis="y")
    numbers = found.where[where].estimates()
    lines = _by_series(found)
    closest = min(b - a for a, b in pairwise(found.epochs))
    wide = min(found.epochs[-1] * APART, closest * TOGETHER / len(lines))
    for number, (series, places) in enumerate(lines.items()):
        shift = (number - (len(lines) - 1) / 2) * wide
        x = [found.candidates[place].epochs + shift for place in places]
        own = [numbers[place] for place in places]
        look = _looks(series, colours)
        axes.plot(x, [one.value for one in own], **look)
        axes.vlines(
            x, [one.low for one in own], [one.high for one in own],
            color=look["color"], linewidth=0.8, alpha=0.6,
        )  # fmt: skip
    axes.xaxis.set_major_locator(FixedLocator(found.epochs))
    axes.set_xlabel("local epochs; bars: 95 % intervals")
    axes.set_title(f"{metric_name(metric)}\n{TITLES[where]}", fontsize=8.5)


def _by_series(found: Levels) -> dict[Series, list[int]]:
    """The places of a method's candidates, in the order of their epochs."""
    lines: dict[Series, list[int]] = {}
    for place in sorted(range(len(found.candidates)), key=lambda k: found.candidates[k].epochs):
        lines.setdefault(found.candidates[place].series, []).append(place)
    return lines


def _looks(series: Series, colours: Mapping[str, str]) -> dict[str, Any]:
    plain = series.role in (ALONE, YARDSTICK)
    return {
        "color": colours[series.method],
        "linestyle": DASHES.get(series.role, "-"),
        "marker": "x" if plain else MARKERS.get(series.role, "o"),
        "markersize": 4,
        "linewidth": 1.3,
    }


# --- for machines ---------------------------------------------------------------------------------


def as_json(found: Mapping[str, Levels], against: str | None) -> str:
    """Every number, by metric."""
    return json.dumps({metric: _facts(own, against) for metric, own in found.items()}, indent=1)


def _facts(found: Levels, against: str | None) -> dict[str, Any]:
    reference = reference_in(found, against)
    numbers = {where: averaged.estimates() for where, averaged in found.where.items()}
    gains = {where: found.differences(where, reference) for where in found.where}
    lines = [
        {
            "method": one.series.method,
            "role": one.series.role,
            "epochs": one.epochs,
            "seeds": list(found.seeds[one]),
            "scores": {where: as_numbers(of[place]) for where, of in numbers.items()},
            "gains": {where: _gain(of[place]) for where, of in gains.items()},
        }
        for place, one in enumerate(found.candidates)
    ]
    left_out = [fold.left_out for fold in found.folds if fold.left_out is not None]
    return {
        "against": reference.name,
        "table_1": _published_facts(found, reference),
        "per_site": found.per_site,
        "left_out": left_out,
        "levels": lines,
    }


def _published_facts(found: Levels, against: Series) -> list[dict[str, Any]]:
    """Which lines are those of FedSoup's Table 1, and their differences there."""
    if not found.published:
        return []
    reference = published_place(found, against)
    gains = {w: own.differences(reference, found.published) for w, own in found.where.items()}
    return [
        found.candidates[place].series._asdict()
        | {"epochs": found.candidates[place].epochs}
        | {"gains": {where: _gain(of[place]) for where, of in gains.items()}}
        for place in found.published
    ]


def _gain(gain: Difference | None) -> dict[str, float | None] | None:
    return None if gain is None else as_numbers(gain.estimate) | tests_of(gain)
