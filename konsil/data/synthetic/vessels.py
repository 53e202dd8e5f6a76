"""The vessels of the retina: walks that leave the disc and branch, drawn as polygons."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from konsil.data.synthetic.brush import Array, blur, cloud

_FINE = 2  # vessels are drawn this much finer, then averaged down
_STEPS = 46  # of a vessel


@dataclass(frozen=True)
class _Vessels:
    """V vessels of equally many steps."""

    path: Array  # (V, steps, 2)
    width: Array  # (V, steps)
    heading: Array  # (V, steps)
    vein: NDArray[np.bool_]  # (V,)


def _grow(
    rng: np.random.Generator, step: float, start: Array, heading: Array, bend: Array, width: Array,
    vein: NDArray[np.bool_],
) -> _Vessels:  # fmt: skip
    """Walks whose heading drifts by `bend` and wavers, and whose calibre tapers."""
    wavering = np.cumsum(rng.normal(0.0, 0.15, (len(start), _STEPS)), axis=1)
    wavering -= 0.6 * blur(wavering, 0.0, 9.0)  # tortuous, yet on its way outwards
    headings = heading[:, None] + bend[:, None] * np.linspace(0, 1, _STEPS) + wavering
    moves = step * np.stack([np.cos(headings), np.sin(headings)], axis=-1)
    path = start[:, None] + np.cumsum(moves, axis=1) - moves[:, :1]
    calibre = np.interp(np.arange(_STEPS), [0, 7, _STEPS], [0.4, 1.0, 0.6])  # it rises from the cup
    return _Vessels(path, width[:, None] * calibre, headings, vein)


def _branch(rng: np.random.Generator, step: float, parents: _Vessels, size: int) -> _Vessels:
    """Daughters that leave their parents at random places inside the picture."""
    forks = rng.random(parents.width.shape) < 0.05
    forks[:, :6] = False
    forks &= (np.abs(parents.path - size / 2) < size / 2).all(axis=-1)
    number = int(forks.sum())
    turn = rng.choice([-1.0, 1.0], number) * rng.uniform(0.4, 0.9, number)
    return _grow(
        rng, step,
        start=parents.path[forks],
        heading=parents.heading[forks] + turn,
        bend=-0.7 * turn + rng.normal(0, 0.3, number),
        width=parents.width[forks] * rng.uniform(0.4, 0.75, number),
        vein=parents.vein[np.nonzero(forks)[0]],
    )  # fmt: skip


def _trunks(
    rng: np.random.Generator, step: float, hub: Array, radius: float, temporal: int
) -> _Vessels:
    """The arcades: up and down, temporal and nasal, a vein and an artery each."""
    up, nasal, artery = (axis.ravel() for axis in np.meshgrid([-1, 1], [0, 1], [0, 1]))
    side = temporal * (1 - 2 * nasal)
    lean = np.where(nasal, 0.45, 0.25) + rng.normal(0, 0.22, 8)
    curve = np.where(nasal, 0.1, 0.75) + rng.normal(0, 0.25, 8)
    width = radius * np.where(artery, 0.125, 0.165) * rng.uniform(0.5, 1.1, 8)
    start = hub + radius * rng.normal(0, 0.09, (8, 2))
    heading = up * (np.pi / 2 - side * lean)
    return _grow(rng, step, start, heading, -up * side * curve, width, artery == 0)


def _twigs(rng: np.random.Generator, step: float, hub: Array, radius: float) -> _Vessels:
    """Small arteries that run sideways over the disc."""
    number = int(rng.integers(2, 6))
    return _grow(
        rng, step,
        start=hub + radius * rng.normal(0, 0.15, (number, 2)),
        heading=rng.choice([0.0, np.pi], number) + rng.normal(0, 0.45, number),
        bend=rng.normal(0, 0.5, number),
        width=radius * rng.uniform(0.035, 0.07, number),
        vein=np.zeros(number, dtype=bool),
    )  # fmt: skip


def _layer(generations: list[_Vessels], size: int, vein: bool, thickness: float = 1.0) -> Array:
    """How much of each pixel is covered by the veins, or by the arteries."""
    canvas = Image.new("L", (size * _FINE, size * _FINE))
    draw = ImageDraw.Draw(canvas)
    for vessels in generations:
        chosen = vessels.vein == vein
        normal = np.stack([-np.sin(vessels.heading), np.cos(vessels.heading)], axis=-1)
        half = (0.5 * thickness * vessels.width[..., None] * normal)[chosen]
        path = vessels.path[chosen]
        outlines = np.concatenate([path + half, (path - half)[:, ::-1]], axis=1) * _FINE
        for outline in outlines.reshape(len(path), 4 * _STEPS).tolist():
            draw.polygon(outline, fill=255)
    return np.asarray(canvas.reduce(_FINE), dtype=np.float64) / 255.0


def absorption(
    rng: np.random.Generator, size: int, centre: tuple[float, float], radius: float, temporal: int
) -> Array:
    """Optical density of the blood in front of every pixel; arteries have a bright reflex.

    `centre` and `radius` are the disc's, in pixels; `temporal` is +1 where the temple is right.
    """
    step = 0.075 * radius
    hub = np.array(centre) - [temporal * radius * rng.uniform(0.05, 0.3), 0.0]
    generations = [_trunks(rng, step, hub, radius, temporal), _twigs(rng, step, hub, radius)]
    generations.append(_branch(rng, step, generations[0], size))
    generations.append(_branch(rng, step, generations[-1], size))
    veins = blur(0.95 * _layer(generations, size, vein=True), 0.6)
    arteries = _layer(generations, size, vein=False)
    reflex = _layer(generations, size, vein=False, thickness=0.3)
    density = np.maximum(veins, blur(0.75 * arteries - 0.3 * reflex, 0.5))
    return density * (1.0 + 0.12 * cloud(rng, (size, 6.0), (size, 6.0)))
