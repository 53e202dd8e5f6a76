"""Pictures of answers: a row an image, a column a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from konsil.data import Images
from konsil.report.opinions import Opinion
from konsil.report.style import (
    FAINT,
    RIGHT,
    STRUCTURE_COLOURS,
    WIDTH,
    WRONG,
    bare,
    new_figure,
)
from konsil.tasks import Task

LEFT, HEAD, FOOT, BELOW, GAP = 0.3, 0.42, 0.5, 0.34, 0.04  # inches
SMALLEST, LARGEST = 0.85, 1.7  # inches a picture
SMALL, TINY = 8, 7  # points
HALO = [patheffects.Stroke(linewidth=2.4, foreground="#000000B0"), patheffects.Normal()]


@dataclass(frozen=True)
class PictureRow:
    """One image, the truth about it, and every model's answer to it."""

    label: str
    image: np.ndarray  # [height, width] or [height, width, 3], 8 bits
    target: Tensor  # one image: masks [structures, height, width], or a class
    opinions: list[Opinion]  # of this one image


def picture_rows(
    labels: Sequence[str], images: Images, index: Sequence[int], opinions: Sequence[Opinion]
) -> list[PictureRow]:
    """Opinions on several images, taken apart into a row an image."""
    rows = []
    for place, (label, number) in enumerate(zip(labels, index, strict=True)):
        pixels = images.images[number].permute(1, 2, 0).numpy()
        single = [
            Opinion(o.series, o.logits[place], None if o.asked is None else [o.asked[place]])
            for o in opinions
        ]
        rows.append(PictureRow(label, pixels.squeeze(), images.targets[number], single))
    return rows


def draw_predictions(rows: Sequence[PictureRow], task: Task, caption: str) -> Figure:
    """Truth in the first column, then one column a method and role."""
    grid = _Grid(len(rows), 1 + len(rows[0].opinions))
    segmentation = rows[0].target.ndim > 0
    grid.head(0, "image", "with the truth")
    for column, opinion in enumerate(rows[0].opinions, start=1):
        method, role = opinion.series
        grid.head(column, method, "" if role == method else role)
    for place, row in enumerate(rows):
        grid.label(place, row.label)
        for column in range(grid.columns):
            axes = grid.axes(place, column)
            draw = _draw_outlines if segmentation else _draw_class
            draw(axes, row, row.opinions[column - 1] if column else None, task)
    grid.foot(caption, _outline_keys(task) if segmentation else _class_keys())
    return grid.figure


class _Grid:
    """Places of equal size for pictures, with a line of text above, below and beside them."""

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.size = min(LARGEST, max(SMALLEST, (WIDTH - LEFT) / columns - GAP))
        self.width = max(WIDTH, LEFT + columns * (self.size + GAP))
        self.height = HEAD + rows * (self.size + BELOW) + FOOT
        self.figure = new_figure(self.height, self.width)
        self.figure.set_layout_engine("none")

    def _corner(self, row: int, column: int) -> tuple[float, float]:
        """Left and top of a place, in inches from the top left."""
        return LEFT + column * (self.size + GAP), HEAD + row * (self.size + BELOW)

    def axes(self, row: int, column: int) -> Axes:
        left, top = self._corner(row, column)
        axes = self.figure.add_axes(
            (
                left / self.width,
                1 - (top + self.size) / self.height,
                self.size / self.width,
                self.size / self.height,
            )
        )
        bare(axes)
        return axes

    def head(self, column: int, first: str, second: str) -> None:
        left, _ = self._corner(0, column)
        x, y = (left + self.size / 2) / self.width, 1 - (HEAD - 0.06) / self.height
        both = f"{first}\n{second}" if second else first
        self.figure.text(x, y, both, ha="center", va="bottom", fontsize=SMALL)

    def label(self, row: int, text: str) -> None:
        _, top = self._corner(row, 0)
        y = 1 - (top + self.size / 2) / self.height
        x = LEFT / 2 / self.width
        self.figure.text(
            x, y, text, rotation=90, ha="center", va="center", fontsize=SMALL, fontweight="bold"
        )

    def foot(self, caption: str, keys: list[Line2D]) -> None:
        x = LEFT / self.width
        self.figure.text(x, 0.06 / self.height, caption, va="bottom", fontsize=SMALL, color=FAINT)
        self.figure.legend(
            handles=keys,
            loc="lower left",
            bbox_to_anchor=(x, 0.22 / self.height),
            ncols=len(keys),
            fontsize=SMALL,
            borderaxespad=0,
            borderpad=0,
        )


def _show(axes: Axes, image: np.ndarray) -> None:
    axes.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="nearest")


def _below(axes: Axes, text: str, colour: str = "black") -> None:
    axes.text(
        0.5,
        -0.03,
        text,
        transform=axes.transAxes,
        ha="center",
        va="top",
        fontsize=TINY,
        color=colour,
        linespacing=1.15,
    )


def _draw_outlines(axes: Axes, row: PictureRow, opinion: Opinion | None, task: Task) -> None:
    """The image with outlines: the true ones, or a model's, with its score and who answered."""
    _show(axes, row.image)
    truth = row.target.numpy().astype(float)
    if opinion is None:
        _outline(axes, truth)
        return
    _outline(axes, task.probabilities(opinion.logits[None])[0].numpy())
    score = task.columns(opinion.logits[None], row.target[None])[task.main_metric]
    _below(axes, f"{float(score):.2f}" + _asked(opinion))


def _asked(opinion: Opinion) -> str:
    return "" if opinion.asked is None else f"\nasked: {opinion.asked[0]}"


def _outline(axes: Axes, maps: np.ndarray) -> None:
    """Where each structure's map crosses 0.5; a border of zeros closes lines at the edge."""
    for number, values in enumerate(maps):
        if values.max() <= 0.5:
            continue
        height, width = values.shape
        lines = axes.contour(
            np.arange(-1, width + 1),
            np.arange(-1, height + 1),
            np.pad(values, 1),
            levels=[0.5],
            colors=[structure_colour(number)],
            linewidths=1.1,
        )
        lines.set_path_effects(HALO)
    axes.set_xlim(-0.5, maps.shape[2] - 0.5)
    axes.set_ylim(maps.shape[1] - 0.5, -0.5)


def structure_colour(number: int) -> str:
    """The colour of a structure by its place in the task."""
    return STRUCTURE_COLOURS[number % len(STRUCTURE_COLOURS)]


def _outline_keys(task: Task) -> list[Line2D]:
    keys = []
    for number, name in enumerate(task.labels):
        key = Line2D([], [], color=structure_colour(number), linewidth=1.6, label=name)
        key.set_path_effects(HALO)
        keys.append(key)
    return keys


def _draw_class(axes: Axes, row: PictureRow, opinion: Opinion | None, task: Task) -> None:
    """The image with its true class, or a model's probability as a bar: right or wrong."""
    true = int(row.target)
    if opinion is None:
        _show(axes, row.image)
        _below(axes, task.labels[true])
        return
    probabilities = task.probabilities(opinion.logits[None])[0]
    said = int(probabilities.argmax())
    shown = len(task.labels) - 1 if len(task.labels) == 2 else said
    colour = RIGHT if said == true else WRONG
    value = float(probabilities[shown])
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.barh([0.4], [1], height=0.12, color="#E8E8E8")
    axes.barh([0.4], [value], height=0.12, color=colour)
    axes.plot([0.5, 0.5], [0.31, 0.49], color="black", linewidth=0.8)
    axes.text(0.5, 0.62, f"{value:.2f}", ha="center", fontsize=13, color=colour)
    verdict = "right" if said == true else "wrong"
    axes.text(0.5, 0.12, f"{task.labels[said]}: {verdict}", ha="center", fontsize=TINY)
    _below(axes, _asked(opinion).strip())


def _class_keys() -> list[Line2D]:
    return [
        Line2D([], [], color=colour, label=label, linestyle="none", marker="s", markersize=7)
        for colour, label in ((RIGHT, "right"), (WRONG, "wrong"))
    ]
