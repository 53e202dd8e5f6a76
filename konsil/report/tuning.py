"""What `konsil tune` shows: every trial's score on validation images, and what was chosen."""

from collections.abc import Iterator, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from rich import box
from rich.table import Table
from rich.text import Text

from konsil.evaluation.results import Series
from konsil.evaluation.tuning import Trial
from konsil.report.curves import BESIDE
from konsil.report.series import metric_name
from konsil.report.show import MISSING
from konsil.report.style import INK, new_figure

STROKES = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (4, 1.5, 1, 1.5)))  # by number of local epochs
AXES = {"lr": "learning rate", "local_epochs": "local epochs"}


def tuning_table(trials: Sequence[Trial], chosen: Mapping[str, Trial], metric: str) -> Table:
    """A line a trial, the chosen ones bold and marked."""
    table = Table(header_style="bold", caption_justify="left")
    failed = f"{MISSING}: its training failed. " if any(t.score is None for t in trials) else ""
    table.caption = f"Client averages on validation images. {failed}No test image was opened."
    table.box, table.padding, table.pad_edge = box.SIMPLE_HEAD, (0, 1, 0, 0), False
    table.add_column("method", no_wrap=True)
    for title in ("lr", "local_epochs", "rounds", f"validation {metric_name(metric)}"):
        table.add_column(title, justify="right")
    table.add_column("")
    for trial in trials:
        won = trial is chosen[trial.method]
        score = MISSING if trial.score is None else f"{trial.score:.4f}"
        name = Series(trial.method, trial.role or trial.method).name
        cells = (name, f"{trial.lr:g}", str(trial.local_epochs), str(trial.rounds), score)
        style = "bold" if won else ""
        table.add_row(*(Text(cell, style) for cell in (*cells, "chosen" if won else "")))
    return table


def edge_notes(trials: Sequence[Trial], chosen: Mapping[str, Trial]) -> Iterator[str]:
    """A line for every method whose best learning rate is the smallest or largest of several."""
    for method, best in chosen.items():
        rates = sorted({t.lr for t in trials if t.method == method})
        for end, word in ((rates[0], "smaller"), (rates[-1], "larger")):
            if len(rates) > 1 and best.lr == end:
                yield f"{method}: {end:g} is at the end of the rates tried; a {word} may be better"


def draw_tuning(
    trials: Sequence[Trial], chosen: Mapping[str, Trial], metric: str, colours: Mapping[str, str]
) -> Figure:
    """The scores against the learning rate, a line a method; against epochs if it is but one."""
    against = "lr" if len({t.lr for t in trials}) > 1 else "local_epochs"
    figure = new_figure(4.0)
    axes = figure.subplots()
    axes.grid(axis="y")
    lines: dict[tuple[str, int], list[Trial]] = {}
    for trial in trials:
        apart = trial.local_epochs if against == "lr" else 0
        lines.setdefault((trial.method, apart), []).append(trial)
    epochs = sorted({apart for _, apart in lines})
    for (method, apart), line in lines.items():
        label = Series(method, chosen[method].role).name
        label += f", local_epochs {apart}" if len(epochs) > 1 else ""
        stroke = STROKES[epochs.index(apart) % len(STROKES)]
        _draw_line(axes, line, against, colour=colours[method], stroke=stroke, label=label)
    for method, best in chosen.items():
        place, score = getattr(best, against), best.score or 0.0
        axes.plot(place, score, "o", markersize=11, mfc="none", mec=colours[method])
    axes.plot([], [], "o", markersize=11, mfc="none", mec=INK, label="chosen")
    _label(axes, against, sorted({getattr(t, against) for t in trials}))
    axes.set_title(f"Validation {metric_name(metric)} (client average)")
    axes.legend(**BESIDE | {"title": None})
    return figure


def _draw_line(
    axes: Axes, line: Sequence[Trial], against: str, colour: str, stroke: object, label: str
) -> None:
    """One line with a dot a trial; where training failed there is none."""
    done = sorted((getattr(t, against), t.score) for t in line if t.score is not None)
    x, y = [place for place, _ in done], [score for _, score in done]
    axes.plot(x, y, color=colour, linestyle=stroke, marker="o", markersize=4, label=label)


def _label(axes: Axes, against: str, values: Sequence[float]) -> None:
    """Ticks at what was tried, and nowhere else."""
    if against == "lr":
        axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(AXES[against])
