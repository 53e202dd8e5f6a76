"""What the three painters share: random streams, blurs, textures, outlines.

Pictures are float64 arrays, channels first, until `to_bytes`; coordinates are pixels.
"""

import io
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from konsil.randomness import digest

Array = NDArray[np.float64]
Bytes = NDArray[np.uint8]


def stream(*names: str | int) -> np.random.Generator:
    """A random stream that depends on these names alone, on every machine and in every order."""
    seed = np.frombuffer(digest(*names, between="/"), dtype="<u4")
    return np.random.default_rng(seed.tolist())


@lru_cache(maxsize=256)
def _gaussian(length: int, sigma: float) -> Array:
    distance = np.subtract.outer(np.arange(length), np.arange(length)) / sigma
    kernel = np.exp(-0.5 * distance**2)
    return kernel / kernel.sum(axis=1, keepdims=True)


def blur(picture: Array, sigma: float, sigma_x: float | None = None) -> Array:
    """Gaussian blur of the last two axes; `sigma_x` where the horizontal one differs."""
    down, across = round(sigma, 2), round(sigma if sigma_x is None else sigma_x, 2)
    if down >= 0.2:  # below that a Gaussian is narrower than a pixel
        picture = _gaussian(picture.shape[-2], down) @ picture
    if across >= 0.2:
        picture = picture @ _gaussian(picture.shape[-1], across).T
    return picture


@lru_cache(maxsize=256)
def _bumps(length: int, sigma: float) -> Array:
    """Gaussian bumps at most 2/3 sigma apart, scaled so that white weights give variance 1."""
    spacing = max(1.0, sigma / 1.5)
    centres = np.arange(-2 * sigma, length + 2 * sigma, spacing)
    bumps = np.exp(-0.5 * (np.subtract.outer(np.arange(length), centres) / sigma) ** 2)
    return bumps / np.linalg.norm(bumps, axis=1, keepdims=True)


def cloud(rng: np.random.Generator, *scales: tuple[int, float]) -> Array:
    """Smooth noise of mean 0 and variance 1: an axis a scale, each (length, sigma in pixels)."""
    bases = [_bumps(length, sigma) for length, sigma in scales]
    noise = rng.standard_normal([basis.shape[1] for basis in bases])
    noise = bases[-2] @ noise @ bases[-1].T
    return np.tensordot(bases[0], noise, axes=1) if len(bases) == 3 else noise


def square_cloud(size: int, rng: np.random.Generator, sigma: float) -> Array:
    """A cloud over a square picture, alike in both directions."""
    return cloud(rng, (size, sigma), (size, sigma))


def coverage(size: int, fine: int, polygons: Iterable[tuple[Array, int]]) -> Array:
    """Polygons, (corners, 2) and a grey value, one over the other; 0 to 1 in a square picture.

    They are drawn `fine` times finer, then averaged down.
    """
    canvas = Image.new("L", (size * fine, size * fine))
    draw = ImageDraw.Draw(canvas)
    for outline, value in polygons:
        draw.polygon((fine * outline).ravel().tolist(), fill=value)
    return np.asarray(canvas.reduce(fine), dtype=np.float64) / 255.0


def grid(size: int) -> tuple[Array, Array]:
    """Pixel centres (x, y) of a square picture."""
    y, x = np.mgrid[0:size, 0:size] + 0.5
    return x, y


def inside(distance: Array, softness: float) -> Array:
    """1 where a signed distance is negative, 0 where positive, a ramp `softness` wide between."""
    ramp = np.clip(0.5 - distance / softness, 0.0, 1.0)
    return ramp * ramp * (3.0 - 2.0 * ramp)


def wobble(angle: Array, amplitudes: Array, phases: Array) -> Array:
    """A closed outline's deviation from a circle: a short Fourier series, from harmonic 2 on."""
    turn = np.linspace(-np.pi, np.pi, 361)
    orders = np.arange(2, 2 + len(amplitudes))[:, None]
    outline = (amplitudes[:, None] * np.cos(orders * turn + phases[:, None])).sum(axis=0)
    return np.interp(angle, turn, outline)


def to_bytes(picture: Array, jpeg: int | None = None) -> Bytes:
    """[0, 1], channels first or grey, as 8-bit values with the channels last.

    `jpeg`: the quality with which an archive stored it, with losses.
    """
    levels = np.round(np.clip(picture, 0.0, 1.0) * 255.0).astype(np.uint8)
    levels = np.ascontiguousarray(levels.transpose(1, 2, 0) if levels.ndim == 3 else levels)
    if jpeg is None:
        return levels
    buffer = io.BytesIO()
    Image.fromarray(levels).save(buffer, "JPEG", quality=jpeg)
    return np.asarray(Image.open(buffer))
