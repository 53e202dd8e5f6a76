"""What a page says of how sharp minima are, from the sharpness.csv that analyses leave in runs."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from matplotlib.figure import Figure

from konsil.errors import RunError
from konsil.evaluation.results import Series
from konsil.report.style import INK, MARKERS, new_figure
from konsil.report.tables import Plain

FILE = "sharpness.csv"


class Minimum(NamedTuple):
    """The top eigenvalue of a model's loss on one hospital's training images."""

    series: Series
    site: str
    batches: float  # the median over single batches
    whole: float  # of all images together
    residual: float


def read_minima(folders: Sequence[Path]) -> list[Minimum]:
    """Of all runs that have been looked at; RunError for a file that is not such a table."""
    paths = [folder / FILE for folder in folders]
    return [minimum for path in paths if path.exists() for minimum in _read(path)]


def _read(path: Path) -> list[Minimum]:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return [
                Minimum(
                    Series(line["method"], line["role"]),
                    line["site"],
                    *(float(line[name]) for name in ("batches", "whole", "residual")),
                )
                for line in csv.DictReader(file)
            ]
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(
            f"{path}: not a table of sharpness ({error}); `konsil analyze sharpness` makes one"
        ) from None


def flatness_table(minima: Sequence[Minimum]) -> Plain:
    """A line a model: medians over hospitals and seeds."""
    lines = []
    for series in dict.fromkeys(one.series for one in minima):
        own = [one for one in minima if one.series == series]
        whole = [one.whole for one in own]
        lines.append([
            series.name,
            f"{median(one.batches for one in own):.3g}",
            f"{median(whole):.3g}",
            f"{min(whole):.3g} to {max(whole):.3g}",
            f"{max(one.residual for one in own):.2g}",
        ])  # fmt: skip
    head = ["method", "of single batches", "of all images", "flattest to sharpest", "residual"]
    caption = (
        "the top eigenvalue of the training loss's Hessian, medians over hospitals and seeds: "
        "larger is sharper; residual: of the power iteration, the worst"
    )
    return Plain("How sharp the minima are", head, lines, caption)


def draw_flatness(minima: Sequence[Minimum], colours: Mapping[str, str]) -> Figure:
    """A line a model, a mark a hospital and seed, a stroke for their median."""
    names = list(dict.fromkeys(one.series for one in minima))
    figure = new_figure(1.2 + 0.32 * len(names))
    axes = figure.subplots()
    axes.grid(axis="x")
    for row, series in enumerate(names):
        values = [one.whole for one in minima if one.series == series]
        colour = colours.get(series.method, INK)
        axes.plot(values, [row] * len(values), MARKERS.get(series.role, "o"), color=colour,
                  alpha=0.7, linestyle="none", markersize=5, markeredgewidth=2)  # fmt: skip
        axes.plot([median(values)], [row], "|", color=INK, markersize=14, markeredgewidth=2)
    if all(one.whole > 0 for one in minima):
        axes.set_xscale("log")
    axes.set_yticks(range(len(names)), [series.name for series in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_title("Top eigenvalue of the training loss's Hessian (all images of a hospital)")
    axes.set_xlabel("left is flatter; a mark is a hospital with a seed, a stroke the median")
    return figure
