"""The loss along random directions (`konsil analyze surface`): FedSM's Fig. 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.markup import escape
from rich.table import Table

from konsil.errors import RunError
from konsil.evaluation.landscape import Bowl, bowl, distances, moved, unit_direction
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
    radius: float = 10.0
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


Surfaces = Mapping[Answerer, Sequence[Mapping[float, float]]]  # losses of each direction


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
        found[one] = losses
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
    for column in ("loss", f"rise at {extent.radius:g}", "directions", "curvature"):
        table.add_column(column, justify="right")
    for one, losses in surfaces.items():
        shape: Bowl = bowl(losses)
        table.add_row(
            escape(one.name),
            f"{shape.loss:.4f}",
            f"{shape.rise:.3g}",
            f"{min(shape.rises):.3g} to {max(shape.rises):.3g}",
            f"{shape.curvature:.2g}",
        )
    table.caption = (
        f"rise: the mean of both ends minus the model's loss, the mean over directions, and the "
        f"flattest and steepest of them; curvature: of their mean within "
        f"{extent.distances[extent.points // 2 + 1]:.3g} of the model. Larger is sharper. The "
        "directions have length 1 over all trainable values, and are the same for all"
    )
    return table


def draw_surfaces(surfaces: Surfaces, site: str, extent: Extent, plan: Plan) -> Figure:
    """The mean over directions and their range: the loss itself, and how it rises."""
    figure = new_figure(3.8)
    left, right = figure.subplots(1, 2)
    colours = method_colours(plan)
    for one, losses in surfaces.items():
        values = np.array([[own[t] for t in extent.distances] for own in losses])
        look = {"color": colours[one.job.method], "linestyle": DASHES.get(one.role, "-")}
        own = values[:, extent.points // 2][:, None]
        _band(left, extent.distances, values, one.name, look)
        _band(right, extent.distances, values - own, one.name, look)
    left.set_title(f"Training loss of {site}")
    right.set_title("How it rises")
    for axes in (left, right):
        axes.set_xlabel("distance from the model along random directions of length 1")
        axes.axvline(0, color=FAINT, linewidth=0.6)
        axes.grid(axis="y")
    left.legend(fontsize=7)
    return figure


def _band(
    axes: Axes, x: Sequence[float], values: np.ndarray, label: str, look: Mapping[str, object]
) -> None:
    axes.plot(x, values.mean(axis=0), label=label, **look)  # type: ignore[arg-type]
    low, high = values.min(axis=0), values.max(axis=0)
    axes.fill_between(x, low, high, color=look["color"], alpha=0.08, linewidth=0)  # type: ignore[arg-type]
