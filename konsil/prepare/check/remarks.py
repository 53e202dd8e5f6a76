"""What only a look at every file shows: legal, but unlikely to be meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

import numpy as np

from konsil.data.notes import Note
from konsil.prepare.check.facts import SiteFacts
from konsil.prepare.check.look import GREYS, Seen

BY_SUFFIX = {
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".bmp": "BMP",
    ".tif": "TIFF",
    ".tiff": "TIFF",
}
SPACING_RATIO = 1.5  # between sites; a network trained on one scale finds little on another
CUT_OFF = 0.9  # of all pixels
FORGOTTEN = 0.05  # of a site's masks: so few empty ones are rather forgotten than meant
NAMED = 3  # files in a sentence


def remarks(seen: Sequence[Seen], facts: Mapping[str, SiteFacts]) -> Iterator[Note]:
    """One note for each thing, site by site, and then between sites."""
    for site, own in facts.items():
        files = [one for one in seen if one.item.site == site]
        if files:
            yield from _other_format(site, files)
            yield from _mixed_pixels(site, own)
            yield from _cut_off(site, files)
            yield from _empty_masks(site, files, own)
    yield from _different_spacing(facts)


def _other_format(site: str, files: Sequence[Seen]) -> Iterator[Note]:
    wrong = [one for one in files if _kind(one) != _kind_by_name(one)]
    if wrong:
        kinds = sorted({_kind(one) for one in wrong})
        lossy = ", but JPEG has lost what a PNG would have kept" if "JPEG" in kinds else ""
        text = (
            f"site {site}: by content {_named(wrong)} is {' or '.join(kinds)}. It can be "
            f"read{lossy}: rename it, or export it again"
        )
        yield Note("another format than the name says", text, site)


def _kind(one: Seen) -> str:
    return "JPEG" if one.kind == "MPO" else one.kind  # a JPEG with a second picture in it


def _kind_by_name(one: Seen) -> str:
    return BY_SUFFIX.get(PurePosixPath(one.item.image).suffix.lower(), "volume")


def _named(files: Sequence[Seen]) -> str:
    names = ", ".join(one.item.image for one in files[:NAMED])
    return names if len(files) <= NAMED else f"{names} and {len(files) - NAMED} more"


def _mixed_pixels(site: str, own: SiteFacts) -> Iterator[Note]:
    if len(own.pixels) > 1:
        kinds = ", ".join(f"{count} {pixel}" for pixel, count in own.pixels.items())
        text = (
            f"site {site}: pixels of several kinds ({kinds}). If they come from different machines "
            "or exports, a model may learn that instead: export them alike, or make two sites of "
            "them"
        )
        yield Note("mixed pixel types", text, site)


def _cut_off(site: str, files: Sequence[Seen]) -> Iterator[Note]:
    """A window that fits another scanner leaves black and white."""
    histogram = np.asarray(sum(one.histogram for one in files))
    cut = (histogram[0] + histogram[GREYS - 1]) / histogram.sum()
    if cut >= CUT_OFF:
        low, high = min(one.low for one in files), max(one.high for one in files)
        text = (
            f"site {site}: {cut:.0%} of all pixels become plain black or white (the files hold "
            f"{low:g} to {high:g}): look at the preview, and mend `window` if more should be seen"
        )
        yield Note("almost black or white", text, site)


def _empty_masks(site: str, files: Sequence[Seen], own: SiteFacts) -> Iterator[Note]:
    if 0 < own.unmarked <= FORGOTTEN * own.images:
        empty = [one for one in files if one.unmarked]
        text = (
            f"site {site}: nothing is marked on {own.unmarked} of {own.images} images "
            f"({_named(empty)}). If a mask was forgotten, draw it or take the image away; if there "
            "is nothing to mark, all is well"
        )
        yield Note("few empty masks", text, site)


def _different_spacing(facts: Mapping[str, SiteFacts]) -> Iterator[Note]:
    spacings = {site: own.spacing for site, own in facts.items() if own.spacing is not None}
    pixels = _extremes({s: (row * column) ** 0.5 for s, (_, row, column) in spacings.items()})
    slices = _extremes({s: between for s, (between, _, _) in spacings.items()})
    if pixels:
        text = (
            f"pixels are {pixels}. Images are scaled to one size, so organs may differ in scale "
            "between these sites: resample or crop them to one field of view if that is not wanted"
        )
        yield Note("different pixel spacing", text)
    if slices:
        text = (
            f"slices are {slices}. The former has more images a patient, and more alike: thin them "
            "out by `slices: {every: 2}` at that site if it should not outweigh the others"
        )
        yield Note("different slice spacing", text)


def _extremes(sizes: Mapping[str, float]) -> str:
    """The sites with the finest and the coarsest grid, if they differ much."""
    if not sizes:
        return ""
    fine, coarse = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
    if sizes[coarse] <= SPACING_RATIO * sizes[fine]:
        return ""
    return f"{sizes[fine]:.3g} mm apart at {fine} and {sizes[coarse]:.3g} mm at {coarse}"
