"""From the bytes of a picture to values, 8 bit and the network's size."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from konsil.data.findings import BadFile

FORMATS = ("PNG", "JPEG", "BMP", "TIFF")
Codes = tuple[int, ...] | None  # the mask values of a structure; None: every one but background
SIXTEEN_BIT = ("I", "I;16", "I;16B", "I;16L", "I;16N")
# Where a mark stands, the mark, and what it means. Web pages and pointers are what a download
# leaves that went wrong.
MARKS = (
    (0, b"\x89PNG\r\n\x1a\n", "PNG"),
    (0, b"\xff\xd8\xff", "JPEG"),
    (0, b"BM", "BMP"),
    (0, b"II*\x00", "TIFF"),
    (0, b"MM\x00*", "TIFF"),
    (0, b"GIF8", "GIF"),
    (8, b"WEBP", "WebP"),
    (4, b"ftypheic", "HEIC"),
    (4, b"ftypavif", "AVIF"),
    (0, b"\x00\x00\x00\x0cjP", "JPEG 2000"),
    (0, b"%PDF", "PDF"),
    (128, b"DICM", "DICOM"),
    (344, b"n+1\x00", "NIfTI"),
    (0, b"NRRD", "NRRD"),
    (0, b"\x1f\x8b", "gzip"),
    (0, b"PK\x03\x04", "a ZIP archive"),
    (0, b"version https://git-lfs", "a pointer of Git LFS"),
    (0, b"<!DOCTYPE", "a web page"),
    (0, b"<html", "a web page"),
    (0, b"\x93NUMPY", "a NumPy array"),
)


@dataclass(frozen=True)
class Percentiles:
    """From the darker to the brighter percentile of an image or volume."""

    low: float
    high: float


Window = tuple[float, float] | Percentiles | Literal["full"]
# MR has no absolute unit, and single bright voxels (vessels, coils) would darken all others.
OF_VOLUMES = Percentiles(0.5, 99.5)


def what_it_is(data: bytes) -> str | None:
    """The format of a file that begins like this, if it is one that people mix up."""
    return next((name for start, mark, name in MARKS if data.startswith(mark, start)), None)


def read_picture(data: bytes) -> Image.Image:
    """An image as it stands in the file. The EXIF orientation is left alone."""
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        frames = getattr(image, "n_frames", 1) if image.format in ("PNG", "TIFF") else 1
        image.load()
    except Exception as error:  # decoders raise whatever they stumble over in a damaged file
        kind = what_it_is(data)
        detail = "empty file" if not data else _one_line(error)
        if kind is not None and kind not in FORMATS:
            detail = f"its content is {kind}"
        cure = "save it again as PNG, JPEG, BMP or TIFF, or take it away"
        raise BadFile("image that cannot be read", cure, detail) from None
    if frames > 1:
        cure = "save every frame as a file of its own"
        raise BadFile("file with more than one frame", cure, f"{frames} frames")
    return image


def is_wide_colour(data: bytes) -> bool:
    """Whether these are the bytes of a PNG with 16 bit a colour: depth and type of its header."""
    return what_it_is(data) == "PNG" and data[24:26] in (b"\x10\2", b"\x10\6")


def read_wide_colour(path: Path) -> NDArray[np.uint16]:
    """A PNG with 16 bit a colour, [H, W, 3], without transparency."""
    import SimpleITK as sitk

    try:
        pixels = sitk.GetArrayFromImage(sitk.ReadImage(str(path)))
    except RuntimeError as error:
        cure = "save it again as PNG, or take it away"
        raise BadFile("image that cannot be read", cure, _one_line(error)[:80]) from None
    return np.ascontiguousarray(pixels[..., :3]).astype(np.uint16)


def intensities(image: Image.Image) -> NDArray[Any]:
    """What the file says of each pixel, [H, W] or [H, W, C]; palettes are looked up."""
    if image.mode in SIXTEEN_BIT:
        return _sixteen_bit(image).astype(np.uint16)
    if image.mode in ("1", "P", "PA", "CMYK", "YCbCr", "RGBA", "LA"):
        image = image.convert("L" if image.mode in ("1", "LA") else "RGB")
    return np.asarray(image)


def eight_bit(image: Image.Image, window: Window | None) -> Image.Image:
    """The image with 8 bit a channel, stretched to a window if there is one."""
    if window is not None:
        return Image.fromarray(to_eight_bit(intensities(image), window))
    if image.mode in SIXTEEN_BIT:  # 65535 becomes 255
        return Image.fromarray(((_sixteen_bit(image) + 128) // 257).astype(np.uint8))
    if image.mode == "F":
        cure = "save it with 8 or 16 bit a pixel, or give a window in a federation file"
        raise BadFile("image of floating-point pixels", cure)
    return image


def fit(image: Image.Image, channels: int, size: int) -> NDArray[np.uint8]:
    """An 8-bit image as the network sees it, [C, size, size], antialiased."""
    image = image.convert("L" if channels == 1 else "RGB")
    image = image.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=3.0)
    pixels = np.asarray(image).reshape(size, size, channels).transpose(2, 0, 1)
    return np.ascontiguousarray(pixels)


def read_mask(data: bytes, colours: bool = False) -> NDArray[Any]:
    """The values of a mask, [H, W], as they stand in the file. Palette masks give their index.

    With `colours` a value is 0xRRGGBB.
    """
    image = read_picture(data)
    if colours:
        red, green, blue = np.moveaxis(np.asarray(image.convert("RGB")).astype(np.int64), 2, 0)
        return np.asarray((red << 16) | (green << 8) | blue)
    if image.mode in SIXTEEN_BIT:
        return _sixteen_bit(image)
    if image.mode in ("1", "LA", "La"):
        image = image.convert("L")
    values = np.asarray(image)
    if image.mode in ("RGB", "RGBA"):
        if np.ptp(values[..., :3], axis=2).any():
            cure = (
                "save masks in greyscale, one value a structure; or say in a federation file "
                'which colour is which, such as structures: {cup: ["#ff0000"]}'
            )
            raise BadFile("coloured mask", cure)
        return values[..., 0]
    if image.mode not in ("L", "P"):
        cure = "save masks in greyscale, one value a structure"
        raise BadFile("mask that is not greyscale", cure, f"PIL mode {image.mode}")
    return values


def mask_values(mask: NDArray[Any]) -> dict[int, int]:
    """The values that occur in a mask, and how often."""
    if mask.dtype == np.uint8:  # NumPy would first widen every pixel to 64 bit
        rows = np.ascontiguousarray(mask).reshape(-1, mask.shape[-1])
        counts = Image.fromarray(rows).histogram()
        return {value: count for value, count in enumerate(counts) if count}
    present, times = np.unique(mask, return_counts=True)
    return dict(zip(present.tolist(), times.tolist(), strict=True))


def shrink(mask: NDArray[Any], size: int) -> NDArray[Any]:
    """The mask's values at size x size, each taken from the nearest pixel."""
    centres = 2 * np.arange(size, dtype=np.int64) + 1  # of the target's pixels, in half pixels
    rows, columns = (centres * length // (2 * size) for length in mask.shape)
    return np.asarray(mask[rows[:, None], columns])


def marked(values: NDArray[Any], codes: Codes, background: int) -> NDArray[np.bool_]:
    """Where a structure is."""
    return values != background if codes is None else np.isin(values, codes)


def _one_line(error: Exception) -> str:
    text = str(error).split(" <_io")[0].removesuffix(" file")
    return " ".join(text.split()) or type(error).__name__


def _sixteen_bit(image: Image.Image) -> NDArray[np.int64]:
    wide = np.asarray(image).astype(np.int64)
    if wide.min() < 0 or wide.max() > 65535:
        cure = "save it with 8 or 16 bit a pixel"
        raise BadFile("image of more than 16 bit a pixel", cure, f"{wide.min()} to {wide.max()}")
    return wide


def to_eight_bit(values: NDArray[Any], window: Window) -> NDArray[np.uint8]:
    """Linear between the window's ends, which become 0 and 255, cut off beyond them, rounded."""
    low, high = map(float, _ends(values, window))
    if high <= low:
        return np.zeros(values.shape, np.uint8)
    scaled = (values.astype(np.float32) - np.float32(low)) * np.float32(255 / (high - low))
    return np.rint(scaled.clip(0, 255, out=scaled), out=scaled).astype(np.uint8)


def _ends(values: NDArray[Any], window: Window) -> tuple[float, float]:
    if isinstance(window, tuple):
        return window
    if isinstance(window, Percentiles):
        low, high = np.percentile(values, [window.low, window.high])
        if low < high:  # or most of it is background
            return low, high
    elif np.issubdtype(values.dtype, np.integer):
        kind = np.iinfo(values.dtype)
        return kind.min, kind.max
    return values.min(), values.max()
