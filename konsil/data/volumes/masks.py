"""Masks of volumes, brought onto the voxels of their image.

A mask may be stored in another orientation than its image: it is turned, never resampled. DICOM
SEG objects and series of mask slices may leave out empty slices: each is put where it lies.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from konsil.data.findings import BadFile
from konsil.data.readers import read_mask
from konsil.data.volumes.dicom import ordered_slices, pixels_of
from konsil.data.volumes.formats import ITK, NIFTI, naming, read_itk, read_nifti, suffix_of
from konsil.data.volumes.grid import Volume, offset_text, onto_grid, put_plane
from konsil.data.volumes.headers import (
    Slice,
    files_of,
    read_headers,
)
from konsil.data.volumes.segmentations import MISPLACED, check_reference, read_segmentation

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
    suffix = suffix_of(path)
    if path.is_dir() and _holds_pictures(path):
        return _read_pictures(path, image, volume, series, colours)
    if path.is_dir() or suffix not in (*NIFTI, *ITK):
        return _read_dicom(path, image, volume, check_geometry, series)
    read = read_nifti if suffix in NIFTI else read_itk
    return _on_image(read(path, None), volume, check_geometry)


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


def _on_image(mask: Volume, volume: Volume, check_geometry: bool) -> NDArray[Any]:
    """A mask on the voxels of its image.

    Where the geometry says how to turn it, that is done; where it says something else,
    `check_geometry=False` takes the mask as it is stored.
    """
    values = _whole_numbers(mask.array)
    turned = onto_grid(values, mask.affine, volume)
    if turned is not None:
        return turned
    if values.shape != volume.shape and not _turned_shape_fits(mask, volume):
        raise _other_shape(values.shape, volume.shape)
    if check_geometry or values.shape != volume.shape:
        raise BadFile(MISPLACED, IGNORE, offset_text(mask.affine, volume.affine))
    return values


def _turned_shape_fits(mask: Volume, volume: Volume) -> bool:
    axes = np.abs(np.linalg.inv(volume.affine) @ mask.affine)[:3, :3].argmax(axis=1)
    return tuple(mask.shape[axis] for axis in axes) == volume.shape


def _other_shape(mask: Sequence[int], image: Sequence[int]) -> BadFile:
    detail = f"mask {' x '.join(map(str, mask))}, image {' x '.join(map(str, image))}"
    return BadFile("mask of another size than its image", "export both alike", detail)


# --- DICOM: segmentations and slices ------------------------------------------------------------


def _read_dicom(
    path: Path, image: Path, volume: Volume, check_geometry: bool, series: str | None
) -> NDArray[Any]:
    """A DICOM SEG object, or slices whose pixels are the mask's values."""
    headers = read_headers(path)
    if any(header.is_segmentation for header in headers):
        if len(headers) > 1:
            cure = "keep one DICOM SEG in the folder, or name the file in federation.yaml"
            names = ", ".join(header.path.name for header in headers[:3])
            raise BadFile("DICOM SEG beside other files", cure, names)
        if check_geometry:
            check_reference(headers[0].path, image, series)
        return read_segmentation(headers[0], volume)
    return _read_slices(path, volume, check_geometry)


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
        raise _other_shape(values.shape, volume.shape)
    one = ordered[lost[0]]
    raise BadFile(MISPLACED, IGNORE, f"{one.name}: {offset_text(one.affine, volume.affine)}")


def _put(one: Slice, plane: NDArray[Any], target: NDArray[Any], volume: Volume) -> bool:
    return one.position is not None and put_plane(plane, one.affine, target, volume.affine)


# --- a PNG for every slice ----------------------------------------------------------------------


def _holds_pictures(folder: Path) -> bool:
    files = files_of(folder)
    return bool(files) and all(file.suffix.lower() == ".png" for file in files)


def _read_pictures(
    folder: Path, image: Path, volume: Volume, series: str | None, colours: bool
) -> NDArray[Any]:
    if not image.is_dir():
        cure = "save the mask as NIfTI, on the image's voxels"
        raise BadFile("PNG masks for an image that is no DICOM series", cure, image.name)
    pairs = _paired(ordered_slices(image, series), files_of(folder))
    planes = []
    for one, file in pairs:
        with naming(file):
            mask = read_mask(file.read_bytes(), colours)
        if mask.shape != one.size[::-1]:
            raise _other_shape((*mask.shape[::-1], len(pairs)), volume.shape)
        planes.append(mask.T)
    return np.stack(planes, axis=2)


def _paired(slices: Sequence[Slice], files: Sequence[Path]) -> list[tuple[Slice, Path]]:
    """By the name of the DICOM file; else the last number in the name is the InstanceNumber."""
    by_name = {file.stem: file for file in files}
    by_number = {_last_number(file): file for file in files}
    if sorted(by_name) == sorted(one.path.stem for one in slices):
        return [(one, by_name[one.path.stem]) for one in slices]
    distinct = len(by_number) == len(files) == len(slices)
    if distinct and by_number.keys() == {one.number for one in slices}:
        return [(one, by_number[one.number]) for one in slices]
    cure = (
        "one PNG a slice, empty ones too: with the DICOM file's name, or with its InstanceNumber "
        "as the last number of the name"
    )
    detail = f"{len(files)} PNG, {len(slices)} slices; {files[0].name}, {slices[0].name}"
    raise BadFile("PNG masks that do not pair with the slices", cure, detail)


def _last_number(file: Path) -> int | None:
    numbers = re.findall(r"\d+", file.stem)
    return int(numbers[-1]) if numbers else None
