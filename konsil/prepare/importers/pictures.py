"""Cases that are pictures: with a mask, or in the folder of their class."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias

from konsil.data.findings import BadFile
from konsil.prepare.importers.base import Case, Options, Written

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

    Masked: TypeAlias = tuple[NDArray[np.uint8], str]  # with a note, if there is one to make

DISC, CUP = 1, 2  # in the masks that are written; the cup is part of the disc
FUNDUS_HEAD = {
    "task": "segmentation",
    "structures": {"disc": [DISC, CUP], "cup": [CUP]},
    "channels": 3,
}
FAST = 1  # zlib level: masks hardly grow, and writing takes a third of the time
PALETTE = (0, 0, 0, 0, 158, 115, 240, 228, 66)  # what a viewer shows: black, green, yellow
Box = tuple[int, int, int, int]  # left, top, right, bottom


@dataclass(frozen=True)
class PictureCase(Case):
    """A picture with a mask, whose values the head of the federation file explains."""

    mask: Callable[[Any], Masked]  # of this case

    def write(self, folder: Path, options: Options) -> Written:
        """The file as it is, unless a part of it is cut out; the mask as PNG."""
        from PIL import Image

        from konsil.data.readers import read_picture

        data = read_bytes(self.path("image"))
        size = picture_size(data)
        mask, note = self.mask(self)
        box = self.box(size, mask, options)
        as_it_is = box == (0, 0, *size)
        suffix = PurePosixPath(self.image).suffix.lower() if as_it_is else ".png"
        image, label = f"images/{self.name}{suffix}", f"masks/{self.name}.png"
        (folder / "images").mkdir(parents=True, exist_ok=True)
        (folder / "masks").mkdir(parents=True, exist_ok=True)
        if as_it_is:
            (folder / image).write_bytes(data)
        else:
            read_picture(data).crop(box).save(folder / image, compress_level=FAST)
        inside = Image.fromarray(mask[box[1] : box[3], box[0] : box[2]])
        inside.putpalette(PALETTE)  # with one, no filters are tried: three times as fast
        inside.save(folder / label, compress_level=FAST)
        return Written(image, label, {"images": 1}, note)

    def box(self, size: tuple[int, int], mask: NDArray[np.uint8], options: Options) -> Box:
        """The part of the picture that is taken: all of it."""
        check_size(mask, size)
        return 0, 0, *size

    def values(self, file: str) -> NDArray[np.uint8]:
        """The grey values of a mask file, [H, W], whatever palette or colours encode them."""
        with blaming(self.files[file]):
            return read_values(self.path(file))

    def binary(self, file: str) -> NDArray[np.bool_]:
        """A mask file of one structure: white, or 1, on black."""
        values = self.values(file)
        return values > min(127, int(values.max()) // 2)


@dataclass(frozen=True)
class FundusCase(PictureCase):
    """A picture of the fundus, whose mask holds 0, DISC and CUP."""

    left_half: bool = field(default=False, kw_only=True)  # of a stereo pair; the mask is its own

    def box(self, size: tuple[int, int], mask: NDArray[np.uint8], options: Options) -> Box:
        """The left or whole picture, or a square around the disc."""
        whole = (size[0] // 2 if self.left_half else size[0], size[1])
        check_size(mask, whole)
        if not mask.any():
            cure = "get the file again, or take the image away"
            raise BadFile("mask without an optic disc", cure)
        return (0, 0, *whole) if options.crop is None else disc_square(mask, options.crop)


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


# --- files ----------------------------------------------------------------------------------------


@contextmanager
def blaming(name: str) -> Iterator[None]:
    """A BadFile raised within names this file, beside the image that the case is known by."""
    try:
        yield
    except BadFile as bad:
        raise BadFile(bad.what, bad.cure, f"{name}: {bad.detail}" if bad.detail else name) from None


def read_bytes(path: Path) -> bytes:
    """The content of a file; BadFile if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadFile("file that cannot be read", "get it again", str(error.strerror)) from None


def picture_size(data: bytes) -> tuple[int, int]:
    """Width and height from a file's header; nothing is decoded."""
    from PIL import Image

    from konsil.data.readers import FORMATS

    try:
        return Image.open(io.BytesIO(data), formats=FORMATS).size
    except OSError:
        detail = f"not {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise BadFile("image that cannot be read", "get it again", detail) from None


def read_image(path: Path) -> Image.Image:
    """A decoded picture; BadFile if it cannot be."""
    from konsil.data.readers import read_picture

    return read_picture(read_bytes(path))


def read_values(path: Path) -> NDArray[np.uint8]:
    """The grey values of a picture, [H, W]."""
    import numpy as np

    return np.asarray(read_image(path).convert("L"))


# --- masks ----------------------------------------------------------------------------------------


def check_size(mask: NDArray[np.uint8], size: tuple[int, int]) -> None:
    """A mask is as large as its picture."""
    height, width = mask.shape
    if (width, height) != size:
        detail = f"mask {width} x {height}, image {size[0]} x {size[1]}"
        raise BadFile("mask of another size than its image", "get both files again", detail)


def recode(mask: NDArray[np.uint8], values: dict[int, int], stated: str) -> NDArray[np.uint8]:
    """Other values for a mask's; BadFile where it has one that the data set does not know."""
    import numpy as np

    table = np.full(256, 255, dtype=np.uint8)
    for old, new in values.items():
        table[old] = new
    coded: NDArray[np.uint8] = table.take(mask)  # twice as fast as table[mask]
    if coded.max() == 255:
        strange = sorted(set(np.unique(mask).tolist()) - set(values))
        raise BadFile(
            "mask with values that the data set does not know",
            f"masks of this data set hold {stated}; get the file again (JPEG changes values)",
            ", ".join(map(str, strange[:5])),
        )
    return coded


def disc_and_cup(disc: NDArray[Any], cup: NDArray[Any]) -> NDArray[np.uint8]:
    """One mask from two."""
    import numpy as np

    if disc.shape != cup.shape:
        detail = "disc {} x {}, cup {} x {}".format(*disc.shape[::-1], *cup.shape[::-1])
        raise BadFile("disc and cup masks of different sizes", "get both files again", detail)
    return np.where(cup, np.uint8(CUP), np.where(disc, np.uint8(DISC), np.uint8(0)))


def disc_square(mask: NDArray[np.uint8], factor: float) -> Box:
    """A square around the disc, `factor` times its larger diameter wide, kept inside."""
    import numpy as np

    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    top, bottom, left, right = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
    side = min(round(factor * max(bottom - top, right - left)), *mask.shape)
    y = min(max((top + bottom - side) // 2, 0), mask.shape[0] - side)
    x = min(max((left + right - side) // 2, 0), mask.shape[1] - side)
    return int(x), int(y), int(x + side), int(y + side)
