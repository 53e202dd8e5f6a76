"""What a site's data are like, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from konsil.data.sources import SPLITS, Item
from konsil.prepare.check.look import Seen

Key = TypeVar("Key", int, str)
Size = tuple[int, int]  # width and height
Spacing = tuple[float, float, float]  # mm between planes, rows, columns


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
    seen: Sequence[Seen],
    images: Sequence[Item],
    *,
    patients_known: bool,
    classes: Sequence[str],
    colours: bool,
) -> SiteFacts:
    """The facts of one site. `images` carry the splits as they are drawn, "" if they cannot be.

    `classes` are in their order, none for a segmentation; `colours`: mask values are colours.
    """
    sizes = Counter(one.size for one in seen)
    spacings = np.array([one.spacing for one in seen if one.spacing is not None]).reshape(-1, 3)
    count = sum(one.count for one in seen)
    return SiteFacts(
        images=count,
        volumes=len(spacings),
        patients=len({item.patient for item in images}),
        patients_known=patients_known,
        splits=_splits(images),
        size=sizes.most_common(1)[0][0] if sizes else None,
        smallest=min(sizes, default=None),
        largest=max(sizes, default=None),
        spacing=_three(np.median(spacings, axis=0)) if len(spacings) else None,
        finest=_three(spacings.min(axis=0)) if len(spacings) else None,
        coarsest=_three(spacings.max(axis=0)) if len(spacings) else None,
        formats=dict(Counter(one.kind for one in seen).most_common()),
        pixels=dict(Counter(one.pixel for one in seen).most_common()),
        low=min((one.low for one in seen), default=None),
        high=max((one.high for one in seen), default=None),
        values=_values(seen, colours),
        areas=_mean_areas(seen, count),
        without=_sum(one.without for one in seen),
        unmarked=sum(one.unmarked for one in seen),
        classes=_classes(images, classes),
    )


def _three(numbers: Any) -> Spacing:
    between, row, column = (round(float(number), 4) for number in numbers)
    return between, row, column


def _splits(images: Sequence[Item]) -> dict[str, dict[str, int]] | None:
    if not images or not all(item.split for item in images):
        return None
    return {
        split: {
            "images": sum(item.split == split for item in images),
            "patients": len({item.patient for item in images if item.split == split}),
        }
        for split in SPLITS
    }


def _values(seen: Sequence[Seen], colours: bool) -> dict[str, int]:
    total = _sum(one.values for one in seen)
    return {f"#{v:06x}" if colours else str(v): n for v, n in sorted(total.items())}


def _sum(counts: Iterable[Mapping[Key, int]]) -> dict[Key, int]:
    total: Counter[Key] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)


def _mean_areas(seen: Sequence[Seen], count: int) -> dict[str, float]:
    names = dict.fromkeys(name for one in seen for name in one.areas)
    return {name: sum(one.areas[name] * one.count for one in seen) / count for name in names}


def _classes(images: Sequence[Item], classes: Sequence[str]) -> dict[str, int]:
    if not classes:
        return {}
    counts = Counter(item.label for item in images)
    return {name: counts[name] for name in (*classes, *sorted(set(counts) - set(classes)))}
