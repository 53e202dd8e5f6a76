"""What only a look at every file shows: legal, but unlikely to be meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from konsil.data.notes import Note
from konsil.prepare.check.facts import SiteFacts, Spacing
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


def remarks(seen: Sequence[Seen], facts: Mapping[str, SiteFacts]) -> list[Note]:
    """One note for each thing, site by site, and then between sites."""
    notes = []
    for site, own in facts.items():
        files = [one for one in seen if one.item.site == site]
        notes += _other_format(site, files)
        notes += _mixed_pixels(site, own)
        notes += _cut_off(site, files)
        notes += _empty_masks(site, files, own)
    return notes + _different_pixels(facts) + _different_slices(facts)


def _other_format(site: str, files: Sequence[Seen]) -> list[Note]:
    wrong = [one for one in files if _kind(one) != _kind_by_name(one)]
    if not wrong:
        return []
    kinds = sorted({_kind(one) for one in wrong})
    lossy = ", but JPEG has lost what a PNG would have kept" if "JPEG" in kinds else ""
    text = (
        f"site {site}: by content {_named(wrong)} is {' or '.join(kinds)}. It can be read{lossy}: "
        "rename it, or export it again"
    )
    return [Note("another format than the name says", text, site)]


def _kind(one: Seen) -> str:
    return "JPEG" if one.kind == "MPO" else one.kind  # a JPEG with a second picture in it


def _kind_by_name(one: Seen) -> str:
    return BY_SUFFIX.get(PurePosixPath(one.item.image).suffix.lower(), "volume")


def _named(files: Sequence[Seen]) -> str:
    names = ", ".join(one.item.image for one in files[:NAMED])
    return names if len(files) <= NAMED else f"{names} and {len(files) - NAMED} more"


def _mixed_pixels(site: str, own: SiteFacts) -> list[Note]:
    if len(own.pixels) < 2:
        return []
    kinds = ", ".join(f"{count} {pixel}" for pixel, count in own.pixels.items())
    text = (
        f"site {site}: pixels of several kinds ({kinds}). If they come from different machines or "
        "exports, a model may learn that instead: export them alike, or make two sites of them"
    )
    return [Note("mixed pixel types", text, site)]


def _cut_off(site: str, files: Sequence[Seen]) -> list[Note]:
    """A window that fits another scanner leaves black and white."""
    histogram = sum(one.histogram for one in files)
    if isinstance(histogram, int):
        return []
    cut = (histogram[0] + histogram[GREYS - 1]) / histogram.sum()
    if cut < CUT_OFF:
        return []
    low, high = min(one.low for one in files), max(one.high for one in files)
    text = (
        f"site {site}: {cut:.0%} of all pixels become plain black or white (the files hold {low:g} "
        f"to {high:g}): look at the preview, and mend `window` if more should be seen"
    )
    return [Note("almost black or white", text, site)]


def _empty_masks(site: str, files: Sequence[Seen], own: SiteFacts) -> list[Note]:
    if not 0 < own.unmarked <= FORGOTTEN * own.images:
        return []
    empty = [one for one in files if one.unmarked]
    text = (
        f"site {site}: nothing is marked on {own.unmarked} of {own.images} images "
        f"({_named(empty)}). If a mask was forgotten, draw it or take the image away; if there is "
        "nothing to mark, all is well"
    )
    return [Note("few empty masks", text, site)]


def _different_pixels(facts: Mapping[str, SiteFacts]) -> list[Note]:
    extremes = _extremes({site: (s[1] * s[2]) ** 0.5 for site, s in _spacings(facts).items()})
    if extremes is None:
        return []
    text = (
        f"pixels are {extremes}. Images are scaled to one size, so organs may differ in scale "
        "between these sites: resample or crop them to one field of view if that is not wanted"
    )
    return [Note("different pixel spacing", text)]


def _different_slices(facts: Mapping[str, SiteFacts]) -> list[Note]:
    extremes = _extremes({site: s[0] for site, s in _spacings(facts).items()})
    if extremes is None:
        return []
    text = (
        f"slices are {extremes}. The former has more images a patient, and more alike: thin them "
        "out by `slices: {every: 2}` at that site if it should not outweigh the others"
    )
    return [Note("different slice spacing", text)]


def _spacings(facts: Mapping[str, SiteFacts]) -> dict[str, Spacing]:
    return {site: own.spacing for site, own in facts.items() if own.spacing is not None}


def _extremes(sizes: Mapping[str, float]) -> str | None:
    """The sites with the finest and the coarsest grid, if they differ much."""
    ordered = sorted(sizes, key=sizes.__getitem__)
    if not ordered or sizes[ordered[-1]] <= SPACING_RATIO * sizes[ordered[0]]:
        return None
    fine, coarse = ordered[0], ordered[-1]
    return f"{sizes[fine]:.3g} mm apart at {fine} and {sizes[coarse]:.3g} mm at {coarse}"
