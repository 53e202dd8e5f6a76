"""How sharp the minima are in which a run's models lie (`konsil analyze sharpness`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter
from rich.markup import escape
from rich.table import Table

from konsil.evaluation.results import Series
from konsil.evaluation.sharpness import sharpness
from konsil.federation.plan import Job, Plan
from konsil.report.style import DASHES, INK, method_colours, new_figure
from konsil.report.tables import new_table
from konsil.report.terrain import Answerer, Kept, Report, Terrain

FILE = "sharpness.csv"  # in the run's folder
SHORT = 200  # from the flattest to the sharpest: so many times, and there is room for 1, 2 and 5
SHAPES = {"personal": "s"}
SPREAD = 0.5  # of a line's height: how far its dots lie apart


class Minimum(NamedTuple):
    """The top eigenvalue of one model's loss on one site's training images."""

    method: str
    seed: int
    role: str
    site: str
    batches: float  # the median over single batches
    whole: float  # of all images together
    residual: float  # of `whole`

    @property
    def series(self) -> Series:
        """The line of a table that it belongs to."""
        return Series(self.method, self.role)


def kept_minima(folder: Path, again: bool = False) -> Kept[Minimum]:
    """What `sharpness.csv` of a run has."""
    return Kept(folder / FILE, Minimum, keys=4, again=again)


def find_minima(
    terrain: Terrain, jobs: Sequence[Job], batches: int, kept: Kept[Minimum], report: Report
) -> list[Minimum]:
    """Of what these jobs have left, everywhere; what is kept already is not computed."""
    found = []
    for job in jobs:
        models = terrain.answerers(job)
        asked = [(one, site) for one in models for site in terrain.plan.sites]
        for number, (one, site) in enumerate(asked):
            key = job.method, job.seed, one.role, site
            if not kept.has(*key):
                kept.add([_minimum(terrain, one, site, batches)])
            found.append(kept[key])
            report(job.name, number + 1, len(asked))
    return found


def _minimum(terrain: Terrain, one: Answerer, site: str, batches: int) -> Minimum:
    size, images = terrain.plan.training(one.job).batch_size, terrain.images(site, "train")
    weights = terrain.weights(one, site)
    sharp = sharpness(terrain.network, weights, terrain.task, images, size, batches)
    value, residual, _ = sharp.whole
    return Minimum(one.job.method, one.job.seed, one.role, site, sharp.batches, value, residual)


def _by_series(minima: Sequence[Minimum]) -> dict[Series, list[Minimum]]:
    lines = dict.fromkeys(one.series for one in minima)
    return {line: [one for one in minima if one.series == line] for line in lines}


def minima_table(minima: Sequence[Minimum]) -> Table:
    """A line a model: medians over sites and seeds."""
    table = new_table("Top eigenvalue of the training loss's Hessian", "method")
    for title in ("of single batches", "of all images", "flattest to sharpest site", "residual"):
        table.add_column(title, justify="right")
    for line, own in _by_series(minima).items():
        whole = [one.whole for one in own]
        table.add_row(
            escape(line.name),
            f"{median(one.batches for one in own):.3g}",
            f"{median(whole):.3g}",
            f"{min(whole):.3g} to {max(whole):.3g}",
            f"{max(one.residual for one in own):.2g}",
        )
    table.caption = (
        "medians over sites and seeds; larger is sharper. Of single batches: the median over them, "
        "as FedSoup's Fig. 2a. residual: |H v - value v| / value of the power iteration, the worst"
    )
    return table


def draw_minima(minima: Sequence[Minimum], plan: Plan) -> Figure:
    """A line a model, a dot a site and seed, a bar at their median; FedSoup's Fig. 2a."""
    order = [method.title for method in plan.experiment.methods]
    lines = _by_series(sorted(minima, key=lambda one: order.index(one.method)))
    figure = new_figure(1.3 + 0.34 * len(lines))
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    titles = "Of single training batches, median", "Of all training images"
    for axes, title, what in zip((left, right), titles, ("batches", "whole"), strict=True):
        _dots(axes, lines, plan, what)
        axes.set_title(title)
        axes.set_xlabel("top eigenvalue of the loss's Hessian (to the right: sharper)")
    values = [value for one in minima for value in (one.batches, one.whole)]
    if min(values) > 0:  # a loss may curve downwards everywhere: then there is no logarithm
        _logarithmic(left, max(values) / min(values))
    left.set_yticks(range(len(lines)), [line.name for line in lines])
    left.invert_yaxis()
    return figure


def _logarithmic(axes: Axes, span: float) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if span < SHORT else (1,), numticks=9))
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _dots(axes: Axes, lines: dict[Series, list[Minimum]], plan: Plan, what: str) -> None:
    colours = method_colours(plan.experiment.methods)
    for place, (line, own) in enumerate(lines.items()):
        values, colour = [getattr(one, what) for one in own], colours[line.method]
        steps = [(k + 0.5) / len(own) - 0.5 for k in range(len(own))]
        axes.scatter(values, [place + SPREAD * s for s in steps], s=16, color=colour, alpha=0.6,
                     marker=SHAPES.get(line.role, "o"), linewidths=0)  # fmt: skip
        axes.vlines(median(values), place - 0.36, place + 0.36, color=colour, linewidth=2.5,
                    linestyle=DASHES.get(line.role, "-"))  # fmt: skip
    axes.grid(axis="x")
    axes.tick_params(axis="y", length=0, labelcolor=INK)
