"""What a search shows: every trial's score on validation images, and what was chosen."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from rich.table import Table
from rich.text import Text

from konsil.evaluation.results import Series
from konsil.evaluation.tuning import Trial
from konsil.report.curves import BESIDE
from konsil.report.series import metric_name
from konsil.report.show import MISSING
from konsil.report.style import INK, new_figure
from konsil.report.tables import new_table

AXES = {"lr": "learning rate", "local_epochs": "local epochs"}
DECADE = 10  # from where on an axis is logarithmic; a learning rate's always is
MOST_TICKS = 8  # more values have the axis' own
PANEL = 3.4  # inches


def tuning_table(trials: Sequence[Trial], chosen: Mapping[str, Trial], metric: str) -> Table:
    """A line a trial, the chosen ones bold and marked."""
    failed = f"{MISSING}: its training failed. " if any(t.score is None for t in trials) else ""
    table = new_table("", "method")
    table.caption = f"Client averages on validation images. {failed}No test image was opened."
    keys = list(dict.fromkeys(key for trial in trials for key in trial.values))
    for title in (*keys, f"validation {metric_name(metric)}"):
        table.add_column(title, justify="right")
    table.add_column("")
    for trial in trials:
        won = trial is chosen[trial.method]
        score = MISSING if trial.score is None else f"{trial.score:.4f}"
        name = Series(trial.method, trial.role or trial.method).name
        settings = [in_words(trial.values[key]) if key in trial.values else "" for key in keys]
        style = "bold" if won else ""
        cells = (name, *settings, score, "chosen" if won else "")
        table.add_row(*(Text(cell, style) for cell in cells))
    return table


def in_words(value: Any) -> str:
    """A setting's value, as short as can be."""
    return f"{value:g}" if _is_number(value) else str(value).replace("'", "")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def edge_notes(trials: Sequence[Trial], chosen: Mapping[str, Trial]) -> Iterator[str]:
    """A line for every method whose best learning rate is the smallest or largest of several."""
    for method, best in chosen.items():
        for key in filter(_is_rate, best.values):
            rates = sorted({t.values[key] for t in trials if t.method == method})
            for end, word in ((rates[0], "smaller"), (rates[-1], "larger")):
                if len(rates) > 1 and best.values[key] == end:
                    at = f"{method}: {end:g} is at the end of the rates tried"
                    yield f"{at}; a {word} may be better"


def _is_rate(key: str) -> bool:
    return key.rpartition(".")[2] == "lr"


def draw_tuning(
    trials: Sequence[Trial],
    chosen: Mapping[str, Trial],
    metric: str,
    colours: Mapping[str, str],
    keys: Sequence[str],
) -> Figure:
    """A panel a key, a dot a trial; the line of a method joins the best score at each value."""
    several = [key for key in keys if len(_tried(trials, key)) > 1] or keys[:1]
    figure = new_figure(PANEL * len(several) + 0.6)
    for axes, key in zip(figure.subplots(len(several), squeeze=False)[:, 0], several, strict=True):
        axes.grid(axis="y")
        _draw_panel(axes, key, trials, chosen, colours)
        axes.legend(**BESIDE | {"title": None})
    figure.axes[0].set_title(f"Validation {metric_name(metric)} (client average)")
    return figure


def _tried(trials: Sequence[Trial], key: str) -> list[Any]:
    """Its values: numbers by size, before words as they come."""
    known = {in_words(t.values[key]): t.values[key] for t in trials if key in t.values}
    numbers = sorted(value for value in known.values() if _is_number(value))
    return [*numbers, *(value for value in known.values() if not _is_number(value))]


def _draw_panel(
    axes: Axes,
    key: str,
    trials: Sequence[Trial],
    chosen: Mapping[str, Trial],
    colours: Mapping[str, str],
) -> None:
    values = _tried(trials, key)
    numbers = all(map(_is_number, values))
    at = {in_words(v): v if numbers else place for place, v in enumerate(values)}
    for method, best in chosen.items():
        own = [t for t in trials if t.method == method and key in t.values]
        dots = [(at[in_words(t.values[key])], t.score) for t in own if t.score is not None]
        if not dots:  # it has no such setting
            continue
        colour, name = colours[method], Series(method, best.role).name
        x, y = zip(*dots, strict=True)
        axes.scatter(x, y, color=colour, s=9, alpha=0.5, linewidths=0)
        places = sorted({*x})
        line = [max(score for place, score in dots if place == here) for here in places]
        axes.plot(places, line, color=colour, marker="o", markersize=4, label=name)
        ring = at[in_words(best.values[key])], best.score or 0.0
        axes.plot(*ring, "o", markersize=11, mfc="none", mec=colour)
    axes.plot([], [], "o", markersize=11, mfc="none", mec=INK, label="chosen")
    _label(axes, key, at, numbers)


def _label(axes: Axes, key: str, at: Mapping[str, float], numbers: bool) -> None:
    """Ticks at what was tried, and nowhere else; of very many values the axis' own."""
    places = list(at.values())
    if numbers and min(places) > 0 and (_is_rate(key) or places[-1] >= DECADE * places[0]):
        axes.set_xscale("log")
    if not numbers or len(places) <= MOST_TICKS:
        axes.set_xticks(places, list(at))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(AXES.get(key, key))
