"""DICOM SEG objects: every segment's frames, put onto the voxels of an image.

The value of a voxel is the number of its segment. Where segments overlap, one must lie inside the
other (the cup inside the disc): the smaller one is painted over the larger, whatever their
numbers, so that `{disc: [1, 2], cup: [2]}` gets both back. Other overlaps cannot be told by one
value a voxel and are refused.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from konsil.data.findings import BadFile
from konsil.data.volumes.formats import unreadable
from konsil.data.volumes.grid import Volume, offset_text, put_plane
from konsil.data.volumes.headers import TAGS, Header, image_headers, slices_of

if TYPE_CHECKING:
    from pydicom import Dataset

MISPLACED = "mask that lies elsewhere than its image"
PIXEL_TAGS = [
    "SegmentationType",
    "MaximumFractionalValue",
    "SamplesPerPixel",
    "PhotometricInterpretation",
    "BitsAllocated",
    "BitsStored",
    "HighBit",
    "PixelRepresentation",
    "PixelData",
]
LABEL_MAP = 0  # stands for the segment number where every pixel tells its own


def check_reference(path: Path, image: Path, series: str | None) -> None:
    """Refuse a segmentation that says it was drawn on another series than this DICOM image."""
    try:
        headers = image_headers(image, series)
    except BadFile:
        return  # not DICOM, so it has no series; where it lies is checked all the same
    referenced = _dataset(path, ["ReferencedSeriesSequence"]).get("ReferencedSeriesSequence") or []
    series_of = {str(item.get("SeriesInstanceUID")) for item in referenced}
    if series_of and not series_of & {header.series for header in headers}:
        cure = (
            "take the series it was drawn on, or write `geometry: ignore` in federation.yaml if "
            "only its place in space shall count"
        )
        raise BadFile("DICOM SEG of another series than its image", cure)


def read_segmentation(header: Header, volume: Volume) -> NDArray[Any]:
    """The segment numbers, on the voxels of the volume."""
    data = _dataset(header.path, TAGS + PIXEL_TAGS)
    frames = _frames(data, header.path)
    layers: dict[int, NDArray[Any]] = {}
    slices = slices_of(header)
    for number, one, frame in zip(_segments(data, len(frames)), slices, frames, strict=True):
        layer = layers.setdefault(number, np.zeros(volume.shape, dtype=frames.dtype))
        if one.position is None or not put_plane(frame.T, one.affine, layer, volume.affine):
            cure = "take the image that the segmentation was drawn on, or export it again"
            detail = f"{one.name}: {offset_text(one.affine, volume.affine)}"
            raise BadFile(MISPLACED, cure, detail)
    if LABEL_MAP in layers:
        return layers[LABEL_MAP]
    return _painted({number: layer != 0 for number, layer in layers.items()}, volume)


def _dataset(path: Path, tags: list[str]) -> Dataset:
    from pydicom import dcmread

    try:
        return dcmread(path, specific_tags=tags)
    except Exception:  # pydicom raises whatever it stumbles over in a damaged file
        raise unreadable(path, "DICOM") from None


def _frames(data: Dataset, path: Path) -> NDArray[Any]:
    try:
        frames = data.pixel_array.reshape(-1, data.Rows, data.Columns)
    except Exception:  # the same, and codecs that are not there
        raise unreadable(path, "DICOM SEG") from None
    fractional = data.get("SegmentationType") == "FRACTIONAL"
    if fractional and not np.isin(frames, (0, data.get("MaximumFractionalValue"))).all():
        cure = "export a binary segmentation"
        raise BadFile("mask with fractional values", cure, "DICOM SEG of type FRACTIONAL")
    return frames


def _segments(data: Dataset, frames: int) -> list[int]:
    """The segment number of every frame."""
    if data.get("SegmentationType") == "LABELMAP":
        return [LABEL_MAP] * frames
    shared = data.get("SharedFunctionalGroupsSequence") or [{}]
    groups = data.get("PerFrameFunctionalGroupsSequence") or [{}] * frames
    name = "SegmentIdentificationSequence"
    items = [(group.get(name) or shared[0].get(name))[0] for group in groups]
    return [int(item.ReferencedSegmentNumber) for item in items]


def _painted(layers: dict[int, NDArray[Any]], volume: Volume) -> NDArray[Any]:
    """One value a voxel: larger segments first, and smaller ones inside them over them."""
    for (first, a), (second, b) in combinations(layers.items(), 2):
        both = np.count_nonzero(a & b)
        sizes = np.count_nonzero(a), np.count_nonzero(b)
        if both and (both != min(sizes) or sizes[0] == sizes[1]):
            cure = (
                "export each structure as a mask of its own, or as a segmentation without overlap"
            )
            detail = f"segments {first} and {second} share {both} voxels"
            raise BadFile("DICOM SEG whose segments overlap", cure, detail)
    target = np.zeros(volume.shape, dtype=np.uint16)
    for number in sorted(layers, key=lambda n: -np.count_nonzero(layers[n])):
        target[layers[number]] = number
    return target
