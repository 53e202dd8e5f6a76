"""Volumes: NIfTI, MetaImage, NRRD, DICOM files and folders, and their masks.

Everything here raises `BadFile` for a file that cannot be used, with what to do about it.
"""

from pathlib import Path

import numpy as np

from konsil.data.findings import BadFile
from konsil.data.volumes.dicom import read_dicom
from konsil.data.volumes.formats import ITK, NIFTI, data_file, read_file, suffix_of, write_volume
from konsil.data.volumes.grid import View, Volume, from_planes, plane_spacing, planes
from konsil.data.volumes.headers import files_of
from konsil.data.volumes.masks import read_mask_volume

__all__ = [
    "SUFFIXES",
    "View",
    "Volume",
    "from_planes",
    "is_volume",
    "parts_of",
    "plane_spacing",
    "planes",
    "read_mask_volume",
    "read_volume",
    "write_volume",
]

DICOM = (".dcm", ".ima")
SUFFIXES = (*NIFTI, *ITK, *DICOM)


def is_volume(path: Path) -> bool:
    """Whether a path is read as a volume: by its name, or because it is a folder (DICOM)."""
    return suffix_of(path) in SUFFIXES or path.is_dir()


def parts_of(path: Path) -> list[Path]:
    """Every file that a path stands for, sorted."""
    try:
        if path.is_dir():
            return files_of(path)
        beside = data_file(path) if suffix_of(path) in ITK else None
        path.stat()
    except OSError as error:
        raise BadFile("file that cannot be opened", "check it", str(error.strerror)) from None
    return sorted([path] if beside is None else [path, beside])


def read_volume(path: Path, channel: int | None = None, series: str | None = None) -> Volume:
    """The volume of a file or of a DICOM series' folder.

    `channel` chooses one of the volumes of a 4-D file, `series` (a regular expression, searched
    in the SeriesDescription) one of the series of a folder.
    """
    parts_of(path)  # so that a missing data file is said in our words
    if path.is_dir() or suffix_of(path) not in (*NIFTI, *ITK):
        volume = read_dicom(path, series)
    else:
        volume = read_file(path, channel)
    _check(volume)
    return volume


def _check(volume: Volume) -> None:
    array = volume.array
    shape = " x ".join(map(str, array.shape))
    if not array.size:
        raise BadFile("empty volume", "export it again, or take it away", shape)
    if array.dtype.kind not in "iuf":
        raise BadFile("volume of complex values", "save it as magnitude", str(array.dtype))
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        count = np.count_nonzero(~np.isfinite(array))
        cure = "replace NaN and infinite values, by the background's for example"
        raise BadFile("volume with voxels that are no numbers", cure, f"{count} of {array.size}")
    if array.min() == array.max():
        detail = f"{shape}, every voxel {array.flat[0]}"
        raise BadFile("empty volume", "export it again, or take it away", detail)
    if not np.isfinite(volume.affine).all() or abs(np.linalg.det(volume.affine)) < 1e-12:
        cure = "export it with spacing and orientation"
        raise BadFile("volume whose header gives its voxels no size", cure)
