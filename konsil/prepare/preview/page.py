"""The page: one HTML file that needs nothing from outside and runs no script.

What it says and where things lie is found here, templates/page.html draws it. Nothing on it leads
to a file or a patient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from konsil.colours import FIXED_COLOURS, FURTHER_COLOURS, structure_colour
from konsil.data.recipe import mask_files
from konsil.data.sources import without_suffix
from konsil.prepare.check import CheckResult
from konsil.prepare.check.look import PERCENTILES
from konsil.prepare.preview.sheets import Picture
from konsil.prepare.preview.shift import COARSE, Floats, Shift

COLOURS = (*(FIXED_COLOURS[name] for name in ("fedavg", "fedsm", "fedsoup")), *FURTHER_COLOURS)
WIDE, MAP_HEIGHT = 520, 400  # in SVG's own units
BINS = 64  # of a histogram
CUT = 1.2  # times the highest level off the ends, where histograms are cut
EDGE = 8  # between the dots and their frame


def render(
    result: CheckResult, shift: Shift | None, sheets: Mapping[str, Sequence[Picture]]
) -> str:
    """The whole file; `shift` is None if there is one site only."""
    pages = Environment(
        loader=PackageLoader("konsil.prepare.preview"),
        autoescape=True,  # names of sites and classes are anybody's
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    sites = result.sites
    images = sum(own.images for own in sites.values())
    colours = {site: COLOURS[k % len(COLOURS)] for k, site in enumerate(sites)}
    errors, warnings = problems_in_words(result)
    curves = _curves(result)
    return pages.get_template("page.html").render(
        title=f"{len(sites)} site{'' if len(sites) == 1 else 's'}, {images:,} images",
        result=result,
        sites=sites,
        segmentation=result.task == "segmentation",
        volumes=any(own.volumes for own in sites.values()),
        colours=colours,
        errors=errors,
        warnings=warnings,
        shift=shift,
        dots=_dots(shift, result.task, colours) if shift else [],
        curves=curves,
        mean_curve=np.mean(list(curves.values()), axis=0),
        line=partial(_line, _ceiling(curves)),
        areas_of=partial(_areas, result),
        sheets=sheets,
        coarse=COARSE,
        map_height=MAP_HEIGHT,
        percentiles=PERCENTILES,
        structure_colour=structure_colour,
        wide=WIDE,
    )


# --- charts -------------------------------------------------------------------------------------


def _dots(shift: Shift, task: str, colours: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    """Place, colour and words of every image, in the order in which they are drawn."""
    low, high = shift.points.min(axis=0), shift.points.max(axis=0)
    room = np.array([WIDE, MAP_HEIGHT]) - 2 * EDGE
    placed = (shift.points - low) * (room / np.maximum(high - low, 1e-9)) + EDGE
    dots = []
    # In any order but their own: no site lies on top of another as a whole.
    for k in np.random.default_rng(0).permutation(len(placed)).tolist():
        item, (x, y) = shift.data.items[k], placed[k]
        words = (item.site, item.split, item.label if task == "classification" else "")
        text = ", ".join(word for word in words if word)
        dots.append((f"{x:.1f}", f"{MAP_HEIGHT - y:.1f}", colours[item.site], text))
    return dots


def _curves(result: CheckResult) -> dict[str, Floats]:
    """How often each grey occurs at a site; every image counts alike."""
    sums: dict[str, Floats] = {}
    for one in result.seen:
        share = one.histogram / max(one.histogram.sum(), 1) * one.count
        sums[one.item.site] = sums.get(one.item.site, 0) + share
    return {site: density(sums[site]) for site in result.sites if site in sums}


def density(counts: Floats) -> Floats:
    """A histogram of 256 greys as parts of all pixels in `BINS` bins."""
    bins: Floats = counts.reshape(BINS, -1).sum(axis=1)
    return bins / max(counts.sum(), 1)


def _ceiling(curves: Mapping[str, Floats]) -> float:
    """Where to cut: black backgrounds and white edges would press everything else flat."""
    return max(CUT * max(float(curve[2:-2].max()) for curve in curves.values()), 1e-9)


def _line(top: float, curve: Floats, width: float, height: float) -> str:
    """A curve as an SVG path; what exceeds `top` is cut off."""
    xs = np.linspace(0, width, len(curve))
    ys = height - np.minimum(curve / top, 1) * (height - 4)
    return "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in zip(xs, ys, strict=True))


@dataclass(frozen=True)
class Areas:
    """How much of an image a structure covers, site by site, on one scale."""

    largest: float  # the end of the scale
    spread: dict[str, list[float]]  # site -> percentiles 5, 25, 50, 75, 95

    @classmethod
    def of(cls, values: Mapping[str, Sequence[float]]) -> Areas:
        """From the areas of every image; a site without images is left out."""
        there = {site: own for site, own in values.items() if len(own)}
        largest = float(np.percentile(np.concatenate(list(there.values())), 99.5)) * 1.05
        spread = {site: np.percentile(own, PERCENTILES).tolist() for site, own in there.items()}
        return cls(max(largest, 1e-6), spread)

    def place(self, begin: float, end: float | None = None, least: float = 0.0) -> str:
        """From where to where on the scale, as CSS; `least` is the smallest width in per cent."""
        left = f"left:{100 * begin / self.largest:.2f}%"
        if end is None:
            return left
        return f"{left};width:{max(100 * (end - begin) / self.largest, least):.2f}%"


def _areas(result: CheckResult, structure: str) -> Areas:
    by_site: dict[str, list[float]] = {site: [] for site in result.sites}
    for one in result.seen:
        by_site[one.item.site].append(one.areas.get(structure, 0.0))
    return Areas.of(by_site)


# --- words --------------------------------------------------------------------------------------


def problems_in_words(result: CheckResult) -> tuple[list[str], list[str]]:
    """Errors and warnings of the check, each in a line."""
    # collected by kind: what a problem with a cure is names no file, its places do
    errors = [_times(one.what, len(one.places)) for one in result.errors if one.cure]
    refused = sum(not problem.cure for problem in result.errors)
    if refused:
        errors.append(f"refused for {'a reason' if refused == 1 else f'{refused} reasons'} more")
    secrets = _secrets(result)
    telling = [note for note in result.warnings if any(secret in note.text for secret in secrets)]
    warnings = [note.text for note in result.warnings if note not in telling]
    kinds = Counter(note.kind for note in telling)
    return errors, warnings + [_times(kind, count) for kind, count in kinds.items()]


def _times(what: str, count: int) -> str:
    return f"{what} ({count} times)" if count > 1 else what


def _secrets(result: CheckResult) -> set[str]:
    """Everything that leads to a file or a patient."""
    secrets = {one.item.patient for one in result.seen}
    for one in result.seen:
        masks = mask_files(one.item) if result.task == "segmentation" else []
        for path in (one.item.image, *masks):
            secrets |= {path, without_suffix(path).rpartition("/")[2]}
    return secrets - {""}
