"""The loss along random directions (`konsil analyze surface`): FedSM's Fig. 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from rich.markup import escape
from rich.table import Table

from konsil.errors import RunError
from konsil.evaluation.landscape import bowl, distances, moved, unit_direction
from konsil.federation.plan import Plan
from konsil.report.style import DASHES, FAINT, method_colours, new_figure
from konsil.report.tables import new_table
from konsil.report.terrain import Answerer, Kept, Report, Terrain, file_name


class Along(NamedTuple):
    """The loss of one model's site at a distance from the model along one direction."""

    method: str
    seed: int  # of the directions, too
    role: str
    site: str
    direction: int
    distance: float
    loss: float


@dataclass(frozen=True)
class Extent:
    """Which directions are looked along, and how far."""

    directions: int = 10
    radius: float = 20.0  # about the length of small networks' weights
    points: int = 41

    def __post_init__(self) -> None:
        if self.points % 2 == 0:
            raise RunError(
                f"--points {self.points}: an odd number, so that the model is one of them"
            )

    @property
    def distances(self) -> list[float]:
        """The places on each."""
        return distances(self.radius, self.points)


@dataclass(frozen=True)
class Surface:
    """What is around one model."""

    length: float  # of its trainable values
    losses: Sequence[Mapping[float, float]]  # of each direction by distance


Surfaces = Mapping[Answerer, Surface]


def kept_surface(folder: Path, site: str, again: bool = False) -> Kept[Along]:
    """What is known of a site beside its picture."""
    return Kept(
        folder / "figures" / f"{file_name('surface', site)}.csv", Along, keys=6, again=again
    )


def find_surfaces(
    terrain: Terrain,
    models: Sequence[Answerer],
    site: str,
    extent: Extent,
    kept: Kept[Along],
    report: Report,
) -> Surfaces:
    """The training loss of a site around each model; what is kept already is not computed."""
    found = {}
    for one in models:
        losses = []
        for direction in range(extent.directions):
            keys = {t: _key(one, site, direction, t) for t in extent.distances}
            if missing := [t for t, key in keys.items() if not kept.has(*key)]:
                kept.add(_along(terrain, one, site, direction, missing))
            losses.append({t: kept[key].loss for t, key in keys.items()})
            report(one.full, direction + 1, extent.directions)
        found[one] = Surface(terrain.weights(one, site).norm(), losses)
    return found


def _key(
    one: Answerer, site: str, direction: int, t: float
) -> tuple[str, int, str, str, int, float]:
    return one.job.method, one.job.seed, one.role, site, direction, t


def _along(
    terrain: Terrain, one: Answerer, site: str, direction: int, places: Sequence[float]
) -> list[Along]:
    weights = terrain.weights(one, site)
    u = unit_direction(weights.layout.trainable, one.job.seed, direction)
    return [
        Along(
            *_key(one, site, direction, t), terrain.height(moved(weights, u, t), site, "train")[0]
        )
        for t in places
    ]


def surface_table(surfaces: Surfaces, site: str, extent: Extent) -> Table:
    """A line a model: its loss, and how it rises around it."""
    title = f"Training loss of {site} along {extent.directions} random directions"
    table = new_table(title, "method")
    for column in ("length", "loss", f"rise at {extent.radius:g}", "directions", "curvature"):
        table.add_column(column, justify="right")
    for one, surface in surfaces.items():
        shape = bowl(surface.losses)
        table.add_row(
            escape(one.name),
            f"{surface.length:.3g}",
            f"{shape.loss:.4f}",
            f"{shape.rise:.3g}",
            f"{min(shape.rises):.3g} to {max(shape.rises):.3g}",
            f"{shape.curvature:.2g}",
        )
    table.caption = (
        "rise: the mean of both ends minus the model's loss, the mean over directions, and the "
        "flattest and steepest of them; curvature: of their mean, within "
        f"{extent.distances[extent.points // 2 + 1]:.3g} of the model; larger is sharper. The "
        "directions have length 1 over all trainable values and are the same for all models; "
        "length: of a model's own values, which are not scaled to be alike"
    )
    return table


def draw_surfaces(surfaces: Surfaces, site: str, extent: Extent, plan: Plan) -> Figure:
    """The mean over directions and their range: the loss itself, and how it rises."""
    figure = new_figure(4.4)
    left, right = figure.subplots(1, 2)
    colours = method_colours(plan.experiment.methods)
    for one, surface in surfaces.items():
        values = np.array([[own[t] for t in extent.distances] for own in surface.losses])
        look: Any = {"color": colours[one.job.method], "linestyle": DASHES.get(one.role, "-")}
        average, own = values.mean(axis=0), values[0, extent.points // 2]
        low, high = values.min(axis=0), values.max(axis=0)
        left.plot(extent.distances, average, label=one.name, **look)
        left.fill_between(extent.distances, low, high, color=look["color"], alpha=0.1, linewidth=0)
        right.plot(extent.distances, average - own, **look)
    left.set_title(f"Training loss of {site}")
    right.set_title("How it rises in the mean")
    for axes in (left, right):
        axes.set_xlabel("distance from the model along random directions of length 1")
        axes.axvline(0, color=FAINT, linewidth=0.6)
        axes.grid(axis="y")
    title = "mean of the directions; shaded, left: their range"
    figure.legend(loc="outside lower center", ncols=4, title=title)
    return figure
