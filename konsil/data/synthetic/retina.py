"""Fundus photographs around the optic disc, with disc and cup outlined: low similarity.

A photograph is a tree of vessels (absorption) over disc, rim and cup (reflectance) over a textured
background, seen through a camera. The mask is the true disc and the cup *as this site's annotator
draws it*. docs/synthetic.md states the model and why every difference between sites is plausible.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

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
    wobble,
)

SIZE = 128
RIM, CUP = 128, 255
_FINE = 2  # vessels are drawn this much finer, then averaged down
_STEPS = 46  # of a vessel
_cloud = partial(square_cloud, SIZE)
_X, _Y = grid(SIZE)
Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Site:
    """One hospital's patients, camera and annotator."""

    images: int
    background: Colour  # what the camera makes of retina, rim and cup
    rim: Colour
    cup: Colour
    exposure_spread: float  # standard deviation of the brightness between photographs
    disc_radius: float  # of the width of the crop: the field of view
    disc_centre: tuple[float, float]  # of the width of the crop, for a right eye
    centre_spread: float
    field_edge: float | None  # share of photographs that show the black border; None: never
    haze: float  # scattered light: lens, cataract
    blur: float  # pixels
    noise: float
    jpeg: int
    glaucoma: float  # share of patients with a large cup
    cup_scale: float  # the annotator's cup, relative to the true one
    cup_detail: float  # share of the outline's irregularity that the annotator follows


SITES = {
    "aster": Site(200, (0.62, 0.34, 0.14), (0.84, 0.47, 0.21), (0.98, 0.78, 0.42),
        0.16, 0.285, (0.50, 0.50), 0.03, None, 0.02, 0.5, 0.010, 92, 0.25, 1.00, 1.0),
    "birch": Site(120, (0.76, 0.45, 0.21), (0.95, 0.62, 0.33), (0.99, 0.82, 0.52),
        0.14, 0.270, (0.46, 0.52), 0.05, None, 0.12, 1.1, 0.008, 80, 0.30, 0.85, 0.6),
    "cedar": Site(90, (0.42, 0.25, 0.12), (0.70, 0.34, 0.16), (0.94, 0.73, 0.36),
        0.18, 0.300, (0.57, 0.49), 0.05, 0.6, 0.00, 0.4, 0.015, 95, 0.12, 1.05, 1.0),
    "dahlia": Site(60, (0.49, 0.24, 0.09), (0.76, 0.41, 0.17), (0.92, 0.68, 0.32),
        0.22, 0.340, (0.50, 0.47), 0.04, None, 0.04, 0.9, 0.012, 88, 0.55, 1.10, 0.2),
    "elm": Site(50, (0.51, 0.36, 0.21), (0.70, 0.50, 0.30), (0.86, 0.78, 0.54),
        0.20, 0.265, (0.53, 0.54), 0.07, 0.6, 0.08, 1.6, 0.030, 50, 0.40, 0.90, 0.4),
    "fir": Site(40, (0.65, 0.33, 0.21), (0.84, 0.48, 0.31), (0.97, 0.76, 0.54),
        0.17, 0.240, (0.44, 0.46), 0.05, 0.3, 0.06, 0.8, 0.020, 70, 0.35, 1.15, 0.6),
}  # fmt: skip


@dataclass(frozen=True)
class Eye:
    """The anatomy of one photograph, in pixels. `temporal` is +1 where the temple is right."""

    centre: tuple[float, float]
    radius: float
    temporal: int
    distance: Array  # from the disc's centre, in disc radii along the ray (1 is the disc's edge)
    angle: Array
    cup_distance: Array  # from the cup's centre
    cup_angle: Array
    cup_radius: float
    cup_shape: tuple[Array, Array]

    def cup_edge(self, scale: float = 1.0, detail: float = 1.0) -> Array:
        """Signed distance in pixels to the cup: the true one, or one drawn larger and smoother."""
        amplitudes, phases = self.cup_shape
        outline = 1.0 + wobble(self.cup_angle, detail * amplitudes, phases)
        return self.cup_distance - scale * self.cup_radius * outline


def _eye(site: Site, rng: np.random.Generator) -> Eye:
    temporal = 1 if rng.random() < 0.5 else -1
    radius = SIZE * site.disc_radius * np.exp(rng.normal(0.0, 0.07))
    shift_x, shift_y = rng.normal(0.0, site.centre_spread, 2)
    x = SIZE * (0.5 + temporal * (site.disc_centre[0] - 0.5) + shift_x)
    y = SIZE * (site.disc_centre[1] + shift_y)
    tall = rng.normal(1.08, 0.04)  # discs are a little taller than wide
    angle = np.arctan2(_Y - y, _X - x)
    rim = wobble(angle, rng.normal(0, [0.02, 0.012, 0.008]), rng.uniform(0, 7, 3))
    outline = radius * (1 + rim)
    distance = np.hypot((_X - x) * np.sqrt(tall), (_Y - y) / np.sqrt(tall)) / outline
    diseased = rng.random() < site.glaucoma
    ratio = np.clip(rng.normal(0.70 if diseased else 0.46, 0.08), 0.22, 0.85)
    cup_x = x + temporal * radius * (1 - ratio) * rng.uniform(0.05, 0.3)
    cup_y = y + radius * (1 - ratio) * rng.normal(0.0, 0.12)
    shape = (rng.normal(0, [0.07, 0.05, 0.035, 0.025]), rng.uniform(0, 7, 4))
    cup_angle = np.arctan2(_Y - cup_y, _X - cup_x)
    cup_distance = np.hypot(_X - cup_x, (_Y - cup_y) / tall)
    return Eye(
        (x, y), radius, temporal, distance, angle, cup_distance, cup_angle, ratio * radius, shape
    )


def _colour(rng: np.random.Generator, colour: Colour) -> Array:
    return (np.array(colour) * np.exp(rng.normal(0.0, 0.02, 3)))[:, None, None]


def _background(site: Site, eye: Eye, rng: np.random.Generator) -> Array:
    """Pigment and choroid as clouds, nerve fibres as rays from the disc, uneven light."""
    pigment = 0.05 * _cloud(rng, 14.0) + 0.02 * _cloud(rng, 1.2)
    choroid = rng.uniform(0.0, 0.09) * np.tanh(2.0 * _cloud(rng, 3.0))
    rays = np.interp(eye.angle, np.linspace(-np.pi, np.pi, 240), rng.normal(0, 1, 240))
    fibres = 0.025 * blur(rays, 0.7) * np.exp(-((eye.distance - 1.4) ** 2))
    tilt_x, tilt_y = rng.normal(0.0, 0.12, 2)
    light = 1 + tilt_x * (_X / SIZE - 0.5) + tilt_y * (_Y / SIZE - 0.5)
    light = light + 0.16 * np.exp(-((np.maximum(eye.distance - 1, 0) / 0.35) ** 2))
    choroid_colour = np.array([1.0, 0.9, 0.3])[:, None, None]
    tint = 1 + choroid_colour * choroid + pigment + fibres
    pallor = np.exp(min(rng.normal(0.0, 0.16), 0.1))  # the patient's pigment; the disc is paler
    return pallor * _colour(rng, site.background) * tint * light


def _crescent(eye: Eye, rng: np.random.Generator) -> Array:
    """Pale atrophy beside the disc, on the temporal side, in a third of the eyes."""
    if rng.random() > 0.33:
        return np.zeros((SIZE, SIZE))
    facing = np.cos(eye.angle - (0.0 if eye.temporal > 0 else np.pi) - rng.normal(0, 0.4))
    reach = 1 + rng.uniform(0.05, 0.22) * np.clip(facing, 0, 1)
    return rng.uniform(0.2, 0.6) * inside(eye.distance - reach, 0.12)


def _reflectance(site: Site, eye: Eye, rng: np.random.Generator) -> Array:
    rim, cup = _colour(rng, site.rim), _colour(rng, site.cup)
    picture = _background(site, eye, rng)
    picture = picture + (0.75 * rim - picture) * _crescent(eye, rng)
    soft = rng.uniform(0.06, 0.18)
    disc = inside(eye.distance - 1.0, soft)
    nasal = 1 - 0.07 * eye.temporal * np.cos(eye.angle) * np.minimum(eye.distance, 1)
    shaded = rim * (2 - nasal) * (1 + 0.03 * _cloud(rng, 4.0))
    picture = picture + (shaded - picture) * disc
    pallor = rng.uniform(0.75, 1.0)  # some cups hardly stand out from their rim
    slope = eye.radius * rng.uniform(0.15, 0.4)
    hollow = pallor * inside(eye.cup_edge(), slope)
    return picture + (cup * (1 + 0.03 * _cloud(rng, 3.0)) - picture) * hollow * disc


def _field_of_view(site: Site, eye: Eye, rng: np.random.Generator) -> Array:
    """1 inside the camera's round field, 0 in its black border."""
    if site.field_edge is None or rng.random() > site.field_edge:
        return np.ones((SIZE, SIZE))
    field = SIZE * rng.uniform(1.1, 1.5)
    side = -eye.temporal if rng.random() < 0.8 else eye.temporal  # nasal of the disc: the near edge
    x = eye.centre[0] + side * (eye.radius + SIZE * rng.uniform(0.06, 0.2) - field)
    y = eye.centre[1] + SIZE * rng.normal(0.0, 0.1)
    return inside(np.hypot(_X - x, _Y - y) - field, 3.0)


# --- vessels: walks that leave the disc and branch -----------------------------------------------


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


def _branch(rng: np.random.Generator, step: float, parents: _Vessels) -> _Vessels:
    """Daughters that leave their parents at random places inside the picture."""
    forks = rng.random(parents.width.shape) < 0.05
    forks[:, :6] = False
    forks &= (np.abs(parents.path - SIZE / 2) < SIZE / 2).all(axis=-1)
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


def _trunks(rng: np.random.Generator, step: float, hub: Array, eye: Eye) -> _Vessels:
    """The arcades: up and down, temporal and nasal, a vein and an artery each."""
    up, nasal, artery = (axis.ravel() for axis in np.meshgrid([-1, 1], [0, 1], [0, 1]))
    side = eye.temporal * (1 - 2 * nasal)
    lean = np.where(nasal, 0.45, 0.25) + rng.normal(0, 0.22, 8)
    curve = np.where(nasal, 0.1, 0.75) + rng.normal(0, 0.25, 8)
    width = eye.radius * np.where(artery, 0.125, 0.165) * rng.uniform(0.5, 1.1, 8)
    start = hub + eye.radius * rng.normal(0, 0.09, (8, 2))
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


def _layer(generations: list[_Vessels], vein: bool, thickness: float = 1.0) -> Array:
    """How much of each pixel is covered by the veins, or by the arteries."""
    polygons: list[tuple[Array, int]] = []
    for vessels in generations:
        chosen = vessels.vein == vein
        normal = np.stack([-np.sin(vessels.heading), np.cos(vessels.heading)], axis=-1)
        half = (0.5 * thickness * vessels.width[..., None] * normal)[chosen]
        path = vessels.path[chosen]
        outlines = np.concatenate([path + half, (path - half)[:, ::-1]], axis=1)
        polygons += [(outline, 255) for outline in outlines]
    return coverage(SIZE, _FINE, polygons)


def _absorption(eye: Eye, rng: np.random.Generator) -> Array:
    """Optical density of the blood in front of every pixel; arteries have a bright reflex."""
    step = 0.075 * eye.radius
    hub = np.array(eye.centre) - [eye.temporal * eye.radius * rng.uniform(0.05, 0.3), 0.0]
    generations = [_trunks(rng, step, hub, eye), _twigs(rng, step, hub, eye.radius)]
    generations.append(_branch(rng, step, generations[0]))
    generations.append(_branch(rng, step, generations[-1]))
    veins = blur(0.95 * _layer(generations, vein=True), 0.6)
    arteries = _layer(generations, vein=False)
    reflex = _layer(generations, vein=False, thickness=0.3)
    density = np.maximum(veins, blur(0.75 * arteries - 0.3 * reflex, 0.5))
    return density * (1.0 + 0.12 * _cloud(rng, 6.0))


# --- the photograph and its mask ------------------------------------------------------------------


def _photograph(site: Site, eye: Eye, rng: np.random.Generator) -> Bytes:
    blood = np.array([0.32, 1.0, 0.8])[:, None, None] * _absorption(eye, rng)
    picture = _reflectance(site, eye, rng) * np.exp(-blood)
    ageing = np.array([0.03, -0.03, -0.18])[:, None, None]  # the lens yellows: blue is lost first
    cast = np.exp(ageing * rng.normal() + rng.normal(0.0, 0.03, (3, 1, 1)))
    exposure = cast * np.exp(rng.normal(0.0, site.exposure_spread))
    haze = site.haze * rng.uniform(0.5, 1.5)
    veil = picture.mean(axis=(1, 2), keepdims=True) + 0.05
    picture = exposure * ((1 - haze) * picture + haze * veil) * _field_of_view(site, eye, rng)
    bend = np.sqrt(np.sqrt(1 + np.square(np.square(picture))))
    picture = picture / bend  # highlights bend before they clip
    picture = blur(picture, site.blur * rng.uniform(0.7, 1.4))
    picture = picture + rng.normal(0.0, site.noise, picture.shape)
    return to_bytes(picture, site.jpeg)


def _annotation(site: Site, eye: Eye, rng: np.random.Generator) -> Bytes:
    """Disc as it is; cup in the site's manner, within the disc, with the hand's own scatter."""
    scale = site.cup_scale * np.exp(rng.normal(0.0, 0.04))
    cup = (eye.cup_edge(scale, site.cup_detail) < 0) & (eye.distance < 0.94)
    return np.where(cup, CUP, np.where(eye.distance < 1, RIM, 0)).astype(np.uint8)


def files(name: str, index: int) -> Iterator[tuple[str, Bytes]]:
    """Image `index` of a site, and its mask, with their paths below the site's folder."""
    site, rng = SITES[name], stream("retina", name, index)
    eye = _eye(site, rng)
    mask = _annotation(site, eye, rng)
    yield f"images/{index:04d}.png", _photograph(site, eye, rng)
    yield f"masks/{index:04d}.png", mask
