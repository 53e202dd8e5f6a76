"""DICOM images: a folder that holds a series, or a file of one or several frames.

Pixels by SimpleITK, whose GDCM reads the compressed transfer syntaxes. GDCM also applies each
file's rescale slope and intercept, and turns MONOCHROME1 (0 is white) round, so that large values
are bright everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from konsil.data.findings import BadFile
from konsil.data.volumes.formats import itk_values, naming, unreadable
from konsil.data.volumes.grid import Volume
from konsil.data.volumes.headers import Slice, image_slices

SAME_PLACE = 0.01  # millimetres
UNEVEN = 0.1  # of the usual gap between slices
NOT_ALIKE = 1e-3  # of direction cosines, and millimetres of spacing


def read_dicom(path: Path, series: str | None = None) -> Volume:
    """The volume of a series' folder or of a file; slices sorted by where they lie."""
    slices = ordered_slices(path, series)
    affine = slices[0].affine
    if len(slices) > 1 and slices[0].position is not None:
        _check_gaps(slices)
        # Not along the normal: the stack of a tilted gantry is sheared.
        affine[:3, 2] = (slices[-1].affine - slices[0].affine)[:3, 3] / (len(slices) - 1)
    return Volume(pixels_of(slices), affine)


# --- the stack ----------------------------------------------------------------------------------


def ordered_slices(path: Path, series: str | None = None) -> list[Slice]:
    """The slices of one stack, sorted by where they lie; there may be gaps.

    Frames of one file that do not say where they lie stay as they are.
    """
    slices = image_slices(path, series)
    _check_alike(slices)
    lost = [one.name for one in slices if one.position is None]
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
            cure = (
                "take the slices that do not belong to the stack (a localiser?) out of the folder"
            )
            detail = f"{difference}: {one.name} and {first.name}"
            raise BadFile("DICOM slices that are not alike", cure, detail)


def _difference(one: Slice, other: Slice) -> str:
    if one.size != other.size:
        return "{} x {} and {} x {} pixels".format(*one.size, *other.size)
    if not np.allclose(one.spacing, other.spacing, rtol=0, atol=NOT_ALIKE):
        return "spacing {:g} x {:g} and {:g} x {:g} mm".format(*one.spacing, *other.spacing)
    if one.orientation is None or other.orientation is None:
        return ""
    alike = np.allclose(one.orientation, other.orientation, rtol=0, atol=NOT_ALIKE)
    return "" if alike else "another orientation"


def _in_order(slices: Sequence[Slice]) -> list[Slice]:
    """Sorted along the normal; names and instance numbers do not say where a slice lies."""
    heights = _heights(slices)
    ordered = [slices[k] for k in np.argsort(heights, kind="stable")]
    for (one, other), (low, high) in zip(pairwise(ordered), pairwise(sorted(heights)), strict=True):
        if high - low < SAME_PLACE:
            cure = (
                "keep one volume in the folder: choose by `series` in federation.yaml, or move "
                "the other times, echoes or b-values away"
            )
            detail = f"{one.name} and {other.name}, at {low:g} mm"
            raise BadFile("several DICOM slices at one position", cure, detail)
    return ordered


def _heights(slices: Sequence[Slice]) -> list[float]:
    """Millimetres along the normal of the stack."""
    assert slices[0].orientation is not None
    normal = np.cross(*slices[0].orientation)
    return [float(normal @ one.position) for one in slices if one.position is not None]


def _check_gaps(slices: Sequence[Slice]) -> None:
    steps = [other.affine[:3, 3] - one.affine[:3, 3] for one, other in pairwise(slices)]
    gaps = [high - low for low, high in pairwise(_heights(slices))]
    usual = sorted(gaps)[(len(gaps) - 1) // 2]
    for (one, other), gap in zip(pairwise(slices), gaps, strict=True):
        if abs(gap - usual) > UNEVEN * usual:
            detail = f"{gap:g} mm between {one.name} and {other.name}, elsewhere {usual:g} mm"
            cure = "export the series again, whole and with even gaps"
            raise BadFile("DICOM series with a missing slice", cure, detail)
    mean = np.mean(steps, axis=0)
    for (one, other), step in zip(pairwise(slices), steps, strict=True):
        if np.linalg.norm(step - mean) > 2 * UNEVEN * usual:
            cure = "export the series again: its slices must lie behind one another"
            detail = f"{one.name} and {other.name}"
            raise BadFile("DICOM slices that are shifted against each other", cure, detail)


# --- pixels -------------------------------------------------------------------------------------


def pixels_of(slices: Sequence[Slice]) -> NDArray[Any]:
    """[i, j, k(, 3)]: the pixels of slices, in their order; every file is decoded once."""
    files = {path: _decoded(path) for path in dict.fromkeys(one.path for one in slices)}
    planes = [files[one.path][:, :, one.frame] for one in slices]
    odd = next((k for k, plane in enumerate(planes) if plane.shape != planes[0].shape), None)
    if odd is not None:
        cure = "take the slices that do not belong to the stack out of the folder"
        detail = f"colour and grey: {slices[0].name} and {slices[odd].name}"
        raise BadFile("DICOM slices that are not alike", cure, detail)
    return np.stack(planes, axis=2)


def _decoded(path: Path) -> NDArray[Any]:
    """[i, j, frame(, 3)]."""
    import SimpleITK as sitk

    reader = sitk.ImageFileReader()
    reader.SetImageIO("GDCMImageIO")
    reader.SetFileName(str(path))
    with naming(path):
        try:
            return itk_values(reader.Execute())
        except RuntimeError:
            raise unreadable(path, "DICOM") from None
