"""Small T2-weighted volumes of the male pelvis, the prostate outlined: high similarity.

A volume is painted structure by structure, from fat to gland, at once for all its slices (apex to
base), and then measured by a scanner: coil sensitivity, resolution, Rician noise, display window.
Sites share the anatomy; docs/synthetic.md states what differs and why that is plausible.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from konsil.data.synthetic.brush import Array, Bytes, blur, cloud, grid, inside, stream, to_bytes

SIZE = 128
PROSTATE = 255
_X, _Y = ((axis / SIZE * 2 - 1)[None] for axis in grid(SIZE))  # -1 to 1; y points to the back
_PIXEL = 2 / SIZE
FAT, MUSCLE, MARROW, CORTEX, URINE, WALL, GAS = 0.68, 0.15, 0.42, 0.04, 0.95, 0.28, 0.02


@dataclass(frozen=True)
class Site:
    """One hospital's scanner and protocol."""

    images: int  # patients
    gain: float  # brightness of the display window
    gamma: float  # contrast: above 1 darkens the middle greys
    pedestal: float  # what the window makes of no signal
    bias: float  # unevenness of the receive coil
    endorectal: float  # share of patients scanned with an endorectal coil
    blur: float  # pixels
    noise: float


SITES = {
    "alder": Site(30, 0.95, 1.00, 0.00, 0.12, 0.0, 0.45, 0.020),
    "briar": Site(22, 0.72, 1.10, 0.00, 0.15, 0.0, 0.50, 0.018),
    "clover": Site(16, 1.25, 0.95, 0.01, 0.12, 0.0, 0.60, 0.022),
    "dogwood": Site(12, 0.80, 1.20, 0.00, 0.22, 0.9, 0.40, 0.022),
    "erica": Site(8, 0.95, 0.80, 0.04, 0.15, 0.0, 0.65, 0.030),
    "fern": Site(6, 0.62, 0.95, 0.01, 0.25, 0.5, 0.55, 0.026),
}


@dataclass(frozen=True)
class Pelvis:
    """One patient's geometry. Lengths are half widths of the picture; heights run 0 to 1."""

    x: Array  # where each pixel lies in the undeformed pelvis, (1, SIZE, SIZE)
    y: Array
    height: Array  # 0 at the prostate's apex, 1 at its base, (slices, 1, 1)
    gland: tuple[float, float]  # half width and half depth of the prostate at mid-height
    centre: tuple[float, float]
    rectum: float  # radius
    coil: bool
    bladder: float  # filling


def _pelvis(site: Site, rng: np.random.Generator) -> Pelvis:
    wide, deep = np.exp(rng.normal(0.0, 0.06, 2))  # the body in the field of view
    bend = [0.03 * cloud(rng, (SIZE, 18.0), (SIZE, 18.0))[None] for _ in range(2)]
    ripple = [0.011 * cloud(rng, (SIZE, 4.0), (SIZE, 4.0))[None] for _ in range(2)]
    half_width = 0.27 * np.exp(rng.normal(0.0, 0.16))
    coil = bool(rng.random() < site.endorectal)
    return Pelvis(
        x=(_X + rng.normal(0, 0.02)) / wide + bend[0] + ripple[0],
        y=(_Y + rng.normal(0, 0.04)) / deep + bend[1] + ripple[1],
        height=np.linspace(0.0, 1.0, int(rng.integers(8, 15)))[:, None, None],
        gland=(half_width, half_width * rng.uniform(0.72, 0.9)),
        centre=(rng.normal(0, 0.015), rng.normal(-0.06 if coil else 0.0, 0.03)),
        rectum=rng.uniform(0.21, 0.26) if coil else rng.uniform(0.10, 0.19),
        coil=coil,
        bladder=rng.uniform(0.6, 1.1),
    )


def _ellipse(
    x: Array, y: Array, centre: tuple[float | Array, float | Array],
    radii: tuple[float | Array, float | Array], tilt: float = 0.0,
) -> Array:  # fmt: skip
    """About the signed distance to an ellipse; `tilt` turns it clockwise on the screen."""
    cos, sin = np.cos(tilt), np.sin(tilt)
    dx, dy = x - centre[0], y - centre[1]
    along, across = cos * dx + sin * dy, cos * dy - sin * dx
    reach = np.sqrt((along / radii[0]) ** 2 + (across / radii[1]) ** 2)
    return (reach - 1.0) * np.minimum(radii[0], radii[1])


def _paint(canvas: Array, value: float | Array, distance: Array, softness: float = 0.03) -> Array:
    return canvas + (value - canvas) * inside(distance, softness)


def _bone(canvas: Array, distance: Array, marrow: Array) -> Array:
    """Marrow in a dark cortical shell."""
    return _paint(_paint(canvas, CORTEX, distance - 0.025), marrow, distance)


def _fat(pelvis: Pelvis, rng: np.random.Generator) -> Array:
    """Fat with thin dark septa and small vessels."""
    septa = np.exp(-((cloud(rng, (SIZE, 4.5), (SIZE, 4.5)) / 0.1) ** 2))
    vessels = cloud(rng, (SIZE, 1.3), (SIZE, 1.3)) > 2.1
    mottle = 0.05 * cloud(rng, (SIZE, 8.0), (SIZE, 8.0)) + 0.03 * cloud(
        rng, (SIZE, 1.5), (SIZE, 1.5)
    )
    fat = FAT + mottle - 0.2 * septa - 0.4 * blur(vessels.astype(float), 0.5)
    return np.repeat(fat[None], len(pelvis.height), axis=0)


def _muscle(rng: np.random.Generator) -> Array:
    """Muscle with fatty streaks along its fibres."""
    streaks = np.clip(cloud(rng, (SIZE, 1.0), (SIZE, 5.0)) - 1.2, 0, 1)
    return MUSCLE + 0.25 * streaks[None] + 0.02 * cloud(rng, (SIZE, 1.0), (SIZE, 1.0))[None]


def _walls(canvas: Array, pelvis: Pelvis, rng: np.random.Generator) -> Array:
    """Muscles and bones around the pelvis, both sides at once."""
    side, y, z = np.abs(pelvis.x), pelvis.y, pelvis.height
    muscle = _muscle(rng)
    marrow = MARROW + 0.05 * cloud(rng, (SIZE, 1.5), (SIZE, 1.5))[None]
    canvas = _paint(canvas, muscle, _ellipse(side, y, (0.62, 0.84), (0.56, 0.17), 0.22), 0.05)
    canvas = _paint(canvas, muscle, _ellipse(side, y, (0.62, -0.60), (0.50, 0.14), -0.55))
    canvas = _paint(canvas, muscle, _ellipse(side, y, (0.50, -0.36), (0.42, 0.10), -0.60))
    canvas = _bone(
        canvas, _ellipse(side, y, (0.98, -0.12 - 0.1 * z), (0.1 + 0.22 * z,) * 2), marrow
    )
    canvas = _bone(canvas, _ellipse(side, y, (0.76, 0.26), (0.13, 0.30 - 0.08 * z), -0.25), marrow)
    canvas = _paint(canvas, muscle, _ellipse(side, y, (0.56, 0.08), (0.085, 0.46), -0.16))
    pubis = _ellipse(side, y, (0.16, -0.58), (0.12 - 0.05 * z, 0.21 - 0.2 * z), 0.35)
    canvas = _bone(canvas, pubis + 0.3 * np.maximum(z - 0.6, 0), marrow)
    artery = _ellipse(side, y, (0.74, -0.80), (0.06, 0.06))
    vein = _ellipse(side, y, (0.60, -0.82), (0.07, 0.055))
    return _paint(_paint(canvas, 0.03, artery), 0.08, vein)


def _bladder(canvas: Array, pelvis: Pelvis) -> Array:
    """It rises in front of the gland's upper half."""
    rise = np.clip((pelvis.height - 0.5) / 0.5, 0.02, 1.0) ** 0.6 * pelvis.bladder
    centre_y = pelvis.centre[1] - pelvis.gland[1] - 0.16 * rise - 0.02
    lumen = _ellipse(pelvis.x, pelvis.y, (0.0, centre_y), (0.40 * rise, 0.24 * rise))
    lumen = lumen + 0.5 * np.maximum(0.55 - pelvis.height, 0)
    return _paint(_paint(canvas, WALL, lumen - 0.045), URINE, lumen)


def _rectum(canvas: Array, pelvis: Pelvis, rng: np.random.Generator) -> Array:
    """Wall and gas or stool; or the balloon of an endorectal coil."""
    x, y = pelvis.x, pelvis.y
    back = pelvis.centre[1] + 0.85 * pelvis.gland[1] + 0.05
    centre = (rng.normal(0, 0.02), back + pelvis.rectum)
    lumen = _ellipse(x, y, centre, (pelvis.rectum * rng.uniform(0.9, 1.2), pelvis.rectum))
    sling = np.abs(_ellipse(x, y, (0, 0.05), (0.34, 0.66))) - 0.016 + 0.012 * pelvis.height
    canvas = _paint(canvas, 0.14, np.maximum(sling, 0.1 * (0.05 - y)))  # levator ani, tapering
    canvas = _paint(canvas, WALL, lumen - 0.05, 0.05)
    if not pelvis.coil:
        stool = 0.35 * (rng.random() < 0.35) * (1 + 0.3 * cloud(rng, (SIZE, 3.0), (SIZE, 3.0)))
        return _paint(canvas, GAS + stool[None], lumen)
    canvas = _paint(canvas, 0.08, lumen)
    core = _ellipse(x, y, (centre[0], centre[1] - 0.3 * pelvis.rectum), (0.06, 0.06))
    return _paint(_paint(canvas, 0.3, core), GAS, core + 0.03)


def _gland_distance(pelvis: Pelvis, rng: np.random.Generator) -> Array:
    """Signed distance to the prostate: widest above the middle, flat towards the rectum."""
    profile = np.sqrt(1 - ((pelvis.height - 0.55) / 0.62) ** 2)
    dx, dy = pelvis.x - pelvis.centre[0], pelvis.y - pelvis.centre[1]
    irregular = 1 + 0.04 * cloud(rng, (len(pelvis.height), 3.0), (SIZE, 20.0), (SIZE, 20.0))
    back = np.maximum(dy / pelvis.gland[1], 0.0)
    width, depth = (radius * profile for radius in pelvis.gland)
    reach = np.sqrt((dx / width) ** 2 + ((dy / depth) * (1 + 0.12 * back)) ** 2)
    return (reach * irregular - 1.0) * depth


def _gland(canvas: Array, pelvis: Pelvis, edge: Array, rng: np.random.Generator) -> Array:
    """Capsule, bright peripheral zone, nodular central gland, dark front, urethra, lesions."""
    shape = ((len(canvas), 1.3), (SIZE, 1.9), (SIZE, 1.9))
    width, depth = pelvis.gland
    x, y = pelvis.x - pelvis.centre[0], pelvis.y - pelvis.centre[1]
    peripheral = rng.uniform(0.62, 0.85) * (1 + 0.10 * cloud(rng, *shape))
    nodules = np.tanh(1.8 * cloud(rng, *shape))
    central = rng.uniform(0.32, 0.44) * (1 + rng.uniform(0.25, 0.5) * nodules)
    grow = 0.35 + 0.55 * np.minimum(1.4 * pelvis.height, 1.0)
    core = _ellipse(x, y, (0.0, -0.22 * depth), (0.9 * width * grow, 0.82 * depth * grow))
    canvas = _paint(canvas, 0.14, edge - 0.012)
    canvas = _paint(canvas, peripheral, edge + 0.02, 0.04)
    zone = np.maximum(core, edge + 0.03)
    canvas = _paint(_paint(canvas, 0.2, zone - 0.012), central, zone, 0.04)
    front = _ellipse(x, y, (0.0, -0.95 * depth), (0.4 * width, 0.25 * depth))
    canvas = _paint(canvas, 0.17, np.maximum(front, edge + 0.02), 0.06)
    urethra = _ellipse(x, y, (0.0, -0.1 * depth), (0.03, 0.03))
    canvas = _paint(canvas, 0.75, urethra + 0.15 * pelvis.height, 0.03)
    if rng.random() < 0.4:
        where = (rng.choice([-0.5, 0.5]) * width, 0.55 * depth)
        lesion = _ellipse(x, y, where, (0.06, 0.05)) + 0.4 * np.abs(pelvis.height - rng.random())
        canvas = _paint(canvas, 0.3, np.maximum(lesion, edge + 0.02), 0.05)
    return canvas


def _anatomy(pelvis: Pelvis, edge: Array, rng: np.random.Generator) -> Array:
    canvas = _walls(_fat(pelvis, rng), pelvis, rng)
    plexus = 0.5 + 0.22 * cloud(rng, (SIZE, 1.5), (SIZE, 1.5))[None]  # veins around the gland
    canvas = _paint(canvas, plexus, edge - 0.06, 0.06)
    canvas = _rectum(_bladder(canvas, pelvis), pelvis, rng)
    canvas = _gland(canvas, pelvis, edge, rng)
    skin = -0.93 - 0.25 * rng.uniform(-0.3, 1.0) + 0.18 * pelvis.x**2
    return np.clip(_paint(canvas, 0.0, pelvis.y - skin), 0.0, None)


def _sensitivity(site: Site, pelvis: Pelvis, rng: np.random.Generator) -> Array:
    """The receive coil: smooth and uneven; an endorectal one shines on what is near it."""
    uneven = np.exp(site.bias * cloud(rng, (SIZE, 40.0), (SIZE, 40.0)))[None]
    if not pelvis.coil:
        return uneven
    source_y = pelvis.centre[1] + pelvis.gland[1] + pelvis.rectum
    distance = np.hypot(_X, _Y - source_y)
    return uneven * (0.35 + 2.4 / (1 + (distance / rng.uniform(0.22, 0.3)) ** 2))


def _measure(site: Site, anatomy: Array, pelvis: Pelvis, rng: np.random.Generator) -> Array:
    """Magnitude of a noisy complex signal (Rician), shown in the site's window."""
    signal = blur(anatomy * _sensitivity(site, pelvis, rng), site.blur)
    real, imaginary = rng.normal(0.0, site.noise, (2, *signal.shape))
    magnitude = np.hypot(signal + real, imaginary)
    gain, gamma = np.exp(rng.normal(0.0, [0.22, 0.14])) * (site.gain, site.gamma)
    return site.pedestal + (1 - site.pedestal) * np.clip(gain * magnitude, 0, 1) ** gamma


def files(name: str, index: int) -> Iterator[tuple[str, Bytes]]:
    """The slices of patient `index` of a site, and their masks, with paths below the site."""
    site, rng = SITES[name], stream("prostate", name, index)
    pelvis = _pelvis(site, rng)
    edge = _gland_distance(pelvis, rng)
    volume = _measure(site, _anatomy(pelvis, edge, rng), pelvis, rng)
    for number, (picture, distance) in enumerate(zip(volume, edge, strict=True)):
        stem = f"p{index:03d}_{number:02d}"
        yield f"images/{stem}.png", to_bytes(picture)
        yield f"masks/{stem}.png", np.where(distance < 0, PROSTATE, 0).astype(np.uint8)
