"""One picture or volume with its masks, opened whole and checked.

Training, `konsil data check` and `konsil data preview` all open files here, so what they say of
a file is the same.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from konsil.data.findings import BadFile
from konsil.data.intensity import OF_VOLUMES, to_eight_bit
from konsil.data.magic import what_it_is
from konsil.data.readers import (
    SIXTEEN_BIT,
    Codes,
    eight_bit,
    fit,
    intensities,
    is_wide_colour,
    marked,
    mask_values,
    read_mask,
    read_picture,
    read_wide_colour,
    shrink,
)
from konsil.data.recipe import Reading, digest, mask_files
from konsil.data.sources import SUFFIXES, Item
from konsil.data.volumes import View, Volume, plane_spacing, planes, read_mask_volume, read_volume

Named = tuple[str, NDArray[Any]]


@dataclass(frozen=True)
class Mask:
    """One mask file: its values and the structures it speaks of."""

    name: str
    values: NDArray[Any]  # [N, H, W]
    structures: tuple[tuple[str, Codes], ...]
    background: int

    @cached_property
    def counts(self) -> dict[int, int]:
        """How often each value occurs, background left out."""
        counts = mask_values(self.values)
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
        return [marked(values, codes, self.background) for _, codes in self.structures]


@dataclass(frozen=True)
class ImageWithMasks:
    """What one item's files hold, at their own size. A picture has one plane."""

    kind: str  # PNG, JPEG, ... or volume
    raw: NDArray[Any]  # [N, H, W] or [N, H, W, C]: intensities as the file has them
    pictures: list[Image.Image]  # the same planes with 8 bit a channel
    masks: tuple[Mask, ...]
    spacing: tuple[float, float, float] | None  # volumes: mm between planes, rows, columns
    sixteen_bit: bool  # and not stretched to a window
    digests: dict[str, str]  # of every file that was opened

    @property
    def values(self) -> frozenset[int]:
        """Mask values that occur, background left out."""
        return frozenset(value for mask in self.masks for value in mask.counts)

    @property
    def areas(self) -> dict[str, int]:
        """Marked pixels of each structure, over all planes."""
        return {name: area for mask in self.masks for name, area in mask.areas().items()}

    def image(self, plane: int | None, channels: int, size: int) -> NDArray[np.uint8]:
        """One plane as the network sees it, [C, size, size]."""
        return fit(self.pictures[plane or 0], channels, size)

    def target(self, plane: int | None, size: int) -> NDArray[np.uint8]:
        """One 0/1 plane a structure, [S, size, size]."""
        layers: list[NDArray[np.bool_]] = []
        for mask in self.masks:
            layers += mask.planes(shrink(mask.values[plane or 0], size))
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


def is_picture(name: str) -> bool:
    """Whether a file is a 2-D picture by its name."""
    return name.lower().endswith(SUFFIXES)


class _Opener:
    """Opens the files of one item and remembers which one it is at."""

    def __init__(self, root: Path, item: Item, reading: Reading) -> None:
        self.root, self.item, self.reading = root, item, reading
        self.current = item.image
        self.digests: dict[str, str] = {}

    def picture(self) -> ImageWithMasks:
        data = self._bytes(self.item.image)
        image = read_picture(data)
        kind, wide = image.format or "", image.mode in SIXTEEN_BIT
        if is_wide_colour(data):  # Pillow would drop the lower half of the bits
            wide, raw = True, read_wide_colour(self.root / self.item.image)
            eight = Image.fromarray(to_eight_bit(raw, self.reading.window or "full"))
        else:
            raw = intensities(image)
            eight = eight_bit(image, self.reading.window)
        masks = [(name, self._picture_mask(name)) for name in self._mask_names()]
        for name, values in masks:
            self.current = name
            _check_size(values.shape[:0:-1], image.size)
        return ImageWithMasks(
            kind=kind,
            raw=raw[None],
            pictures=[eight],
            masks=self._masks(masks),
            spacing=None,
            sixteen_bit=wide and self.reading.window is None,
            digests=self.digests,
        )

    def _picture_mask(self, name: str) -> NDArray[Any]:
        self.current = name
        if not is_picture(name):
            raise BadFile("mask of another kind than its image", "a picture's mask is a picture")
        data = self._bytes(name)
        if what_it_is(data) == "JPEG" and not name.lower().endswith((".jpg", ".jpeg")):
            cure = "JPEG changes the values of a mask: export the masks again, as PNG"
            raise BadFile("mask that is a JPEG, whatever its name says", cure)
        return read_mask(data, self.reading.colours)[None]

    def volume(self) -> ImageWithMasks:
        reading, path = self.reading, self.root / self.item.image
        self.digests[self.item.image] = digest(path)
        volume = read_volume(path, reading.channel, reading.series)
        raw = planes(volume.array, volume.affine, reading.view)
        masks = [(name, self._volume_mask(name, volume)) for name in self._mask_names()]
        eight = to_eight_bit(raw, reading.window or OF_VOLUMES)
        return ImageWithMasks(
            kind="volume",
            raw=raw,
            pictures=[Image.fromarray(plane) for plane in eight],
            masks=self._masks(masks),
            spacing=_spacing(volume, reading.view),
            sixteen_bit=False,
            digests=self.digests,
        )

    def _volume_mask(self, name: str, volume: Volume) -> NDArray[Any]:
        self.current = name
        self.digests[name] = digest(self.root / name)
        values = read_mask_volume(
            self.root / name,
            self.root / self.item.image,
            volume,
            self.reading.check_geometry,
            self.reading.series,
            self.reading.colours,
        )
        return planes(values, volume.affine, self.reading.view)

    def _mask_names(self) -> list[str]:
        return mask_files(self.item) if self.reading.structures else []

    def _masks(self, masks: list[Named]) -> tuple[Mask, ...]:
        """The masks with the structures each speaks of: all of them, or its own."""
        structures = self.reading.structures
        if not structures:  # a classification
            return ()
        own = [structures] if not self.item.masks else [(one,) for one in structures]
        if not self.item.masks and len(structures) > 1 and None in dict(structures).values():
            self.current = masks[0][0]
            example = ", ".join(f"{name}: [{i}]" for i, (name, _) in enumerate(structures, 1))
            raise BadFile(
                "one mask for several structures, and nothing says which values are which",
                f"write it down in {self.reading.mapping}, such as structures: {{{example}}}",
            )
        made = []
        for (name, values), spoken_of in zip(masks, own, strict=True):
            self.current = name
            mask = Mask(name, values, spoken_of, self.reading.background)
            _check_values(mask, self.reading, alone=bool(self.item.masks))
            made.append(mask)
        return tuple(made)

    def _bytes(self, name: str) -> bytes:
        try:
            data = (self.root / name).read_bytes()
        except OSError as error:
            raise BadFile("file that cannot be opened", "check it", str(error.strerror)) from None
        self.digests[name] = hashlib.sha256(data).hexdigest()
        return data


def _spacing(volume: Volume, view: View) -> tuple[float, float, float]:
    row, column = plane_spacing(volume, view)
    between = float(np.prod(volume.spacing)) / (row * column)
    return between, row, column


def _check_size(mask: tuple[int, ...], image: tuple[int, ...]) -> None:
    if mask != image:
        detail = "mask {} x {}, image {} x {}".format(*mask, *image)
        raise BadFile("mask of another size than its image", "export both alike", detail)


def _check_values(mask: Mask, reading: Reading, alone: bool) -> None:
    known = {v for _, codes in mask.structures for v in codes or ()} or None
    if known is None:
        if alone and len(mask.counts) > 1:
            raise BadFile(
                "mask with several values for one structure",
                f"say which of them count, such as structures: {{{mask.structures[0][0]}: "
                f"[{max(mask.counts)}]}} (JPEG changes values: save masks as PNG)",
                f"values {some(sorted(mask.counts), reading.colours)}",
            )
        return
    unknown = sorted(set(mask.counts) - known)
    if unknown:
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
