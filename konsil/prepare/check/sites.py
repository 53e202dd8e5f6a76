"""What a site's data are like, in numbers, and what of it is legal but unlikely to be meant."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from konsil.data.notes import Note
from konsil.data.sources import SPLITS, Item
from konsil.prepare.check.look import Seen

FORMATS = {"JPG": "JPEG", "TIF": "TIFF", "MPO": "JPEG"}  # MPO: with a second picture in it
SPACING_RATIO = 1.5  # between sites; a network trained on one scale finds little on another
CUT_OFF = 0.9  # of all pixels
FORGOTTEN = 0.05  # of a site's masks: so few empty ones are rather forgotten than meant
NAMED = 3  # files in a sentence
OTHER_PIXELS = (
    "Images are scaled to one size, so organs may differ in scale between these sites: resample or "
    "crop them to one field of view if that is not wanted"
)
OTHER_SLICES = (
    "The former has more images a patient, and more alike: thin them out by `slices: {every: 2}` "
    "at that site if it should not outweigh the others"
)

Size = tuple[int, int]  # width and height
Spacing = tuple[float, ...]  # mm between planes, rows, columns


@dataclass(frozen=True)
class SiteFacts:
    """One site. "Images" are what training gets: pictures, and the chosen planes of volumes."""

    images: int
    volumes: int
    patients: int
    patients_known: bool  # False: every file counts as its own patient
    splits: dict[str, dict[str, int]] | None  # split -> images, patients; None: not to be drawn
    size: Size | None  # the most common one
    smallest: Size | None  # by width, and then height
    largest: Size | None
    spacing: Spacing | None  # the median volume's; None: pictures have none
    finest: Spacing | None
    coarsest: Spacing | None
    formats: dict[str, int]  # PNG, JPEG, ..., volume -> files
    pixels: dict[str, int]  # "8-bit colour", ... -> files
    low: float | None  # intensities as the files have them
    high: float | None
    values: dict[str, int]  # mask value, or colour -> pixels, background left out
    areas: dict[str, float]  # structure -> mean fraction of an image
    without: dict[str, int]  # structure -> images that do not show it
    unmarked: int  # images on which nothing is marked
    classes: dict[str, int]  # class -> images


def facts_of(
    seen: Sequence[Seen], patients_known: bool, classes: Sequence[str], colours: bool
) -> SiteFacts:
    """The facts of one site, whose items carry their splits, "" if they cannot be drawn.

    `classes` are in their order, none for a segmentation; `colours`: mask values are colours.
    """
    images = [image for one in seen for image in one.images]
    sizes = Counter(one.size for one in seen)
    spacings = np.array([one.spacing for one in seen if one.spacing is not None])
    values = sum((Counter(one.values) for one in seen), Counter[int]())
    structures = seen[0].areas if seen else {}
    labels = Counter(item.label for item in images)
    if classes:
        classes = [*classes, *sorted(set(labels) - set(classes))]
    return SiteFacts(
        images=len(images),
        volumes=len(spacings),
        patients=len({item.patient for item in images}),
        patients_known=patients_known,
        splits=_splits(images),
        size=sizes.most_common(1)[0][0] if sizes else None,
        smallest=min(sizes, default=None),
        largest=max(sizes, default=None),
        spacing=_spacing(np.median, spacings),
        finest=_spacing(np.min, spacings),
        coarsest=_spacing(np.max, spacings),
        formats=dict(Counter(one.kind for one in seen).most_common()),
        pixels=dict(Counter(one.pixel for one in seen).most_common()),
        low=min((one.low for one in seen), default=None),
        high=max((one.high for one in seen), default=None),
        values={f"#{v:06x}" if colours else str(v): n for v, n in sorted(values.items())},
        areas={k: sum(o.areas[k] * o.count for o in seen) / len(images) for k in structures},
        without={k: sum(one.without[k] for one in seen) for k in structures},
        unmarked=sum(one.unmarked for one in seen),
        classes={name: labels[name] for name in classes},
    )


def _spacing(of: Callable[..., Any], spacings: Any) -> Spacing | None:
    if not len(spacings):
        return None
    return tuple(round(float(number), 4) for number in of(spacings, axis=0))


def _splits(images: Sequence[Item]) -> dict[str, dict[str, int]] | None:
    if not images or not all(item.split for item in images):
        return None
    patients = {split: [i.patient for i in images if i.split == split] for split in SPLITS}
    return {
        split: {"images": len(own), "patients": len(set(own))} for split, own in patients.items()
    }


# --- what is odd --------------------------------------------------------------------------------


def remarks(at: Mapping[str, Sequence[Seen]], facts: Mapping[str, SiteFacts]) -> Iterator[Note]:
    """One note for each thing, site by site, and then between sites."""
    for site, files in at.items():
        if files:
            for kind, text in _odd(files, facts[site]):
                yield Note(kind, f"site {site}: {text}", site)
    yield from _different_spacing(facts)


def _odd(files: Sequence[Seen], own: SiteFacts) -> Iterator[tuple[str, str]]:
    """What only a look at every file of a site shows: its kind, and words."""
    wrong = [one for one in files if one.kind != "volume" and _format(one) != _format_by_name(one)]
    if wrong:
        kinds = sorted(set(map(_format, wrong)))
        lossy = ", but JPEG has lost what a PNG would have kept" if "JPEG" in kinds else ""
        yield (
            "another format than the name says",
            f"by content {_named(wrong)} is {' or '.join(kinds)}. It can be read{lossy}: rename "
            "it, or export it again",
        )
    if len(own.pixels) > 1:
        pixels = ", ".join(f"{count} {pixel}" for pixel, count in own.pixels.items())
        yield (
            "mixed pixel types",
            f"pixels of several kinds ({pixels}). If they come from different machines or exports, "
            "a model may learn that instead: export them alike, or make two sites of them",
        )
    histogram = np.sum([one.histogram for one in files], axis=0)
    cut = (histogram[0] + histogram[-1]) / histogram.sum()
    if cut >= CUT_OFF:  # a window that fits another scanner leaves black and white
        yield (
            "almost black or white",
            f"{cut:.0%} of all pixels become plain black or white (the files hold {own.low:g} to "
            f"{own.high:g}): look at the preview, and mend `window` if more should be seen",
        )
    if 0 < own.unmarked <= FORGOTTEN * own.images:
        yield (
            "few empty masks",
            f"nothing is marked on {own.unmarked} of {own.images} images "
            f"({_named([one for one in files if one.unmarked])}). If a mask was forgotten, draw it "
            "or take the image away; if there is nothing to mark, all is well",
        )


def _format(one: Seen) -> str:
    return FORMATS.get(one.kind, one.kind)


def _format_by_name(one: Seen) -> str:
    suffix = PurePosixPath(one.item.image).suffix[1:].upper()
    return FORMATS.get(suffix, suffix)


def _named(files: Sequence[Seen]) -> str:
    names = ", ".join(one.item.image for one in files[:NAMED])
    return names if len(files) <= NAMED else f"{names} and {len(files) - NAMED} more"


def _different_spacing(facts: Mapping[str, SiteFacts]) -> Iterator[Note]:
    spacings = {site: own.spacing for site, own in facts.items() if own.spacing is not None}
    pixels = {site: (row * column) ** 0.5 for site, (_, row, column) in spacings.items()}
    slices = {site: between for site, (between, _, _) in spacings.items()}
    for what, sizes, advice in (("pixel", pixels, OTHER_PIXELS), ("slice", slices, OTHER_SLICES)):
        fine = min(sizes, key=sizes.__getitem__, default="")
        coarse = max(sizes, key=sizes.__getitem__, default="")
        if sizes and sizes[coarse] > SPACING_RATIO * sizes[fine]:
            text = f"{sizes[fine]:.3g} mm apart at {fine} and {sizes[coarse]:.3g} mm at {coarse}"
            yield Note(f"different {what} spacing", f"{what}s are {text}. {advice}")
