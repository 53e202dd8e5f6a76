"""Contact sheets: a few images of each site, small, with the outlines of their labels."""

from __future__ import annotations

import base64
import io
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import binary_dilation, binary_erosion

from konsil.colours import structure_colour
from konsil.data.findings import BadFile
from konsil.data.image_with_masks import ImageWithMasks, open_with_masks
from konsil.data.manifest import Manifest
from konsil.data.sources import Item
from konsil.prepare.check.look import Report, Seen
from konsil.prepare.check.pool import by_threads
from konsil.randomness import derive

SIDE = 200  # pixels of a thumbnail's longer side
LARGEST_ZOOM = 3  # of tiny images
QUALITY = 80  # of the JPEG


@dataclass(frozen=True)
class Picture:
    """One image of a sheet, as data addresses; it says whose it is to nobody."""

    image: str
    outlines: str  # a transparent picture to lay over it, or ""
    caption: str  # its class, or ""
    size: tuple[int, int]


def choose(seen: Sequence[Seen], images: int, seed: int) -> list[Item]:
    """So many images of one site: one of every patient before the second of any.

    Which patients and images depends on the seed and the data alone.
    """
    by_patient: dict[str, list[Item]] = defaultdict(list)
    for one in seen:
        for item in one.images:
            by_patient[item.patient].append(item)
    turns: list[tuple[int, int, Item]] = []
    for patient, own in by_patient.items():
        order = derive(seed, own[0].site, patient)
        own.sort(key=lambda item: derive(seed, item.site, item.name))
        turns += [(turn, order, item) for turn, item in enumerate(own)]
    turns.sort(key=lambda turn: turn[:2])
    return [item for _, _, item in turns[:images]]


def draw(
    manifest: Manifest, items: Sequence[Item], structures: Sequence[str], report: Report | None
) -> Iterator[tuple[Item, Picture]]:
    """The pictures of these images; files that have changed since the check are left out."""

    def picture_of(item: Item) -> Picture | None:
        try:
            opened = open_with_masks(manifest.root, item, manifest.reading(item.site))
        except BadFile:
            return None
        return _picture(opened, item, structures)

    with closing(by_threads(picture_of, items)) as pictures:
        for done, (item, picture) in enumerate(zip(items, pictures, strict=True), 1):
            if report is not None:
                report("pictures drawn", done, len(items))
            if picture is not None:
                yield item, picture


def _picture(opened: ImageWithMasks, item: Item, structures: Sequence[str]) -> Picture:
    plane = item.plane or 0
    picture = opened.pictures[plane]
    size = _small(picture.size)
    layers: dict[str, NDArray[np.bool_]] = {}
    for mask in opened.masks:
        own = mask.planes(mask.values[plane])
        layers |= dict(zip((name for name, _ in mask.structures), own, strict=True))
    outlines = np.zeros(size[::-1], np.uint8)  # 0 is transparent, k the k-th structure
    for number, name in enumerate(structures, 1):
        outlines[_outline(_resized(layers[name], size))] = number
    over = _png(outlines, len(structures)) if outlines.any() else ""
    return Picture(_jpeg(picture, size), over, "" if opened.masks else item.label, size)


def _small(size: tuple[int, int]) -> tuple[int, int]:
    zoom = min(SIDE / max(size), LARGEST_ZOOM)
    return max(1, round(size[0] * zoom)), max(1, round(size[1] * zoom))


def _resized(layer: NDArray[np.bool_], size: tuple[int, int]) -> NDArray[np.bool_]:
    whole = Image.fromarray(layer.astype(np.uint8) * 255)
    return np.asarray(whole.resize(size, Image.Resampling.BILINEAR)) > 127


def _outline(layer: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """A line two pixels wide where the structure ends; the picture's edge is no end."""
    return np.asarray(binary_dilation(layer) & ~binary_erosion(layer, border_value=1))


def _jpeg(picture: Image.Image, size: tuple[int, int]) -> str:
    small = picture.convert("L" if picture.mode in ("1", "L", "LA") else "RGB").resize(
        size, Image.Resampling.LANCZOS, reducing_gap=3.0
    )
    file = io.BytesIO()
    small.save(file, "JPEG", quality=QUALITY, optimize=True)
    return _address(file, "jpeg")


def _png(drawn: NDArray[np.uint8], structures: int) -> str:
    image = Image.fromarray(drawn, mode="P")
    palette = [0, 0, 0]
    for number in range(structures):
        palette += [int(structure_colour(number)[k : k + 2], 16) for k in (1, 3, 5)]
    image.putpalette(palette)
    file = io.BytesIO()
    image.save(file, "PNG", transparency=0, optimize=True)
    return _address(file, "png")


def _address(file: io.BytesIO, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
