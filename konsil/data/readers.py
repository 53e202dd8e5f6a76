"""From the bytes of a file to an array of the network's size."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from konsil.data.findings import BadFile

FORMATS = ("PNG", "JPEG", "BMP", "TIFF")
SIXTEEN_BIT = ("I", "I;16", "I;16B", "I;16L", "I;16N")


@dataclass(frozen=True)
class Picture:
    """A decoded and resized image."""

    pixels: NDArray[np.uint8]  # [C, size, size]
    original: tuple[int, int]  # width and height in the file
    brightest: int | None  # of a 16-bit image, before it was scaled to 8 bit


def read_picture(data: bytes, channels: int, size: int) -> Picture:
    """An image as uint8, antialiased to size x size. The EXIF orientation is left alone."""
    image = _decode(data)
    brightest = None
    if image.mode in SIXTEEN_BIT:
        wide = _sixteen_bit(image)
        brightest = int(wide.max())
        image = Image.fromarray(((wide + 128) // 257).astype(np.uint8))  # 65535 becomes 255
    elif image.mode == "F":
        raise BadFile("image of floating-point pixels", "save it with 8 or 16 bit a pixel")
    original = image.size
    image = image.convert("L" if channels == 1 else "RGB")
    image = image.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=3.0)
    pixels = np.asarray(image).reshape(size, size, channels).transpose(2, 0, 1)
    return Picture(np.ascontiguousarray(pixels), original, brightest)


def read_mask(data: bytes) -> NDArray[Any]:
    """The values of a mask, [H, W], as they stand in the file. Palette masks give their index."""
    image = _decode(data)
    if image.mode in SIXTEEN_BIT:
        return _sixteen_bit(image)
    if image.mode in ("1", "LA", "La"):
        image = image.convert("L")
    values = np.asarray(image)
    if image.mode in ("RGB", "RGBA"):
        if np.ptp(values[..., :3], axis=2).any():
            raise BadFile("coloured mask", "save masks in greyscale, one value a structure")
        return values[..., 0]
    if image.mode not in ("L", "P"):
        cure = "save masks in greyscale, one value a structure"
        raise BadFile("mask that is not greyscale", cure, f"PIL mode {image.mode}")
    return values


def mask_values(mask: NDArray[Any]) -> frozenset[int]:
    """The values that occur in a mask, without background."""
    if mask.dtype == np.uint8:
        present = np.flatnonzero(np.bincount(mask.ravel(), minlength=256))
    else:
        present = np.unique(mask)
    return frozenset(present.tolist()) - {0}


def structure_planes(
    mask: NDArray[Any], structures: list[tuple[str, list[int] | None]], size: int
) -> NDArray[np.uint8]:
    """One 0/1 plane a structure, [S, size, size]; None stands for every value but 0."""
    height, width = mask.shape
    rows, columns = _nearest(height, size), _nearest(width, size)
    small = mask[rows[:, None], columns]
    planes = [small != 0 if values is None else np.isin(small, values) for _, values in structures]
    return np.stack(planes).astype(np.uint8)


def _nearest(length: int, size: int) -> NDArray[np.int64]:
    """The source pixel under the centre of each target pixel."""
    return (2 * np.arange(size, dtype=np.int64) + 1) * length // (2 * size)


def _decode(data: bytes) -> Image.Image:
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        frames = getattr(image, "n_frames", 1) if image.format in ("PNG", "TIFF") else 1
        image.load()
    except Exception as error:  # decoders raise whatever they stumble over in a damaged file
        detail = "empty file" if not data else _one_line(error)
        cure = "save it again as PNG, JPEG, BMP or TIFF, or take it away"
        raise BadFile("image that cannot be read", cure, detail) from None
    if frames > 1:
        cure = "save every frame as a file of its own"
        raise BadFile("file with more than one frame", cure, f"{frames} frames")
    return image


def _one_line(error: Exception) -> str:
    text = str(error).split(" <_io")[0].removesuffix(" file")
    return " ".join(text.split()) or type(error).__name__


def _sixteen_bit(image: Image.Image) -> NDArray[np.int64]:
    wide = np.asarray(image).astype(np.int64)
    if wide.min() < 0 or wide.max() > 65535:
        cure = "save it with 8 or 16 bit a pixel"
        raise BadFile("image of more than 16 bit a pixel", cure, f"{wide.min()} to {wide.max()}")
    return wide
