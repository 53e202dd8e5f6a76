"""One picture or volume with its masks, opened whole and checked.

Training, `konsil data check` and `konsil data preview` all open files here, so what they say of
a file is the same.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from konsil.data import readers
from konsil.data.findings import BadFile
from konsil.data.image_file import ImageFile, is_picture, open_picture, open_volume
from konsil.data.recipe import Reading, digest, mask_files
from konsil.data.sources import Item
from konsil.data.volumes import Volume, planes, read_mask_volume


@dataclass(frozen=True)
class Mask:
    """One mask file: its values and the structures it speaks of."""

    name: str
    values: NDArray[Any]  # [N, H, W]
    structures: tuple[tuple[str, readers.Codes], ...]
    background: int

    @cached_property
    def counts(self) -> dict[int, int]:
        """How often each value occurs, background left out."""
        counts = readers.mask_values(self.values)
        counts.pop(self.background, None)
        return counts

    def areas(self) -> dict[str, int]:
        """Marked pixels of each structure it speaks of."""
        return {
            name: sum(n for value, n in self.counts.items() if codes is None or value in codes)
            for name, codes in self.structures
        }

    def planes(self, values: NDArray[Any]) -> list[NDArray[np.bool_]]:
        """Where its structures are, given (a part of) its values."""
        return [readers.marked(values, codes, self.background) for _, codes in self.structures]


@dataclass(frozen=True)
class ImageWithMasks(ImageFile):
    """What one item's files hold, at their own size. A picture has one plane."""

    masks: tuple[Mask, ...] = ()
    digests: dict[str, str] = field(default_factory=dict)  # of every file that was opened

    @classmethod
    def of(cls, image: ImageFile, masks: tuple[Mask, ...], digests: dict[str, str]) -> Self:
        """The image with its masks."""
        return cls(**vars(image), masks=masks, digests=digests)

    def image(self, plane: int | None, channels: int, size: int) -> NDArray[np.uint8]:
        """One plane as the network sees it, [C, size, size]; of a picture the only one."""
        return self.plane(plane or 0, channels, size)

    def target(self, plane: int | None, size: int) -> NDArray[np.uint8]:
        """One 0/1 plane a structure, [S, size, size]."""
        layers: list[NDArray[np.bool_]] = []
        for mask in self.masks:
            layers += mask.planes(readers.shrink(mask.values[plane or 0], size))
        return np.stack(layers).astype(np.uint8)

    def labelled(self) -> list[int]:
        """The planes on which anything is marked."""
        hits = np.zeros(len(self.raw), bool)
        for mask in self.masks:
            hits |= (mask.values != mask.background).any(axis=(1, 2))
        return [int(plane) for plane in np.flatnonzero(hits)]


def open_with_masks(root: Path, item: Item, reading: Reading) -> ImageWithMasks:
    """Open and check an item's files. Raises BadFile with the file's name in it."""
    opener = _Opener(root, item, reading)
    try:
        return opener.picture() if is_picture(item.image) else opener.volume()
    except BadFile as bad:
        bad.name = bad.name or opener.current
        raise


class _Opener:
    """Opens the files of one item and remembers which one it is at."""

    def __init__(self, root: Path, item: Item, reading: Reading) -> None:
        self.root, self.item, self.reading = root, item, reading
        self.current = item.image
        self.digests: dict[str, str] = {}

    def picture(self) -> ImageWithMasks:
        data = self._bytes(self.item.image)
        image = open_picture(data, self.root / self.item.image, self.reading.of_image)
        [picture] = image.pictures
        masks = self._masks(lambda name: self._picture_mask(name, picture.size))
        return ImageWithMasks.of(image, masks, self.digests)

    def _picture_mask(self, name: str, size: tuple[int, int]) -> NDArray[Any]:
        if not is_picture(name):
            raise BadFile("mask of another kind than its image", "a picture's mask is a picture")
        data = self._bytes(name)
        if readers.what_it_is(data) == "JPEG" and not name.lower().endswith((".jpg", ".jpeg")):
            cure = "JPEG changes the values of a mask: export the masks again, as PNG"
            raise BadFile("mask that is a JPEG, whatever its name says", cure)
        values = readers.read_mask(data, self.reading.colours)
        if values.shape[::-1] != size:
            detail = "mask {1} x {0}, image {2} x {3}".format(*values.shape, *size)
            raise BadFile("mask of another size than its image", "export both alike", detail)
        return values[None]

    def volume(self) -> ImageWithMasks:
        path = self.root / self.item.image
        self.digests[self.item.image] = digest(path)
        image = open_volume(path, self.reading.of_image)
        volume = image.volume
        assert volume is not None
        masks = self._masks(lambda name: self._volume_mask(name, volume))
        return ImageWithMasks.of(image, masks, self.digests)

    def _volume_mask(self, name: str, volume: Volume) -> NDArray[Any]:
        reading, path = self.reading, self.root / name
        self.digests[name] = digest(path)
        values = read_mask_volume(
            path,
            self.root / self.item.image,
            volume,
            reading.check_geometry,
            reading.series,
            reading.colours,
        )
        return planes(values, volume.affine, reading.view)

    def _masks(self, read: Callable[[str], NDArray[Any]]) -> tuple[Mask, ...]:
        """The masks with the structures each speaks of: all of them, or its own."""
        reading, alone = self.reading, bool(self.item.masks)
        if not reading.structures:  # a classification
            return ()
        spoken_of = [(one,) for one in reading.structures] if alone else [reading.structures]
        masks = []
        for name, own in zip(mask_files(self.item), spoken_of, strict=True):
            self.current = name
            mask = Mask(name, read(name), own, reading.background)
            _check_values(mask, reading, alone)
            masks.append(mask)
        return tuple(masks)

    def _bytes(self, name: str) -> bytes:
        try:
            data = (self.root / name).read_bytes()
        except OSError as error:
            raise BadFile("file that cannot be opened", "check it", str(error.strerror)) from None
        self.digests[name] = hashlib.sha256(data).hexdigest()
        return data


def _check_values(mask: Mask, reading: Reading, alone: bool) -> None:
    """Every value must mean something; `alone` are the masks of a single structure."""
    structures = dict(mask.structures)
    if len(structures) > 1 and None in structures.values():
        example = ", ".join(f"{name}: [{i}]" for i, name in enumerate(structures, 1))
        raise BadFile(
            "one mask for several structures, and nothing says which values are which",
            f"write it down in {reading.mapping}, such as structures: {{{example}}}",
        )
    known = {value for codes in structures.values() for value in codes or ()}
    if not known and alone and len(mask.counts) > 1:
        raise BadFile(
            "mask with several values for one structure",
            f"say which of them count, such as structures: {{{min(structures)}: "
            f"[{max(mask.counts)}]}} (JPEG changes values: save masks as PNG)",
            f"values {some(sorted(mask.counts), reading.colours)}",
        )
    unknown = sorted(set(mask.counts) - known)
    if known and unknown:
        mapping = ", ".join(
            f"{name}: [{some(codes or (), reading.colours)}]" for name, codes in mask.structures
        )
        background = some([reading.background], reading.colours)
        raise BadFile(
            f"mask value that {reading.mapping} does not mention",
            f"{reading.mapping.split()[0]} is {{{mapping}}}, and {background} is background: add "
            "the value to a structure or mend the mask (JPEG changes values: save masks as PNG)",
            f"{'value' if len(unknown) == 1 else 'values'} {some(unknown, reading.colours)}",
        )


def some(values: Any, colours: bool = False) -> str:
    """The first few of some mask values, as one writes them."""
    words = [f"#{value:06x}" if colours else str(value) for value in list(values)[:5]]
    return ", ".join(words) + (", ..." if len(values) > 5 else "")
