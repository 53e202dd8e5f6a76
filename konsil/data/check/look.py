"""Every file of a federation opened once, and what is worth knowing of it kept.

Files are opened by `open_study`, as in training: what can be looked at can be trained on. Pixels
are not kept, so neither the number of files nor their size limits what can be checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from konsil.data.findings import BadFile, Findings
from konsil.data.listing import Listing
from konsil.data.manifest import Slices
from konsil.data.origin import FileSource
from konsil.data.planes import chosen_planes
from konsil.data.readers import fit
from konsil.data.recipe import THREADS, Reading
from konsil.data.sources import Item
from konsil.data.studies import Mask, Study, open_study

Report = Callable[[str, int, int], None]  # site, files done, files of the site

THUMBNAIL = 32  # pixels a side
GREYS = 256
PERCENTILES = (5, 25, 50, 75, 95)
# The columns of `Seen.statistics`: these, channel after channel (grey, or red, green, blue).
STATISTICS = ("mean", "deviation", *(f"percentile {p}" for p in PERCENTILES))
SHARES = np.array(PERCENTILES) / 100
POWERS = np.arange(GREYS)[:, None] ** np.array([1, 2])  # of every grey


@dataclass(frozen=True, eq=False)
class Seen:
    """One picture, or one volume with its masks, after it was looked at.

    What is said of "the images" of a volume holds for the planes that training will use.
    """

    item: Item
    kind: str  # PNG, JPEG, ... or volume
    size: tuple[int, int]  # width and height of an image
    planes: tuple[int, ...]  # of a volume; () for a picture, which is one image
    spacing: tuple[float, float, float] | None  # volumes: mm between planes, rows, columns
    pixel: str  # such as "8-bit colour", "16-bit grey", "float"
    low: float  # the darkest and
    high: float  # the brightest intensity, as the file has them
    histogram: NDArray[np.int64]  # [256] of the images' greys at 8 bit
    values: dict[int, int]  # mask values and how often they occur, background left out
    areas: dict[str, float]  # structure -> mean fraction of an image that it covers
    without: dict[str, int]  # structure -> images on which it is not marked
    unmarked: int  # images on which nothing is marked
    thumbnails: NDArray[np.uint8]  # [n, 32, 32], grey
    statistics: NDArray[np.float32]  # [n, F] in units of 8 bit; STATISTICS names the columns
    digests: dict[str, str]  # file -> sha256

    @property
    def count(self) -> int:
        """How many images it becomes."""
        return len(self.thumbnails)

    @property
    def images(self) -> list[Item]:
        """The item of each image: a picture's own, or one for every plane."""
        return [replace(self.item, plane=plane) for plane in self.planes] or [self.item]


def look_at(
    source: FileSource, listing: Listing, report: Report | None = None
) -> tuple[list[Seen], Findings]:
    """Open every listed file once; what cannot be used is found, not raised."""
    looker = _Looker(source)
    totals = Counter(item.site for item in listing.items)
    done: Counter[str] = Counter()
    seen: list[Seen] = []
    found = Findings()
    with ThreadPool(THREADS) as pool:
        for item, result in _each(pool, looker, listing.items):
            if isinstance(result, BadFile):
                found.add_file(result.name, result)
            else:
                seen.append(result)
            done[item.site] += 1
            if report is not None:
                report(item.site, done[item.site], totals[item.site])
    return seen, found


def _each(
    pool: ThreadPool, looker: _Looker, items: Sequence[Item]
) -> Iterator[tuple[Item, Seen | BadFile]]:
    return zip(items, pool.imap(looker, items, chunksize=4), strict=True)


class _Looker:
    """Looks at one file after the other."""

    def __init__(self, source: FileSource) -> None:
        sites = source.manifest.content.sites
        self.root: Path = source.root
        self.channels = source.manifest.content.channels
        self.readings: dict[str, Reading] = {s: source.manifest.reading(s) for s in sites}
        self.slices: dict[str, Slices] = {site: source.slices(site) for site in sites}

    def __call__(self, item: Item) -> Seen | BadFile:
        try:
            study = open_study(self.root, item, self.readings[item.site])
            volume = study.kind == "volume"
            planes = chosen_planes(item, study, self.slices[item.site]) if volume else []
        except BadFile as bad:
            return bad
        return describe(item, study, planes, self.channels)


def describe(item: Item, study: Study, planes: Sequence[int], channels: int) -> Seen:
    """What is kept of a study; `planes` are a volume's chosen ones, none of a picture."""
    pictures = [study.pictures[plane] for plane in planes] or study.pictures
    greys = [picture.convert("L") for picture in pictures]
    histograms = [np.array(grey.histogram(), np.int64) for grey in greys]
    masks = [_of_planes(mask, planes) for mask in study.masks]
    return Seen(
        item=item,
        kind=study.kind,
        size=pictures[0].size,
        planes=tuple(planes),
        spacing=study.spacing,
        pixel=_pixel(study.raw, study.spacing is not None),
        low=float(study.raw.min()),
        high=float(study.raw.max()),
        histogram=sum(histograms, np.zeros(GREYS, np.int64)),
        values=dict(sum((Counter(mask.counts) for mask in study.masks), Counter[int]())),
        areas={name: area for mask in masks for name, area in _areas(mask).items()},
        without={name: n for mask in masks for name, n in _without(mask).items()},
        unmarked=_unmarked(masks),
        thumbnails=np.concatenate([fit(grey, 1, THUMBNAIL) for grey in greys]),
        statistics=np.stack(
            [
                _statistics(picture, histogram, channels)
                for picture, histogram in zip(pictures, histograms, strict=True)
            ]
        ),
        digests=study.digests,
    )


# --- intensities --------------------------------------------------------------------------------


def _pixel(raw: NDArray[Any], volume: bool) -> str:
    colour = "colour" if raw.ndim == 4 else "grey"
    if raw.dtype.kind == "f":
        return "float" if raw.ndim == 3 else "float colour"
    # A picture of 16 bit comes as wider numbers, a volume as its file has them.
    bits = 8 * raw.dtype.itemsize if volume or raw.dtype == np.uint8 else 16
    return f"{bits}-bit {colour}"


def _statistics(
    picture: Image.Image, grey: NDArray[np.int64], channels: int
) -> NDArray[np.float32]:
    if channels == 1 or picture.mode in ("L", "1"):
        return np.tile(_of_histograms(grey[None]), channels)
    every = np.array(picture.convert("RGB").histogram(), np.int64).reshape(3, GREYS)
    return _of_histograms(every)


def _of_histograms(counts: NDArray[np.int64]) -> NDArray[np.float32]:
    """The STATISTICS of the channels with these histograms, one channel after the other."""
    below = counts.cumsum(axis=1)
    total = below[:, -1:]
    means, squares = (counts @ POWERS / total).T
    deviations = np.sqrt(np.maximum(0, squares - means**2))
    wanted = total * SHARES
    levels = [np.searchsorted(*channel) for channel in zip(below, wanted, strict=True)]
    return np.column_stack([means, deviations, levels]).astype(np.float32).ravel()


# --- masks --------------------------------------------------------------------------------------


def _of_planes(mask: Mask, planes: Sequence[int]) -> Mask:
    """The mask of the chosen planes alone."""
    if not planes or len(planes) == len(mask.values):
        return mask
    return replace(mask, values=mask.values[list(planes)])


def _areas(mask: Mask) -> dict[str, float]:
    return {name: area / mask.values.size for name, area in mask.areas().items()}


def _without(mask: Mask) -> dict[str, int]:
    if len(mask.values) == 1:
        return {name: int(area == 0) for name, area in mask.areas().items()}
    layers = zip(mask.structures, mask.planes(mask.values), strict=True)
    return {name: int((~layer.any(axis=(1, 2))).sum()) for (name, _), layer in layers}


def _unmarked(masks: Sequence[Mask]) -> int:
    if not masks:
        return 0
    marked = [(mask.values != mask.background).any(axis=(1, 2)) for mask in masks]
    return int((~np.logical_or.reduce(marked)).sum())
