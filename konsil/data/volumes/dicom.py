"""DICOM images: a folder that holds a series, or a file of one or several frames.

Pixels by SimpleITK, whose GDCM reads the compressed transfer syntaxes. GDCM also applies each
file's rescale slope and intercept, and turns MONOCHROME1 (0 is white) round, so that large values
are bright everywhere.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from konsil.data.findings import BadFile
from konsil.data.volumes.formats import itk_image, itk_values, naming
from konsil.data.volumes.grid import Volume
from konsil.data.volumes.headers import Slice, image_headers, slices_of

SAME_PLACE = 0.01  # millimetres
UNEVEN = 0.1  # of the usual gap between slices
NOT_ALIKE = 1e-3  # of direction cosines, and millimetres of spacing


def read_dicom(path: Path, series: str | None = None) -> Volume:
    """The volume of a series' folder or of a file; slices sorted by where they lie."""
    slices = ordered_slices(path, series)
    affine = slices[0].affine
    if len(slices) > 1 and slices[0].place is not None:
        _check_gaps(slices)
        # Not along the normal: the stack of a tilted gantry is sheared.
        affine[:3, 2] = (slices[-1].affine - slices[0].affine)[:3, 3] / (len(slices) - 1)
    return Volume(pixels_of(slices), affine)


def ordered_slices(path: Path, series: str | None = None) -> list[Slice]:
    """The slices of one stack, sorted by where they lie; there may be gaps.

    Frames of one file that do not say where they lie stay as they are.
    """
    slices = [one for header in image_headers(path, series) for one in slices_of(header)]
    _check_alike(slices)
    lost = [one.name for one in slices if one.place is None]
    if not lost:
        return _in_order(slices)
    if len({one.path for one in slices}) > 1:
        cure = "export the series with its headers, or save it as NIfTI"
        raise BadFile("DICOM slices that do not say where they lie", cure, lost[0])
    return slices


def _check_alike(slices: Sequence[Slice]) -> None:
    usual, _ = Counter(one.size for one in slices).most_common(1)[0]
    first = next(one for one in slices if one.size == usual)
    for one in slices:
        difference = _difference(one, first)
        if difference:
            raise _not_alike(difference, one, first)


def _difference(one: Slice, other: Slice) -> str:
    if one.size != other.size:
        return "{} x {} and {} x {} pixels".format(*one.size, *other.size)
    if not np.allclose(one.spacing, other.spacing, rtol=0, atol=NOT_ALIKE):
        return "spacing {:g} x {:g} and {:g} x {:g} mm".format(*one.spacing, *other.spacing)
    if one.place is None or other.place is None:
        return ""
    alike = np.allclose(one.place[:2], other.place[:2], rtol=0, atol=NOT_ALIKE)
    return "" if alike else "another orientation"


def _not_alike(difference: str, one: Slice, other: Slice) -> BadFile:
    cure = "take the slices that do not belong to the stack (a localiser?) out of the folder"
    detail = f"{difference}: {one.name} and {other.name}"
    return BadFile("DICOM slices that are not alike", cure, detail)


def _in_order(slices: Sequence[Slice]) -> list[Slice]:
    """Sorted along the normal; names and instance numbers do not say where a slice lies."""
    heights = _heights(slices)
    order = np.argsort(heights, kind="stable")
    for low, high in pairwise(order):
        if heights[high] - heights[low] < SAME_PLACE:
            cure = (
                "keep one volume in the folder: choose by `series` in federation.yaml, or move "
                "the other times, echoes or b-values away"
            )
            names = f"{slices[low].name} and {slices[high].name}"
            detail = f"{names}, at {heights[low]:g} mm"
            raise BadFile("several DICOM slices at one position", cure, detail)
    return [slices[k] for k in order]


def _heights(slices: Sequence[Slice]) -> list[float]:
    """Millimetres along the normal of the stack."""
    places = [one.place for one in slices if one.place is not None]
    normal = np.cross(*places[0][:2])
    return [float(normal @ place[2]) for place in places]


def _check_gaps(slices: Sequence[Slice]) -> None:
    gaps = np.diff(_heights(slices))
    usual = np.sort(gaps)[(len(gaps) - 1) // 2]
    names = [f"{one.name} and {other.name}" for one, other in pairwise(slices)]
    for pair, gap in zip(names, gaps, strict=True):
        if abs(gap - usual) > UNEVEN * usual:
            cure = "export the series again, whole and with even gaps"
            detail = f"{gap:g} mm between {pair}, elsewhere {usual:g} mm"
            raise BadFile("DICOM series with a missing slice", cure, detail)
    steps = np.diff([one.affine[:3, 3] for one in slices], axis=0)
    shifts = np.linalg.norm(steps - steps.mean(axis=0), axis=1)
    for pair, shift in zip(names, shifts, strict=True):
        if shift > 2 * UNEVEN * usual:
            cure = "export the series again: its slices must lie behind one another"
            raise BadFile("DICOM slices that are shifted against each other", cure, pair)


def pixels_of(slices: Sequence[Slice]) -> NDArray[Any]:
    """[i, j, k(, 3)]: the pixels of slices, in their order; every file is decoded once."""
    files: dict[Path, NDArray[Any]] = {}
    for one in slices:
        if one.path not in files:
            with naming(one.path):
                files[one.path] = itk_values(itk_image(one.path, "DICOM"))
    planes = [files[one.path][:, :, one.frame] for one in slices]
    for one, plane in zip(slices, planes, strict=True):
        if plane.shape != planes[0].shape:
            raise _not_alike("colour and grey", slices[0], one)
    return np.stack(planes, axis=2)
