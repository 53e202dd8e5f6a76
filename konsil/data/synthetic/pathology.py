"""Haematoxylin-eosin patches of lymph nodes, tumour or normal: stain and scanner shift.

A patch is two maps of dye, haematoxylin (nuclei) and eosin (cytoplasm, collagen, red cells), that
absorb light by Beer and Lambert's law, seen through a scanner. Size, shape and crowding of nuclei
decide the class; stain, stroma, fat, red cells and inflammation do not. docs/synthetic.md states
the model and why every difference between sites is plausible.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from konsil.data.synthetic.brush import (
    Array,
    Bytes,
    blur,
    coverage,
    grid,
    inside,
    square_cloud,
    stream,
    to_bytes,
)

SIZE = 96
CLASSES = ["normal", "tumour"]
PATCHES = 6  # a patient: by turns from normal tissue and from tumour
_FINE = 3  # nuclei are drawn this much finer, then averaged down
_CORNERS = 20  # of a nucleus's outline
_cloud = partial(square_cloud, SIZE)
_X, _Y = grid(SIZE)
Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Site:
    """One laboratory's stain and scanner."""

    images: int
    haematoxylin: Colour  # optical density of the dye in red, green and blue
    eosin: Colour
    strength: tuple[float, float]  # mean concentration of either dye
    strength_spread: float  # between patients: batch of dye, thickness of the section
    white: Colour  # the empty slide
    gamma: float
    blur: float  # pixels
    noise: float
    jpeg: int


SITES = {
    "ginkgo": Site(150, (0.65, 0.70, 0.29), (0.09, 0.95, 0.28), (1.30, 0.75),
        0.16, (0.96, 0.95, 0.96), 1.00, 0.5, 0.010, 90),
    "hazel": Site(110, (0.58, 0.74, 0.34), (0.10, 0.90, 0.37), (1.15, 0.98),
        0.18, (0.95, 0.94, 0.95), 1.00, 0.7, 0.012, 80),
    "iris": Site(80, (0.70, 0.65, 0.26), (0.14, 0.91, 0.29), (1.45, 0.66),
        0.20, (0.92, 0.94, 0.97), 1.06, 0.4, 0.014, 90),
    "juniper": Site(60, (0.62, 0.71, 0.32), (0.07, 0.96, 0.24), (0.98, 0.60),
        0.24, (0.97, 0.96, 0.97), 0.96, 1.0, 0.012, 70),
    "laurel": Site(40, (0.65, 0.67, 0.32), (0.13, 0.88, 0.40), (1.38, 0.92),
        0.20, (0.96, 0.95, 0.91), 1.08, 0.8, 0.018, 60),
}  # fmt: skip


@dataclass(frozen=True)
class Nuclei:
    """A population of nuclei, one row each."""

    centre: Array  # (N, 2)
    radius: Array
    stretch: Array  # long over short axis
    tilt: Array
    irregular: float
    density: Array  # of haematoxylin

    def outlines(self, rng: np.random.Generator) -> Array:
        """(N, corners, 2): ellipses with an irregular rim."""
        number = len(self.radius)
        turn = np.linspace(0, 2 * np.pi, _CORNERS, endpoint=False)
        rim = np.ones((number, _CORNERS))
        for order in (2, 3, 4):
            size = self.irregular * rng.normal(0, 1, number) / order
            rim += size[:, None] * np.cos(order * turn + rng.uniform(0, 7, number)[:, None])
        long, short = self.radius * np.sqrt(self.stretch), self.radius / np.sqrt(self.stretch)
        a, b = long[:, None] * rim * np.cos(turn), short[:, None] * rim * np.sin(turn)
        cos, sin = np.cos(self.tilt)[:, None], np.sin(self.tilt)[:, None]
        return self.centre[:, None] + np.stack([cos * a - sin * b, sin * a + cos * b], axis=-1)


def _scatter(
    rng: np.random.Generator, where: Array, wanted: int, radius: float, room: float
) -> Array:
    """Places at least `room` radii apart, more of them where the map `where` is high."""
    tries = rng.uniform(-radius, SIZE + radius, (5 * wanted, 2))
    column, row = np.clip(tries, 0, SIZE - 1).astype(int).T
    tries = tries[rng.random(len(tries)) < where[row, column]]
    near = ((tries[:, None] - tries[None]) ** 2).sum(axis=-1) < (room * radius) ** 2
    kept: list[int] = []
    for index in range(len(tries)):
        if len(kept) == wanted:
            break
        if not near[index, kept].any():
            kept.append(index)
    return tries[kept]


def _population(
    rng: np.random.Generator, where: Array, wanted: int, radius: float, spread: float, room: float,
    irregular: float, density: float, stretch: tuple[float, float], tilt: float | None = None,
) -> Nuclei:  # fmt: skip
    centre = _scatter(rng, where, wanted, radius, room)
    number = len(centre)
    angle = rng.uniform(0, 2 * np.pi, number) if tilt is None else rng.normal(tilt, 0.3, number)
    return Nuclei(
        centre=centre,
        radius=radius * np.exp(rng.normal(0, spread, number)),
        stretch=rng.uniform(*stretch, number),
        tilt=angle,
        irregular=irregular,
        density=np.clip(rng.normal(density, 0.12, number), 0.25, 1.0),
    )


def _tissue(
    rng: np.random.Generator, tumour: bool, stroma: Array, grain: float
) -> tuple[Nuclei, Nuclei, Nuclei]:
    """Cells found in both classes, and over them those that decide it."""
    free = 1 - stroma
    fibroblasts = _population(
        rng, 0.5 * stroma, int(rng.integers(6, 16)), 3.2, 0.15, 3.0, 0.05, 0.75, (2.2, 3.8), grain
    )
    if tumour:
        grade = rng.uniform(0.0, 1.0)
        radius, wanted = 4.9 + 2.0 * grade, int(rng.integers(24, 44) - 8 * grade)
        cells = _population(
            rng, free, wanted, radius, 0.12 + 0.12 * grade, 1.9, 0.06 + 0.1 * grade,
            rng.uniform(0.5, 0.75), (1.0, 1.7),
        )  # fmt: skip
        where, number = 0.3 * free + 0.7 * stroma, int(rng.integers(0, 30))
        lymphocytes = _population(rng, where, number, 3.5, 0.08, 2.2, 0.04, 0.9, (1, 1.3))
        return lymphocytes, fibroblasts, cells
    wanted = int(rng.integers(45, 130))
    cells = _population(
        rng, free + 0.15 * stroma, wanted, rng.uniform(3.3, 4.1), 0.09, 2.05, 0.04,
        rng.uniform(0.75, 0.95), (1, 1.3),
    )  # fmt: skip
    reactive = int(rng.integers(0, 12))  # large pale cells of a busy node: not tumour
    large = _population(rng, free, reactive, 5.2, 0.12, 2.2, 0.06, 0.5, (1, 1.5))
    return large, fibroblasts, cells


def _drawn(nuclei: Nuclei, rng: np.random.Generator) -> Iterator[tuple[Array, int]]:
    """Nuclei with a dense membrane, paler inside where they are large, and a nucleolus."""
    outlines = nuclei.outlines(rng)
    centres = outlines.mean(axis=1, keepdims=True)
    inner = centres + 0.78 * (outlines - centres)
    nucleolus = centres + 0.2 * (outlines - centres) + rng.normal(0, 0.8, (len(outlines), 1, 2))
    pale = np.clip(1.25 - 0.1 * nuclei.radius, 0.6, 0.95)
    for index in range(len(outlines)):
        dye = 255 * nuclei.density[index]
        yield outlines[index], int(dye)
        yield inner[index], int(dye * pale[index])
        if nuclei.radius[index] > 4.6:
            yield nucleolus[index], int(min(255, 1.3 * dye))


def _collagen(rng: np.random.Generator, grain: float) -> Array:
    """Wavy fibres along `grain`, 0 to 1."""
    across = _Y * np.cos(grain) - _X * np.sin(grain)
    phase = across / rng.uniform(0.9, 1.8) + 3.0 * _cloud(rng, 9.0) + 1.2 * _cloud(rng, 2.5)
    return 0.5 + 0.28 * np.sin(phase) + 0.15 * _cloud(rng, 1.2) + 0.1 * _cloud(rng, 5.0)


def _holes(rng: np.random.Generator) -> Array:
    """Fat vacuoles and tears: 1 where the slide is empty."""
    empty = np.zeros((SIZE, SIZE))
    for _ in range(rng.poisson(0.35)):
        x, y = rng.uniform(0, SIZE, 2)
        edge = np.hypot(_X - x, _Y - y) - rng.uniform(7, 18) + 1.3 * _cloud(rng, 7.0)
        empty = np.maximum(empty, inside(edge, 2.0))
    tear = rng.uniform(1.6, 3.0)
    return np.maximum(empty, inside(tear - _cloud(rng, 5.0), 0.3))


def _red_cells(rng: np.random.Generator) -> Array:
    """A few strongly eosinophilic discs."""
    cells = np.zeros((SIZE, SIZE))
    for _ in range(rng.poisson(1.2)):
        x, y = rng.uniform(0, SIZE, 2)
        cells = np.maximum(cells, inside(np.hypot(_X - x, _Y - y) - 3.2, 1.0))
    return cells


def _dyes(rng: np.random.Generator, tumour: bool) -> tuple[Array, Array]:
    """The maps of haematoxylin and eosin of one patch."""
    grain = rng.uniform(0, np.pi)
    stroma = inside(np.clip(rng.normal(1.0, 0.6), 0, None) - _cloud(rng, 14.0), 0.5)
    tissue = _tissue(rng, tumour, stroma, grain)
    polygons = (polygon for nuclei in tissue for polygon in _drawn(nuclei, rng))
    nuclear = blur(coverage(SIZE, _FINE, polygons), 0.4)
    chromatin = 1 + 0.22 * _cloud(rng, 0.9)
    cytoplasm = rng.uniform(0.30, 0.55) * (1 + 0.18 * _cloud(rng, 2.0) + 0.12 * _cloud(rng, 8.0))
    fibres = 0.40 + 0.50 * _collagen(rng, grain)
    eosin = cytoplasm + (fibres - cytoplasm) * stroma
    eosin = np.maximum(eosin, 1.1 * _red_cells(rng)) * (1 - 0.45 * np.minimum(nuclear, 1))
    haze = 0.08 + 0.04 * _cloud(rng, 6.0)  # dye in the cytoplasm
    filled = 1 - _holes(rng)
    return np.clip(nuclear * chromatin + haze, 0, None) * filled, np.clip(eosin, 0, None) * filled


def _slide(site: Site, rng: np.random.Generator) -> tuple[Array, Array]:
    """How one patient's section was stained and lit.

    The optical density of either dye at full concentration, (dye, colour), and the empty slide.
    """
    hue = np.exp(rng.normal(0, 0.10, (2, 3)))  # batches of dye and their pH
    amount = np.array(site.strength) * np.exp(rng.normal(0, site.strength_spread, 2))
    spectra = np.array([site.haematoxylin, site.eosin]) * hue * amount[:, None]
    return spectra, np.array(site.white) * np.exp(rng.normal(0, 0.015, 3))


def _scan(
    site: Site, slide: tuple[Array, Array], dyes: tuple[Array, Array], rng: np.random.Generator
) -> Bytes:
    """Beer and Lambert: each dye takes its share of the light, colour by colour."""
    spectra, white = slide
    density = np.zeros((3, SIZE, SIZE))
    for dye, spectrum in zip(dyes, spectra, strict=True):
        thickness = np.exp(rng.normal(0, 0.05))
        density += thickness * dye * spectrum[:, None, None]
    light = white[:, None, None] * np.exp(-density)
    light = blur(light, site.blur * rng.uniform(0.8, 1.4))  # no slide is flat: focus drifts
    picture = np.clip(light, 0, 1) ** site.gamma + rng.normal(0, site.noise, light.shape)
    return to_bytes(picture, site.jpeg)


def files(name: str, index: int) -> Iterator[tuple[str, Bytes]]:
    """Patch `index` of a site, with its path below the site: the folder is the class."""
    site, rng = SITES[name], stream("pathology", name, index)
    patient, number = divmod(index, PATCHES)
    slide = _slide(site, stream("pathology", name, "patient", patient))
    label = number % 2
    picture = _scan(site, slide, _dyes(rng, bool(label)), rng)
    yield f"{CLASSES[label]}/p{patient:03d}_{number:02d}.png", picture
