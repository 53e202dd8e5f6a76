"""One picture or volume, opened as training sees it.

Training, `konsil data check`, previews and super models all open images here, so that a model is
asked about what it was trained on.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from konsil.data import readers
from konsil.data.findings import BadFile
from konsil.data.reading import ImageReading
from konsil.data.sources import SUFFIXES
from konsil.data.volumes import Volume, plane_spacing, planes, read_volume


@dataclass(frozen=True)
class ImageFile:
    """What an image's file holds, at its own size. A picture has one plane."""

    kind: str  # PNG, JPEG, ... or volume
    raw: NDArray[Any]  # [N, H, W] or [N, H, W, C]: intensities as the file has them
    pictures: list[Image.Image]  # the same planes with 8 bit a channel
    spacing: tuple[float, float, float] | None = None  # volumes: mm between planes, rows, columns
    sixteen_bit: bool = False  # and not stretched to a window
    volume: Volume | None = None  # of whose array the planes are
    series: str | None = None  # DICOM folders of several: the pattern that chose one

    def plane(self, number: int, channels: int, size: int) -> NDArray[np.uint8]:
        """One plane as the network sees it, [C, size, size]."""
        return readers.fit(self.pictures[number], channels, size)


def is_picture(name: str) -> bool:
    """Whether a file is a 2-D picture by its name."""
    return name.lower().endswith(SUFFIXES)


def open_image(path: Path, reading: ImageReading) -> ImageFile:
    """A picture, or all planes of a volume. Raises BadFile if it cannot be used."""
    if not is_picture(path.name):
        return open_volume(path, reading)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadFile("file that cannot be opened", "check it", str(error.strerror)) from None
    return open_picture(data, path, reading)


def open_picture(data: bytes, path: Path, reading: ImageReading) -> ImageFile:
    """A picture of these bytes, which are those of the file."""
    image, window = readers.read_picture(data), reading.window
    if readers.is_wide_colour(data):  # Pillow would drop the lower half of the bits
        return picture_of(readers.read_wide_colour(path), reading, image.format or "")
    raw, eight = readers.intensities(image), readers.eight_bit(image, window)
    return _picture(image.format or "", raw, eight, window)


def picture_of(pixels: NDArray[Any], reading: ImageReading, kind: str = "array") -> ImageFile:
    """A picture of these intensities, [H, W] or [H, W, 3]; 8 bit are taken as they are."""
    window = reading.window
    if window is None and pixels.dtype == np.uint8:
        return _picture(kind, pixels, Image.fromarray(pixels), window)
    if window is None and pixels.dtype.kind not in "iu":
        raise BadFile("pixels that are no whole numbers", "say what is black and white: a window")
    eight = Image.fromarray(readers.to_eight_bit(pixels, window or "full"))
    return _picture(kind, pixels, eight, window)


def _picture(
    kind: str, raw: NDArray[Any], eight: Image.Image, window: readers.Window | None
) -> ImageFile:
    sixteen_bit = raw.dtype == np.uint16 and window is None
    return ImageFile(kind, raw[None], [eight], sixteen_bit=sixteen_bit)


def open_volume(path: Path, reading: ImageReading) -> ImageFile:
    """All planes of a volume's view."""
    volume = read_volume(path, reading.channel, reading.series)
    raw = planes(volume.array, volume.affine, reading.view)
    eight = readers.to_eight_bit(raw, reading.window or readers.OF_VOLUMES)
    row, column = plane_spacing(volume, reading.view)
    return ImageFile(
        kind="volume",
        raw=raw,
        pictures=[Image.fromarray(plane) for plane in eight],
        spacing=(float(np.prod(volume.spacing)) / (row * column), row, column),
        volume=volume,
        series=reading.series,
    )
