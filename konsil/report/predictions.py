"""Pictures of answers: a row an image, a column a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from contourpy import LineType, contour_generator
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.path import Path
from torch import Tensor

from konsil.colours import structure_colour
from konsil.data import Images
from konsil.report.answers import Answered, Panel, ask_all
from konsil.report.style import FAINT, RIGHT, WIDTH, WRONG, new_figure
from konsil.tasks import Task

LEFT, HEAD, FOOT, BELOW, GAP = 0.3, 0.42, 0.5, 0.34, 0.04  # inches
SMALLEST, LARGEST = 0.85, 1.7  # inches a picture
SMALL, TINY = 8, 7  # points
HALO = [patheffects.Stroke(linewidth=2.0, foreground="#000000A0"), patheffects.Normal()]


@dataclass(frozen=True)
class PictureRow:
    """One image, the truth about it, and every model's answer to it."""

    label: str
    image: np.ndarray  # [height, width] or [height, width, 3], 8 bits
    target: Tensor  # one image: masks [structures, height, width], or a class
    answered: list[Answered]  # to this one image


def picture_rows(
    panels: Sequence[Panel], site: str, images: Images, index: Sequence[int], labels: Sequence[str]
) -> list[PictureRow]:
    """A row for each of some images of a site, with every model's answer."""
    answered = ask_all(panels, site, images.batch(torch.tensor(index))[0])
    rows = []
    for place, (number, label) in enumerate(zip(index, labels, strict=False)):
        pixels = images.images[number].permute(1, 2, 0).numpy().squeeze()
        single = [
            Answered(a.series, a.logits[place], a.asked and [a.asked[place]]) for a in answered
        ]
        rows.append(PictureRow(label, pixels, images.targets[number], single))
    return rows


def draw_predictions(rows: Sequence[PictureRow], task: Task, caption: str) -> Figure:
    """Truth in the first column, then one column a method and role."""
    canvas = _Canvas(len(rows), 1 + len(rows[0].answered))
    segmentation = rows[0].target.ndim > 0
    canvas.head(0, "image", "and truth")
    for column, (method, role) in enumerate((a.series for a in rows[0].answered), start=1):
        canvas.head(column, method, "" if role == method else role)
    for place, row in enumerate(rows):
        canvas.label(place, row.label)
        for column, answered in enumerate([None, *row.answered]):
            draw = _draw_outlines if segmentation else _draw_class
            draw(canvas.place(place, column), row, answered, task)
    canvas.foot(caption, _outline_keys(task) if segmentation else _class_keys(task))
    return canvas.figure


@dataclass(frozen=True)
class _Place:
    """A square on the canvas, in inches from the top left."""

    axes: Axes
    left: float
    top: float
    size: float

    def show(self, image: np.ndarray) -> None:
        """An image that fills the square."""
        extent = (self.left, self.left + self.size, self.top + self.size, self.top)
        style: Any = {"cmap": "gray", "vmin": 0, "vmax": 255, "interpolation": "nearest"}
        self.axes.imshow(image, extent=extent, **style)

    def text(self, x: float, y: float, text: str, size: float = TINY, **style: Any) -> None:
        """Text centred at a place given as shares of the square."""
        x, y = self.left + x * self.size, self.top + y * self.size
        self.axes.text(x, y, text, ha="center", fontsize=size, linespacing=1.15, **style)

    def below(self, text: str) -> None:
        """What is written under the square."""
        self.text(0.5, 1.04, text, va="top")

    def bar(self, value: float, colour: str) -> None:
        """A bar from the left edge; a value of 1 reaches the right edge."""
        corner = (self.left, self.top + 0.48 * self.size)
        box = Rectangle(corner, value * self.size, 0.1 * self.size, facecolor=colour)
        self.axes.add_patch(box)

    def outline(self, maps: np.ndarray) -> None:
        """Where each structure's map crosses 0.5; a border of zeros closes lines at the edge."""
        for number, values in enumerate(maps):
            if values.max() <= 0.5:
                continue
            rows, columns = (np.arange(-1, n + 1) + 0.5 for n in values.shape)
            # matplotlib's own tracer of contours; Axes.contour around it takes 20 ms a call
            lines: Any = contour_generator(
                self.left + columns / values.shape[1] * self.size,
                self.top + rows / values.shape[0] * self.size,
                np.pad(values, 1),
                line_type=LineType.ChunkCombinedCode,
            ).lines(0.5)
            (points,), (codes,) = lines
            # one path: a model that has hardly learned draws hundreds of islands
            style: Any = {"edgecolors": structure_colour(number), "path_effects": HALO}
            drawn = PathCollection(
                [Path(points, codes)], facecolors="none", linewidths=1.0, **style
            )
            self.axes.add_collection(drawn, autolim=False)


class _Canvas:
    """A figure whose one pair of axes is measured in inches: many axes would take seconds."""

    def __init__(self, rows: int, columns: int) -> None:
        self.columns = columns
        self.size = min(LARGEST, max(SMALLEST, (WIDTH - LEFT) / columns - GAP))
        self.width = max(WIDTH, LEFT + columns * (self.size + GAP))
        self.height = HEAD + rows * (self.size + BELOW) + FOOT
        self.figure = new_figure(self.height, self.width)
        self.figure.set_layout_engine("none")
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()
        self.axes.set_xlim(0, self.width)
        self.axes.set_ylim(self.height, 0)
        self.axes.autoscale(False)

    def place(self, row: int, column: int) -> _Place:
        """Where a picture goes."""
        left, top = LEFT + column * (self.size + GAP), HEAD + row * (self.size + BELOW)
        return _Place(self.axes, left, top, self.size)

    def head(self, column: int, *lines: str) -> None:
        """The title of a column."""
        place = self.place(0, column)
        for number, line in enumerate(reversed([line for line in lines if line])):
            place.text(0.5, -(0.08 + 0.14 * number) / self.size, line, SMALL, va="baseline")

    def label(self, row: int, text: str) -> None:
        """The title of a row."""
        y = self.place(row, 0).top + self.size / 2
        style: Any = {"rotation": 90, "ha": "center", "va": "center", "fontweight": "bold"}
        self.axes.text(LEFT / 2, y, text, fontsize=SMALL, **style)

    def foot(self, caption: str, keys: list[Line2D]) -> None:
        """What the picture shows, and the key to its colours."""
        self.axes.text(LEFT, self.height - 0.08, caption, fontsize=SMALL, color=FAINT)
        corner = (LEFT / self.width, 0.26 / self.height)
        style: Any = {"fontsize": SMALL, "borderaxespad": 0, "borderpad": 0}
        self.axes.legend(
            handles=keys, loc="lower left", bbox_to_anchor=corner, ncols=len(keys), **style
        )


def _draw_outlines(place: _Place, row: PictureRow, answered: Answered | None, task: Task) -> None:
    """The image with outlines: the true ones, or a model's, with its score and who answered."""
    place.show(row.image)
    if answered is None:
        place.outline(row.target.numpy().astype(float))
        return
    place.outline(task.probabilities(answered.logits[None])[0].numpy())
    score = task.columns(answered.logits[None], row.target[None])[task.main_metric]
    place.below("\n".join([f"{float(score):.2f}", *_asked(answered)]))


def _draw_class(place: _Place, row: PictureRow, answered: Answered | None, task: Task) -> None:
    """The image with its true class, or a model's probability as a bar: right or wrong."""
    true = int(row.target)
    if answered is None:
        place.show(row.image)
        place.below(task.labels[true])
        return
    probabilities = task.probabilities(answered.logits[None])[0]
    said = int(probabilities.argmax())
    colour, verdict = (RIGHT, "right") if said == true else (WRONG, "wrong")
    # of two classes the positive one's, else that of the model's choice
    value = float(probabilities[1 if len(task.labels) == 2 else said])
    place.text(0.5, 0.40, f"{value:.2f}", 13, color=colour)
    place.bar(1.0, "#E6E6E6")
    place.bar(value, colour)
    place.text(0.5, 0.75, f"{task.labels[said]}: {verdict}")
    place.below("\n".join(_asked(answered)))


def _asked(answered: Answered) -> list[str]:
    return [f"asked: {name}" for name in answered.asked or []]


def _outline_keys(task: Task) -> list[Line2D]:
    style: Any = {"linewidth": 1.6, "path_effects": HALO}
    return [
        Line2D([], [], color=structure_colour(number), label=name, **style)
        for number, name in enumerate(task.labels)
    ]


def _class_keys(task: Task) -> list[Line2D]:
    shown = task.labels[1] if len(task.labels) == 2 else "the class that it names"
    keys = {RIGHT: "right", WRONG: f"wrong; the number is the model's probability of {shown}"}
    style: Any = {"linestyle": "none", "marker": "s", "markersize": 7}
    return [Line2D([], [], color=colour, label=label, **style) for colour, label in keys.items()]
