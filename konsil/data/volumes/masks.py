"""Masks of volumes, brought onto the voxels of their image.

A mask may be stored in another orientation than its image: it is turned, never resampled. DICOM
SEG objects and series of mask slices may leave out empty slices: each is put where it lies.
"""

import re
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from konsil.data.findings import BadFile
from konsil.data.readers import read_mask
from konsil.data.volumes.dicom import ordered_slices, pixels_of
from konsil.data.volumes.formats import ITK, NIFTI, naming, read_file, suffix_of, unreadable
from konsil.data.volumes.grid import Affine, Volume, offset_text, onto_grid, put_plane
from konsil.data.volumes.headers import (
    Header,
    Slice,
    files_of,
    image_headers,
    read_headers,
    slices_of,
)

IGNORE = (
    "export the mask on its image's voxels, or write `geometry: ignore` in federation.yaml if it "
    "is certain that it lies on them one by one"
)


def read_mask_volume(
    path: Path,
    image: Path,
    volume: Volume,
    check_geometry: bool = True,
    series: str | None = None,
    colours: bool = False,
) -> NDArray[Any]:
    """The values of a mask, integers of the shape of its image, on the image's own voxels.

    `path` is a NIfTI, MetaImage or NRRD file, a DICOM SEG (value = segment number), or a folder
    with one DICOM SEG, a series of mask slices, or a PNG for every slice of a DICOM image.
    `series` is the pattern that chose the image's series. `check_geometry=False` believes that a
    mask of the right shape lies on its image whatever its header says. `colours`: the value of a
    PNG's pixel is its colour, 0xRRGGBB.
    """
    files = files_of(path) if path.is_dir() else []
    if files and all(file.suffix.lower() == ".png" for file in files):
        return _read_pictures(files, image, volume, series, colours)
    if not path.is_dir() and suffix_of(path) in (*NIFTI, *ITK):
        return _on_image(read_file(path, None), volume, check_geometry)
    headers = read_headers(path)
    if not any(header.is_segmentation for header in headers):
        return _read_slices(path, volume, check_geometry)
    if len(headers) > 1:
        cure = "keep one DICOM SEG in the folder, or name the file in federation.yaml"
        names = ", ".join(header.path.name for header in headers[:3])
        raise BadFile("DICOM SEG beside other files", cure, names)
    if check_geometry:
        _check_reference(headers[0], image, series)
    return _read_segmentation(headers[0], volume)


def _on_image(mask: Volume, volume: Volume, check_geometry: bool) -> NDArray[Any]:
    """A mask on the voxels of its image.

    Where the geometry says how to turn it, that is done; where it says something else,
    `check_geometry=False` takes the mask as it is stored.
    """
    values = _whole_numbers(mask.array)
    turned = onto_grid(values, mask.affine, volume)
    if turned is not None:
        return turned
    alike = values.shape == volume.shape
    axes = np.abs(np.linalg.inv(volume.affine) @ mask.affine)[:3, :3].argmax(axis=1)
    if not alike and tuple(mask.shape[axis] for axis in axes) != volume.shape:
        raise _other_shape(values.shape, volume)
    if check_geometry or not alike:
        raise _misplaced(mask.affine, volume)
    return values


def _whole_numbers(array: NDArray[Any]) -> NDArray[Any]:
    """The values of a mask as integers."""
    if array.ndim != 3:
        raise BadFile("coloured mask volume", "save masks with one value a structure")
    if array.dtype.kind in "iu":
        return array
    if array.dtype.kind == "f" and np.isfinite(array).all() and (array == np.rint(array)).all():
        return array.astype(np.int32)
    cure = "save masks with whole numbers, one a structure; resample them by nearest neighbour"
    detail = f"{array.dtype}, {np.nanmin(array.real):g} to {np.nanmax(array.real):g}"
    raise BadFile("mask with fractional values", cure, detail)


def _other_shape(mask: Sequence[int], volume: Volume) -> BadFile:
    detail = f"mask {' x '.join(map(str, mask))}, image {' x '.join(map(str, volume.shape))}"
    return BadFile("mask of another size than its image", "export both alike", detail)


def _misplaced(affine: Affine, volume: Volume, name: str = "", cure: str = IGNORE) -> BadFile:
    detail = name + offset_text(affine, volume.affine)
    return BadFile("mask that lies elsewhere than its image", cure, detail)


# --- DICOM slices whose pixels are the mask's values --------------------------------------------


def _read_slices(path: Path, volume: Volume, check_geometry: bool) -> NDArray[Any]:
    ordered = ordered_slices(path)
    values = _whole_numbers(pixels_of(ordered))
    target = np.zeros(volume.shape, dtype=values.dtype)
    lost = [k for k, one in enumerate(ordered) if not _put(one, values[..., k], target, volume)]
    if not lost:
        return target
    if values.shape == volume.shape and not check_geometry:
        return values
    if values.shape[:2] != volume.shape[:2] or len(lost) == len(ordered) != volume.shape[2]:
        raise _other_shape(values.shape, volume)
    one = ordered[lost[0]]
    raise _misplaced(one.affine, volume, f"{one.name}: ")


def _put(one: Slice, plane: NDArray[Any], target: NDArray[Any], volume: Volume) -> bool:
    return one.place is not None and put_plane(plane, one.affine, target, volume.affine)


# --- DICOM SEG ----------------------------------------------------------------------------------


def _check_reference(header: Header, image: Path, series: str | None) -> None:
    """Refuse a segmentation that says it was drawn on another series than this DICOM image."""
    try:
        drawn_on = {one.series for one in image_headers(image, series)}
    except BadFile:
        return  # not DICOM, so it has no series; where it lies is checked all the same
    referenced = header.dataset.get("ReferencedSeriesSequence") or []
    named = {str(item.get("SeriesInstanceUID")) for item in referenced}
    if named and not named & drawn_on:
        cure = (
            "take the series it was drawn on, or write `geometry: ignore` in federation.yaml if "
            "only its place in space shall count"
        )
        raise BadFile("DICOM SEG of another series than its image", cure)


def _read_segmentation(header: Header, volume: Volume) -> NDArray[Any]:
    """The segment numbers, on the voxels of the volume."""
    frames = _frames(header)
    label_map = header.dataset.get("SegmentationType") == "LABELMAP"  # pixels are the numbers
    layers: dict[int, NDArray[Any]] = {}
    for one, frame in zip(slices_of(header), frames, strict=True):
        number = 0 if label_map else one.segment
        if number is None:
            raise unreadable(header.path, "DICOM SEG")
        layer = layers.setdefault(number, np.zeros(volume.shape, dtype=frames.dtype))
        if not _put(one, frame.T, layer, volume):
            cure = "take the image that the segmentation was drawn on, or export it again"
            raise _misplaced(one.affine, volume, f"{one.name}: ", cure)
    if label_map:
        return layers[0]
    return _painted({number: layer != 0 for number, layer in layers.items()}, volume)


def _frames(header: Header) -> NDArray[Any]:
    from pydicom.pixels import pixel_array

    data = header.dataset
    try:
        frames = pixel_array(header.path).reshape(-1, data.Rows, data.Columns)
    except Exception:  # pydicom's trouble with a damaged file, and codecs that are not there
        raise unreadable(header.path, "DICOM SEG") from None
    fractional = data.get("SegmentationType") == "FRACTIONAL"
    if fractional and not np.isin(frames, (0, data.get("MaximumFractionalValue"))).all():
        cure = "export a binary segmentation"
        raise BadFile("mask with fractional values", cure, "DICOM SEG of type FRACTIONAL")
    return frames


def _painted(layers: dict[int, NDArray[Any]], volume: Volume) -> NDArray[Any]:
    """One value a voxel, the number of its segment.

    Where segments overlap, one must lie inside the other (the cup inside the disc): the smaller
    one is painted over the larger, whatever their numbers, so that `{disc: [1, 2], cup: [2]}` gets
    both back. Other overlaps cannot be told by one value a voxel and are refused.
    """
    sizes = {number: np.count_nonzero(layer) for number, layer in layers.items()}
    for first, second in combinations(layers, 2):
        both = np.count_nonzero(layers[first] & layers[second])
        smaller, larger = sorted((sizes[first], sizes[second]))
        if both and not both == smaller < larger:
            cure = (
                "export each structure as a mask of its own, or as a segmentation without overlap"
            )
            detail = f"segments {first} and {second} share {both} voxels"
            raise BadFile("DICOM SEG whose segments overlap", cure, detail)
    target = np.zeros(volume.shape, dtype=np.uint16)
    for number in sorted(layers, key=lambda number: -sizes[number]):
        target[layers[number]] = number
    return target


# --- a PNG for every slice ----------------------------------------------------------------------


def _read_pictures(
    files: Sequence[Path], image: Path, volume: Volume, series: str | None, colours: bool
) -> NDArray[Any]:
    if not image.is_dir():
        cure = "save the mask as NIfTI, on the image's voxels"
        raise BadFile("PNG masks for an image that is no DICOM series", cure, image.name)
    planes = []
    for one, file in _paired(ordered_slices(image, series), files):
        with naming(file):
            mask = read_mask(file.read_bytes(), colours)
        if mask.shape != one.size[::-1]:
            raise _other_shape((*mask.shape[::-1], len(files)), volume)
        planes.append(mask.T)
    return np.stack(planes, axis=2)


def _paired(slices: Sequence[Slice], files: Sequence[Path]) -> list[tuple[Slice, Path]]:
    """By the name of the DICOM file; else the last number in the name is the InstanceNumber."""
    by_name = {file.stem: file for file in files}
    if sorted(by_name) == sorted(one.path.stem for one in slices):
        return [(one, by_name[one.path.stem]) for one in slices]
    numbers = {file: re.findall(r"\d+", file.stem) for file in files}
    by_number = {int(found[-1]) if found else None: file for file, found in numbers.items()}
    distinct = len(by_number) == len(files) == len(slices)
    if distinct and by_number.keys() == {one.number for one in slices}:
        return [(one, by_number[one.number]) for one in slices]
    cure = (
        "one PNG a slice, empty ones too: with the DICOM file's name, or with its InstanceNumber "
        "as the last number of the name"
    )
    detail = f"{len(files)} PNG, {len(slices)} slices; {files[0].name}, {slices[0].name}"
    raise BadFile("PNG masks that do not pair with the slices", cure, detail)
