"""The loss in the plane through three models (`konsil analyze surface --plane`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.markup import escape
from rich.table import Table

from konsil.errors import RunError
from konsil.evaluation.landscape import Plane, Spot
from konsil.report.series import capital, metric_name
from konsil.report.style import INK, new_figure
from konsil.report.tables import new_table
from konsil.report.terrain import SPLITS, Answerer, Kept, Report, Terrain, file_name

MARGIN = 0.25  # of the models' extent: what is shown around them
LEVELS = 16
SHAPES = ("o", "s", "D")


class Place(NamedTuple):
    """What weights at a place of the plane are worth on a site's images of one split."""

    split: str
    x: float
    y: float
    loss: float
    score: float


@dataclass(frozen=True)
class Trio:
    """Three models, and the plane through them at one site."""

    models: tuple[Answerer, Answerer, Answerer]
    site: str
    plane: Plane
    recompute: bool = False  # running statistics, at every place

    @classmethod
    def of(cls, terrain: Terrain, names: str, site: str) -> Trio:
        """Of `A,B,C` by the names of tables."""
        listed = [name.strip() for name in names.split(",")]
        if len(listed) != 3:
            raise RunError(
                f'--plane {names}: three models, as "fedavg global,fedsm personal,local"'
            )
        a, b, c = (terrain.named(name) for name in listed)
        weights = [terrain.weights(one, site) for one in (a, b, c)]
        for (one, w), (other, v) in combinations(zip((a, b, c), weights, strict=True), 2):
            if w.equals(v):
                raise RunError(
                    f"--plane {names}: {one.name} and {other.name} are the same weights at {site}; "
                    "a plane needs three models"
                )
        try:
            return cls((a, b, c), site, Plane.through(*weights))
        except RunError as error:
            raise RunError(f"--plane {names}: at {site} {error}") from None

    @property
    def file(self) -> str:
        """The name of its picture and its numbers."""
        names = [one.full for one in self.models]
        return file_name("plane", self.site, *names, *(["recomputed"] if self.recompute else []))


def kept_plane(folder: Path, trio: Trio, again: bool = False) -> Kept[Place]:
    """What is known of a plane beside its picture."""
    return Kept(folder / "figures" / f"{trio.file}.csv", Place, keys=3, again=again)


def find_plane(
    terrain: Terrain, trio: Trio, points: int, kept: Kept[Place], report: Report
) -> None:
    """The three models themselves and a grid around them, row by row."""
    rows = [list(trio.plane.spots), *trio.plane.grid(points, MARGIN)]
    for number, row in enumerate(rows):
        found = [place for spot in row for place in _places(terrain, trio, spot, kept)]
        if found:
            kept.add(found)
        report("plane", number + 1, len(rows))


def _places(terrain: Terrain, trio: Trio, spot: Spot, kept: Kept[Place]) -> list[Place]:
    missing = [split for split in SPLITS if not kept.has(split, *spot)]
    if not missing:
        return []
    at_model = dict(zip(trio.plane.spots, (trio.plane.a, trio.plane.b, trio.plane.c), strict=True))
    weights = at_model.get(spot) or trio.plane.at(spot)  # the models' own bits
    if trio.recompute:
        weights = terrain.recalibrated(weights, trio.site)
    return [Place(split, *spot, *terrain.height(weights, trio.site, split)) for split in missing]


def plane_table(trio: Trio, kept: Kept[Place], metric: str) -> Table:
    """A line a model: how far it is from the first, and what it is worth."""
    table = new_table(f"Three models at {trio.site}", "model")
    for column in ("distance to the first", *(f"{what}, {SPLITS[split]}" for split in SPLITS
                   for what in ("loss", metric_name(metric)))):  # fmt: skip
        table.add_column(column, justify="right", overflow="fold")
    for one, spot in zip(trio.models, trio.plane.spots, strict=True):
        found = [kept[split, *spot] for split in SPLITS]
        cells = [f"{value:.4f}" for own in found for value in (own.loss, own.score)]
        table.add_row(escape(one.full), f"{np.hypot(*spot):.3g}", *cells)
    return table


def draw_plane(trio: Trio, points: int, kept: Kept[Place], metric: str) -> Figure:
    """Contours of loss and main metric on training and on validation images."""
    grid = trio.plane.grid(points, MARGIN)
    xs, ys = zip(*(spot for row in grid for spot in row), strict=True)
    shape = (max(ys) - min(ys)) / (max(xs) - min(xs))
    figure = new_figure(1.4 + 2 * min(max(3.3 * shape, 1.2), 5.0))
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    for split, row in zip(SPLITS, panels, strict=True):
        for axes, what in zip(row, ("loss", "score"), strict=True):
            values = np.array([[getattr(kept[split, *s], what) for s in line] for line in grid])
            _contours(axes, grid, values, downwards=what == "loss")
            _models(axes, trio)
            axes.set_title(f"{'Loss' if what == 'loss' else capital(metric)}, {SPLITS[split]}")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=3)
    figure.supxlabel("distance between weights", fontsize=9)
    figure.suptitle(
        f"The plane through three models at {trio.site}", x=0.01, ha="left", fontsize=10
    )
    return figure


def _contours(
    axes: Axes, grid: Sequence[Sequence[Spot]], values: np.ndarray, downwards: bool
) -> None:
    """Close to each other near the best, where models lie; further apart the worse it gets."""
    known = values[np.isfinite(values)]
    best, worst = (known.min(), known.max()) if downwards else (known.max(), known.min())
    shares = np.linspace(0, 1, LEVELS) ** 2
    beyond = 1e-6 * (abs(worst - best) or 1.0)  # what lies on the outmost level is not painted
    inner = np.unique(best + (worst - best) * shares)
    levels = np.concatenate([[inner[0] - beyond], inner[1:-1], [inner[-1] + beyond]])
    x, y = [spot.x for spot in grid[0]], [row[0].y for row in grid]
    colours = "Blues_r" if downwards else "Blues"
    painted = axes.contourf(x, y, np.ma.masked_invalid(values), levels=levels, cmap=colours)
    axes.contour(x, y, np.ma.masked_invalid(values), levels=levels, colors="white", linewidths=0.4)
    bar = axes.figure.colorbar(painted, ax=axes, format="%.4g", spacing="proportional")
    bar.locator = MaxNLocator(5)
    bar.update_ticks()
    axes.set_aspect("equal")


def _models(axes: Axes, trio: Trio) -> None:
    for one, spot, shape in zip(trio.models, trio.plane.spots, SHAPES, strict=True):
        axes.scatter(*spot, marker=shape, s=46, color="#E69F00", edgecolor=INK, label=one.name,
                     zorder=3, clip_on=False)  # fmt: skip
