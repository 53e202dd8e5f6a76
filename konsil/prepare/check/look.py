"""Every file of a federation opened once, and what is worth knowing of it kept.

Files are opened by `open_with_masks`, as in training: what can be looked at can be trained on.
Pixels are not kept, so neither the number of files nor their size limits what can be checked.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from konsil.data.decode import chosen_planes
from konsil.data.detail import best_of
from konsil.data.findings import BadFile, Findings
from konsil.data.image_file import is_picture
from konsil.data.image_with_masks import ImageWithMasks, Mask, open_with_masks
from konsil.data.origin import FileSource
from konsil.data.sources import Item
from konsil.prepare.check.pool import by_processes, by_threads

Report = Callable[[str, int, int], None]  # site, files done, files of the site

THUMBNAIL = 32  # pixels a side
SAMPLE = 128  # pixels of the longer side: histogram and statistics of more would say the same
GREYS = 256
PERCENTILES = (5, 25, 50, 75, 95)
# The columns of `Seen.statistics`: these, channel after channel (grey, or red, green, blue).
STATISTICS = ("mean", "deviation", *(f"percentile {p}" for p in PERCENTILES))
SHARES = np.array(PERCENTILES) / 100 - 1e-9  # of all pixels; sums of fractions are not exact
POWERS = np.arange(GREYS)[:, None] ** np.array([1.0, 2.0])  # of every grey


@dataclass(frozen=True, eq=False)
class Seen:
    """One picture or volume with its masks, after it was looked at.

    What is said of "the images" of a volume holds for the planes that training will use.
    """

    item: Item
    kind: str  # PNG, JPEG, ... or volume
    size: tuple[int, int]  # width and height of an image
    planes: tuple[int, ...]  # of a volume; () for a picture, which is one image
    spacing: tuple[float, float, float] | None  # volumes: mm between planes, rows, columns
    pixel: str  # such as "8-bit colour", "16-bit grey", "float"
    sixteen_bit: bool  # a picture, and not stretched to a window
    low: float  # the darkest and
    high: float  # the brightest intensity, as the file has them
    values: dict[int, int]  # mask values and how often they occur, background left out
    areas: dict[str, float]  # structure -> mean fraction of an image that it covers
    without: dict[str, int]  # structure -> images on which it is not marked
    unmarked: int  # images on which nothing is marked
    thumbnails: NDArray[np.uint8]  # [n, 32, 32], grey
    levels: NDArray[np.uint16]  # [n, 1, 256] or [n, 4, 256]: how often each level of grey (, red,
    # green, blue) occurs at 8 bit, among evenly spaced pixels
    channels: int  # that the federation's images have
    best: dict[str, float]  # structure -> the best Dice at the network's size, of one image
    digests: dict[str, str]  # file -> sha256

    @property
    def count(self) -> int:
        """How many images it becomes."""
        return len(self.thumbnails)

    @property
    def histogram(self) -> NDArray[np.int64]:
        """How often each grey occurs, [256], over all images."""
        return np.asarray(self.levels[:, 0].sum(axis=0, dtype=np.int64))

    @property
    def statistics(self) -> NDArray[np.float32]:
        """STATISTICS of every image, channel after channel, [n, F]."""
        colours = self.levels[:, 1:] if self.levels.shape[1] > 1 else self.levels
        rows = _of_histograms(colours.reshape(-1, GREYS)).reshape(self.count, -1)
        wanted = self.channels * len(STATISTICS)  # a grey picture among coloured ones is all alike
        return np.tile(rows, wanted // rows.shape[1])

    @property
    def images(self) -> list[Item]:
        """The item of each image: a picture's own, or one for every plane."""
        return [replace(self.item, plane=plane) for plane in self.planes] or [self.item]


def look_at(
    source: FileSource, items: Sequence[Item], found: Findings, report: Report | None = None
) -> list[Seen]:
    """Open every listed file once; what cannot be used is added to `found`."""
    manifest, channels = source.manifest, source.channels_read()
    readings = {site: manifest.reading(site) for site in {item.site for item in items}}

    def look(item: Item) -> Seen | BadFile:
        try:
            opened = open_with_masks(source.root, item, readings[item.site])
            volume = opened.kind == "volume"
            slices = manifest.site(item.site).slices
            planes = chosen_planes(item, opened, slices) if volume else []
        except BadFile as bad:
            return bad
        return describe(item, opened, planes, channels, source.config.image_size)

    pictures = all(is_picture(item.image) for item in items)
    made = by_processes(look, items, lambda i: i.image) if pictures else by_threads(look, items)
    totals, done = Counter(item.site for item in items), Counter[str]()
    seen: list[Seen] = []
    with closing(made) as results:
        for item, result in zip(items, results, strict=True):
            if isinstance(result, BadFile):
                found.add_file(result.name, result)
            else:
                seen.append(result)
            done[item.site] += 1
            if report is not None:
                report(item.site, done[item.site], totals[item.site])
    return seen


def describe(
    item: Item, opened: ImageWithMasks, planes: Sequence[int], channels: int, size: int
) -> Seen:
    """What is kept of an image; `planes` are a volume's chosen ones, none of a picture."""
    shown = planes or [0]
    pictures = [plain(opened.pictures[plane]) for plane in shown]
    masks = [[_of_plane(mask, plane) for mask in opened.masks] for plane in shown]
    areas = [{k: n for mask in own for k, n in mask.areas().items()} for own in masks]
    pixels = len(shown) * math.prod(pictures[0].size)
    levels = np.array([_levels(picture, channels) for picture in pictures], np.uint16)
    return Seen(
        item=item,
        kind=opened.kind,
        size=pictures[0].size,
        planes=tuple(planes),
        spacing=opened.spacing,
        pixel=_pixel(opened.raw),
        sixteen_bit=opened.sixteen_bit,
        low=float(opened.raw.min()),
        high=float(opened.raw.max()),
        values=dict(sum((Counter(mask.counts) for mask in opened.masks), Counter[int]())),
        areas={k: sum(own[k] for own in areas) / pixels for k in areas[0]},
        without={k: sum(not own[k] for own in areas) for k in areas[0]},
        unmarked=sum(not any(mask.counts for mask in own) for own in masks if own),
        thumbnails=np.stack([_thumbnail(picture) for picture in pictures]),
        levels=levels.reshape(len(shown), -1, GREYS),
        channels=channels,
        best=best_of(opened, shown[len(shown) // 2], size),
        digests=opened.digests,
    )


def _of_plane(mask: Mask, plane: int) -> Mask:
    """The mask of one plane; a picture's has counted its values already."""
    return mask if len(mask.values) == 1 else replace(mask, values=mask.values[plane][None])


def plain(picture: Image.Image) -> Image.Image:
    """The picture as grey or red, green, blue."""
    if picture.mode in ("L", "RGB"):
        return picture
    return picture.convert("L" if picture.mode in ("1", "LA", "La") else "RGB")


def _pixel(raw: NDArray[Any]) -> str:
    if raw.dtype.kind == "f":
        return "float colour" if raw.ndim == 4 else "float"
    return f"{8 * raw.dtype.itemsize}-bit {'colour' if raw.ndim == 4 else 'grey'}"


def _levels(picture: Image.Image, channels: int) -> list[int]:
    """Histograms of every n-th pixel of every n-th row: of grey and, if they count, of colours."""
    step = -(-max(picture.size) // SAMPLE)
    if step > 1:
        width, height = (max(1, side // step) for side in picture.size)
        picture = picture.resize((width, height), Image.Resampling.NEAREST)
    grey = picture.convert("L").histogram()
    return grey if channels == 1 or picture.mode == "L" else grey + picture.histogram()


def _thumbnail(picture: Image.Image) -> NDArray[np.uint8]:
    """Small, grey, square. Half of the way by whole pixels: cheap, and copies stay alike."""
    side = (THUMBNAIL, THUMBNAIL)
    small = picture.convert("L").resize(side, Image.Resampling.BILINEAR, reducing_gap=2.0)
    return np.asarray(small)


def _of_histograms(counts: NDArray[np.uint16]) -> NDArray[np.float32]:
    parts = counts / counts.sum(axis=1, keepdims=True)
    means, squares = (parts @ POWERS).T
    deviations = np.sqrt(np.maximum(0, squares - means**2))
    below = parts.cumsum(axis=1)
    percentiles = (below[:, None, :] < SHARES[:, None]).sum(axis=2)
    return np.column_stack([means, deviations, percentiles]).astype(np.float32)
