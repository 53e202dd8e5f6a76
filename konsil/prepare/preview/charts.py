"""Small charts: lines and points as SVG, boxes and bars as HTML that fits any width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

WIDE, HIGH = 520, 250  # of the chart of all sites, in SVG's own units
BINS = 64  # of a histogram
CUT = 1.2  # times the highest level off the ends, where histograms are cut
Floats = NDArray[np.floating[Any]]


# --- histograms ---------------------------------------------------------------------------------


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


def all_histograms(curves: Mapping[str, Floats], colours: Mapping[str, str]) -> str:
    """Every site as a line in one chart."""
    top = ceiling(curves)
    lines = [
        f'<path d="{_line(curve, top, WIDE, HIGH)}" fill="none" stroke="{colours[site]}" '
        f'stroke-width="2.5"><title>{escape(site)}</title></path>'
        for site, curve in curves.items()
    ]
    return _svg(WIDE, HIGH, "Grey levels of all sites", _greys(WIDE, HIGH), *lines)


def own_histogram(site: str, curves: Mapping[str, Floats], colours: Mapping[str, str]) -> str:
    """One site, filled, before the mean of all."""
    width, height = 250, 110
    top = ceiling(curves)
    mean = np.mean(list(curves.values()), axis=0)
    area = f"{_line(curves[site], top, width, height)} L{width} {height} L0 {height} Z"
    return _svg(
        width,
        height,
        f"Grey levels of {site}",
        f'<path d="{area}" fill="{colours[site]}" fill-opacity=".55" stroke="{colours[site]}"/>',
        f'<path d="{_line(mean, top, width, height)}" class="all"/>',
        f'<path d="M0 {height} H{width}" class="axis"/>',
    )


def _line(curve: Floats, top: float, width: float, height: float) -> str:
    xs = np.linspace(0, width, len(curve))
    ys = height - np.minimum(curve / top, 1) * (height - 4)
    return "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in zip(xs, ys, strict=True))


def _greys(width: float, height: float) -> str:
    marks = []
    for level in (0, 64, 128, 192, 255):
        x = level / 255 * width
        anchor = "start" if level == 0 else "end" if level == 255 else "middle"
        marks.append(f'<path d="M{x:.1f} {height} v5" class="axis"/>')
        marks.append(f'<text x="{x:.1f}" y="{height + 20}" text-anchor="{anchor}">{level}</text>')
    return f'<path d="M0 {height} H{width}" class="axis"/>' + "".join(marks)


def _svg(width: int, height: int, label: str, *inner: str) -> str:
    box = f"-6 0 {width + 12} {height + 26}" if width == WIDE else f"0 0 {width} {height + 2}"
    return (
        f'<svg viewBox="{box}" role="img" aria-label="{escape(label, quote=True)}">'
        + "".join(inner)
        + "</svg>"
    )


# --- points -------------------------------------------------------------------------------------


def scatter(points: Floats, colours: Sequence[str], words: Sequence[str]) -> str:
    """A dot for every image; hovering over it says what it is."""
    height = 400
    low, high = points.min(axis=0), points.max(axis=0)
    scale = np.array([WIDE - 16, height - 16]) / np.maximum(high - low, 1e-9)
    placed = (points - low) * scale + 8
    order = np.argsort(placed[:, 0] * 7919 % 1)  # no site lies on top of another as a whole
    dots = [
        f'<circle cx="{placed[k, 0]:.1f}" cy="{height - placed[k, 1]:.1f}" r="3.2" '
        f'fill="{colours[k]}"><title>{escape(words[k])}</title></circle>'
        for k in order
    ]
    frame = f'<rect x="0" y="0" width="{WIDE}" height="{height}" class="frame"/>'
    return (
        f'<svg viewBox="-2 -2 {WIDE + 4} {height + 4}" role="img" class="map" '
        f'aria-label="Every image as a dot">{frame}{"".join(dots)}</svg>'
    )


# --- boxes and bars -----------------------------------------------------------------------------


def box(values: Floats, largest: float, colour: str) -> str:
    """Where the values lie: 5th to 95th percentile, quartiles, median."""
    if not len(values):
        return ""
    low, first, middle, third, high = np.percentile(values, [5, 25, 50, 75, 95]) / largest * 100
    words = f"median {middle * largest / 100:.1%}, half of them {first * largest / 100:.1%} to "
    words += f"{third * largest / 100:.1%}"
    return (
        f'<div class="range" title="{words}"><i class="whisker" style="left:{low:.2f}%;'
        f'width:{high - low:.2f}%"></i><i class="quartiles" style="left:{first:.2f}%;'
        f'width:{max(third - first, 0.3):.2f}%;background:{colour}"></i>'
        f'<i class="median" style="left:{middle:.2f}%"></i></div>'
    )


def stack(counts: Mapping[str, int], colours: Mapping[str, str]) -> str:
    """Parts of a whole, side by side."""
    total = max(sum(counts.values()), 1)
    parts = [
        f'<i style="width:{100 * count / total:.2f}%;background:{colours[name]}" '
        f'title="{escape(name, quote=True)}: {count}"></i>'
        for name, count in counts.items()
    ]
    return f'<div class="stack">{"".join(parts)}</div>'
