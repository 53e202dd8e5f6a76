"""Contact sheets: a few images of each site, small, with the outlines of their labels."""

import base64
import io
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageColor
from scipy.ndimage import binary_dilation, binary_erosion

from konsil.colours import structure_colour
from konsil.data.findings import BadFile
from konsil.data.image_with_masks import ImageWithMasks, open_with_masks
from konsil.data.manifest import read_manifest
from konsil.data.sources import Item
from konsil.prepare.check import CheckResult
from konsil.prepare.check.look import Report, Seen, plain
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


def draw_sheets(
    result: CheckResult, images: int, seed: int, report: Report | None
) -> dict[str, list[Picture]]:
    """So many images of every site; files that have changed since the check are left out."""
    manifest = read_manifest(result.path)
    structures = result.labels if result.task == "segmentation" else ()
    chosen: list[Item] = []
    for site in result.sites:
        chosen += choose([one for one in result.seen if one.item.site == site], images, seed)

    def draw(item: Item) -> Picture | None:
        try:
            opened = open_with_masks(manifest.root, item, manifest.reading(item.site))
        except BadFile:
            return None
        return _picture(opened, item, structures)

    sheets: dict[str, list[Picture]] = {site: [] for site in result.sites}
    with closing(by_threads(draw, chosen)) as pictures:
        for done, (item, picture) in enumerate(zip(chosen, pictures, strict=True), 1):
            if report is not None:
                report("pictures drawn", done, len(chosen))
            if picture is not None:
                sheets[item.site].append(picture)
    return sheets


def choose(seen: Sequence[Seen], images: int, seed: int) -> list[Item]:
    """So many images of one site: one of every patient before the second of any.

    Which patients and images depends on the seed and the data alone.
    """
    items = [item for one in seen for item in one.images]
    items.sort(key=lambda item: derive(seed, item.site, item.name))
    turns = Counter[str]()
    places: list[tuple[int, int, Item]] = []
    for item in items:
        places.append((turns[item.patient], derive(seed, item.site, item.patient), item))
        turns[item.patient] += 1
    places.sort(key=lambda place: place[:2])
    return [item for _, _, item in places[:images]]


def _picture(opened: ImageWithMasks, item: Item, structures: Sequence[str]) -> Picture:
    plane = item.plane or 0
    picture = plain(opened.pictures[plane])
    zoom = min(SIDE / max(picture.size), LARGEST_ZOOM)
    width, height = (max(1, round(side * zoom)) for side in picture.size)
    layers: dict[str, NDArray[np.bool_]] = {}
    for mask in opened.masks:
        own = mask.planes(mask.values[plane])
        layers |= dict(zip((name for name, _ in mask.structures), own, strict=True))
    drawn = np.zeros((height, width), np.uint8)  # 0 is transparent, k the k-th structure
    for number, name in enumerate(structures, 1):
        layer = Image.fromarray(layers[name].astype(np.uint8) * 255)
        resized = layer.resize((width, height), Image.Resampling.BILINEAR)
        drawn[_outline(np.asarray(resized) > 127)] = number
    outlines = Image.fromarray(drawn, mode="P")
    colours = [ImageColor.getrgb(structure_colour(k)) for k in range(len(structures))]
    outlines.putpalette(np.array([(0, 0, 0), *colours], np.uint8).tobytes())
    small = picture.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=3.0)
    return Picture(
        image=_address(small, "jpeg", quality=QUALITY),
        outlines=_address(outlines, "png", transparency=0) if drawn.any() else "",
        caption="" if opened.masks else item.label,
        size=(width, height),
    )


def _outline(layer: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """A line two pixels wide where the structure ends; the picture's edge is no end."""
    return np.asarray(binary_dilation(layer) & ~binary_erosion(layer, border_value=1))


def _address(picture: Image.Image, kind: str, **options: Any) -> str:
    file = io.BytesIO()
    picture.save(file, kind, optimize=True, **options)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
