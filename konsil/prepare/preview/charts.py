"""Where lines, dots and boxes of the small charts lie; templates/page.html draws them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

WIDE, MAP_HEIGHT = 520, 400  # in SVG's own units
BINS = 64  # of a histogram
CUT = 1.2  # times the highest level off the ends, where histograms are cut
EDGE = 8  # between the dots and their frame
Floats = NDArray[np.floating[Any]]


def densities(histograms: Mapping[str, Floats]) -> dict[str, Floats]:
    """Histograms of 256 greys as parts of all pixels in `BINS` bins."""
    return {
        site: counts.reshape(BINS, -1).sum(axis=1) / max(counts.sum(), 1)
        for site, counts in histograms.items()
    }


def ceiling(curves: Mapping[str, Floats]) -> float:
    """Where to cut: black backgrounds and white edges would press everything else flat."""
    inner = max(float(curve[2:-2].max()) for curve in curves.values())
    return max(CUT * inner, 1e-9)


def line(curve: Floats, top: float, width: float, height: float) -> str:
    """A curve as an SVG path; what exceeds `top` is cut off."""
    xs = np.linspace(0, width, len(curve))
    ys = height - np.minimum(curve / top, 1) * (height - 4)
    return "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in zip(xs, ys, strict=True))


def dots(points: Floats) -> list[tuple[int, str, str]]:
    """The number and the place of every point, in the order in which they are drawn."""
    low, high = points.min(axis=0), points.max(axis=0)
    room = np.array([WIDE, MAP_HEIGHT]) - 2 * EDGE
    placed = (points - low) * (room / np.maximum(high - low, 1e-9)) + EDGE
    # In any order but their own: no site lies on top of another as a whole.
    order = np.random.default_rng(0).permutation(len(points)).tolist()
    return [(k, f"{placed[k, 0]:.1f}", f"{MAP_HEIGHT - placed[k, 1]:.1f}") for k in order]


@dataclass(frozen=True)
class Areas:
    """How much of an image a structure covers, site by site, on one scale."""

    largest: float  # the end of the scale
    spread: dict[str, list[float]]  # site -> percentiles 5, 25, 50, 75, 95

    @classmethod
    def of(cls, values: Mapping[str, Floats]) -> Areas:
        """From the areas of every image; a site without images is left out."""
        every = np.concatenate(list(values.values()))
        largest = max(float(np.percentile(every, 99.5)) * 1.05, 1e-6)
        quantiles = (5, 25, 50, 75, 95)
        there = {site: own for site, own in values.items() if len(own)}
        return cls(largest, {s: np.percentile(v, quantiles).tolist() for s, v in there.items()})

    def place(self, begin: float, end: float | None = None, least: float = 0.0) -> str:
        """From where to where on the scale, as CSS; `least` is the smallest width in per cent."""
        left = f"left:{100 * begin / self.largest:.2f}%"
        if end is None:
            return left
        return f"{left};width:{max(100 * (end - begin) / self.largest, least):.2f}%"
