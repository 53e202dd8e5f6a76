"""The loss on the line between two models (`konsil analyze interpolate`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.markup import escape
from rich.table import Table

from konsil.colours import FURTHER_COLOURS
from konsil.errors import RunError
from konsil.evaluation.landscape import Barrier, barrier, between
from konsil.report.series import capital, metric_name
from konsil.report.style import FAINT, INK, new_figure
from konsil.report.tables import new_table
from konsil.report.terrain import SPLITS, Answerer, Kept, Report, Terrain, file_name


class Step(NamedTuple):
    """What a mixture of two models is worth on a site's images of one split."""

    site: str
    split: str
    share: float  # of the second model
    loss: float
    score: float


@dataclass(frozen=True)
class Line:
    """Two models, the sites at which the line between them is looked at, and its places."""

    ends: tuple[Answerer, Answerer]
    sites: Sequence[str]
    points: int
    recompute: bool = False  # running statistics, at every place

    @classmethod
    def of(cls, terrain: Terrain, a: str, b: str, site: str | None, points: int) -> Line:
        """By the names of tables; without a site at all of them."""
        ends = terrain.named(a), terrain.named(b)
        if ends[0] == ends[1]:
            raise RunError(f"{a} and {b} are the same model: there is no line between them")
        sites = terrain.plan.sites if site is None else (terrain.site(site),)
        return cls(ends, sites, points)

    @property
    def shares(self) -> list[float]:
        """From the first model, 0, to the second, 1."""
        return [place / (self.points - 1) for place in range(self.points)]

    @property
    def file(self) -> str:
        """The name of its picture and its numbers."""
        names = [one.full for one in self.ends]
        return file_name("interpolate", *names, *(["recomputed"] if self.recompute else []))


def kept_line(folder: Path, line: Line, again: bool = False) -> Kept[Step]:
    """What is known of a line beside its picture."""
    return Kept(folder / "figures" / f"{line.file}.csv", Step, keys=3, again=again)


def find_line(terrain: Terrain, line: Line, kept: Kept[Step], report: Report) -> None:
    """Loss and main metric at every site; a site's own model is that of the site."""
    for number, site in enumerate(line.sites):
        a, b = (terrain.weights(one, site) for one in line.ends)
        for share in line.shares:
            if missing := [split for split in SPLITS if not kept.has(site, split, share)]:
                there = between(a, b, share)
                if line.recompute:
                    there = terrain.recalibrated(there, site)
                heights = [terrain.height(there, site, split) for split in missing]
                steps = zip(missing, heights, strict=True)
                kept.add([Step(site, split, share, *found) for split, found in steps])
        report(f"{line.ends[0].full} to {line.ends[1].full}", number + 1, len(line.sites))


def barriers(line: Line, kept: Kept[Step], split: str) -> dict[str, Barrier]:
    """Of the loss at every site."""
    return {
        site: barrier({share: kept[site, split, share].loss for share in line.shares})
        for site in line.sites
    }


def line_table(line: Line, kept: Kept[Step], metric: str) -> Table:
    """A line a site and their mean: losses of the ends and the barrier between them."""
    a, b = line.ends
    table = new_table(f"The line from {a.full} (A) to {b.full} (B)", "site")
    name = metric_name(metric)
    columns = ("loss A", "B", "barrier", "at", "val. barrier", f"{name} A", "B", "lowest")
    for column in columns:
        widest = max(len(word) for word in column.split())
        table.add_column(column, justify="right", min_width=max(5, widest))
    rows = [_numbers(line, kept, site) for site in line.sites]
    for site, row in zip(line.sites, rows, strict=True):
        table.add_row(escape(site), *(f"{value:.3f}" for value in row))
    if len(rows) > 1:
        means = [f"{value:.3f}" for value in np.mean(rows, axis=0)]
        cells = ["" if column == "at" else m for column, m in zip(columns, means, strict=True)]
        table.add_row("mean of sites", *cells, style="bold")
    table.caption = (
        "of training images: the losses of A and of B; barrier: how far the loss between them "
        "rises above the straight line from the one to the other at most, and where (0: at A, 1: "
        f"at B). Of validation images: the barrier, {name}, and the lowest {name} on the line"
    )
    return table


def _numbers(line: Line, kept: Kept[Step], site: str) -> list[float]:
    losses = [kept[site, "train", share].loss for share in (0.0, 1.0)]
    scores = [kept[site, "val", share].score for share in line.shares]
    of_val = barriers(line, kept, "val")[site].value
    return [
        *losses,
        *barriers(line, kept, "train")[site],
        of_val,
        scores[0],
        scores[-1],
        min(scores),
    ]


def draw_line(line: Line, kept: Kept[Step], metric: str) -> Figure:
    """Every site's loss and main metric from one model to the other, and the mean of sites."""
    figure = new_figure(3.6, width=10.5)
    panels = figure.subplots(1, 3)
    shown = (
        ("train", "loss", "Loss"),
        ("val", "loss", "Loss"),
        ("val", "score", capital(metric)),
    )
    for axes, (split, what, title) in zip(panels, shown, strict=True):
        values = np.array([[getattr(kept[site, split, share], what) for share in line.shares]
                           for site in line.sites])  # fmt: skip
        _curves(axes, line, values)
        axes.set_title(f"{title}, {SPLITS[split]}")
        axes.set_xticks([0, 1], [one.full for one in line.ends])
        for label, side in zip(axes.get_xticklabels(), ("left", "right"), strict=True):
            label.set_horizontalalignment(side)
        axes.grid(axis="y")
    panels[0].legend(fontsize=7)
    return figure


def _curves(axes: Axes, line: Line, values: np.ndarray) -> None:
    for number, (site, own) in enumerate(zip(line.sites, values, strict=True)):
        colour = FURTHER_COLOURS[number % len(FURTHER_COLOURS)]
        axes.plot(line.shares, own, color=colour, linewidth=1, label=site)
    average = values.mean(axis=0)
    if len(line.sites) > 1:
        axes.plot(line.shares, average, color=INK, linewidth=2, label="mean of sites")
    straight = "straight between the ends"
    axes.plot([0, 1], average[[0, -1]], color=FAINT, linewidth=1, linestyle=":", label=straight)
