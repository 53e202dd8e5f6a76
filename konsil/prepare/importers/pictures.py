"""Cases that are pictures: with a mask, or in the folder of their class."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from konsil.data.findings import BadFile
from konsil.data.readers import FORMATS, read_picture
from konsil.prepare.importers.base import Case, Options, Written

Masked: TypeAlias = tuple[NDArray[np.uint8], str]  # with a note, if there is one to make
DISC, CUP = 1, 2  # in the masks that are written; the cup is part of the disc
FUNDUS_HEAD = {
    "task": "segmentation",
    "structures": {"disc": [DISC, CUP], "cup": [CUP]},
    "channels": 3,
}
FAST = 1  # zlib level: masks hardly grow, and writing takes a third of the time
PALETTE = (0, 0, 0, 0, 158, 115, 240, 228, 66)  # what a viewer shows: black, green, yellow


@dataclass(frozen=True)
class PictureCase(Case):
    """A picture with a mask, whose values the head of the federation file explains."""

    mask: Callable[[Any], Masked]  # of this case
    left_half: bool = field(default=False, kw_only=True)  # of a stereo pair; the mask is its own
    shows: str = field(default="", kw_only=True)  # what no mask is without, such as an optic disc

    def write(self, folder: Path, options: Options) -> Written:
        """The file as it is, unless a part of it is cut out; the mask as PNG."""
        width, height = self.size()
        mask, note = self.mask(self)
        self._check(mask, (width // 2 if self.left_half else width, height), options)
        box = _square(mask, options.crop) if options.crop else (0, 0, *mask.shape[::-1])
        as_it_is = box == (0, 0, width, height)
        suffix = self.path("image").suffix.lower() if as_it_is else ".png"
        image, label = f"images/{self.name}{suffix}", f"masks/{self.name}.png"
        for path in (image, label):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if as_it_is:
            shutil.copyfile(self.path("image"), folder / image)
        else:
            self.picture("image").crop(box).save(folder / image, compress_level=FAST)
        inside = Image.fromarray(mask[box[1] : box[3], box[0] : box[2]])
        inside.putpalette(PALETTE)  # with one, no filters are tried: three times as fast
        inside.save(folder / label, compress_level=FAST)
        return Written(image, label, {"images": 1}, note)

    def _check(self, mask: NDArray[np.uint8], size: tuple[int, int], options: Options) -> None:
        if mask.shape[::-1] != size:
            detail = "mask {} x {}, image {} x {}".format(*mask.shape[::-1], *size)
            raise BadFile("mask of another size than its image", "get both files again", detail)
        if not mask.any() and (self.shows or options.crop):
            cure = "get the file again, or take the image away"
            raise BadFile(f"mask without {self.shows or 'anything to crop to'}", cure)

    def size(self) -> tuple[int, int]:
        """Width and height of the image from its header; nothing is decoded."""
        with self.blaming("image"), self.path("image").open("rb") as file:
            try:
                return Image.open(file, formats=FORMATS).size
            except OSError:
                detail = f"not {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
                raise BadFile("image that cannot be read", "get it again", detail) from None

    def picture(self, file: str) -> Image.Image:
        """One of its files, decoded."""
        with self.blaming(file):
            return read_picture(self.path(file).read_bytes())

    def values(self, file: str) -> NDArray[np.uint8]:
        """The grey values of a mask file, [H, W], whatever palette or colours encode them."""
        return np.asarray(self.picture(file).convert("L"))

    def binary(self, file: str) -> NDArray[np.bool_]:
        """A mask file of one structure: white, or 1, on black."""
        values = self.values(file)
        return values > min(127, int(values.max()) // 2)


@dataclass(frozen=True)
class FundusCase(PictureCase):
    """A picture of the fundus, whose mask holds 0, DISC and CUP."""

    shows: str = field(default="an optic disc", kw_only=True)

    def disc_and_cup(self, disc: NDArray[np.bool_], cup: NDArray[np.bool_], file: str) -> Masked:
        """One mask from two, of which the cup's is in `file`."""
        if disc.shape != cup.shape:
            sizes = "disc {} x {}, cup {} x {}".format(*disc.shape[::-1], *cup.shape[::-1])
            detail = f"{self.files[file]}: {sizes}"
            raise BadFile("disc and cup masks of different sizes", "get both files again", detail)
        return np.where(cup, np.uint8(CUP), np.where(disc, np.uint8(DISC), np.uint8(0))), ""


@dataclass(frozen=True)
class ClassCase(Case):
    """A picture that goes into the folder of its class."""

    label: str

    def write(self, folder: Path, options: Options) -> Written:
        """Copy or link the file."""
        source = self.path("image")
        image = f"{self.label}/{self.name}{source.suffix.lower()}"
        (folder / self.label).mkdir(parents=True, exist_ok=True)
        try:
            (os.link if options.link else shutil.copyfile)(source, folder / image)
        except FileNotFoundError:
            raise BadFile("missing image", "unpack the data again") from None
        return Written(image, self.label, {"images": 1})


def _square(mask: NDArray[np.uint8], factor: float) -> tuple[int, int, int, int]:
    """A square around what is marked, `factor` times its larger diameter wide, kept inside.

    Left, top, right and bottom.
    """
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    top, bottom, left, right = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
    side = min(round(factor * max(bottom - top, right - left)), *mask.shape)
    y = min(max((top + bottom - side) // 2, 0), mask.shape[0] - side)
    x = min(max((left + right - side) // 2, 0), mask.shape[1] - side)
    return int(x), int(y), int(x + side), int(y + side)
