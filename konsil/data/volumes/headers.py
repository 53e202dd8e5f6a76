"""The headers of DICOM files, by pydicom: which files are a series, and where its slices lie.

Only `TAGS` are read: no name of a patient can get into a message or a warning.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from konsil.data.findings import BadFile
from konsil.data.volumes.formats import LPS_TO_RAS, naming, unreadable
from konsil.data.volumes.grid import Affine

if TYPE_CHECKING:
    from pydicom import Dataset

TAGS = [
    "SOPClassUID",
    "SeriesInstanceUID",
    "SeriesDescription",
    "InstanceNumber",
    "Rows",
    "Columns",
    "NumberOfFrames",
    "PixelSpacing",
    "ImagerPixelSpacing",
    "ImagePositionPatient",
    "ImageOrientationPatient",
    "SpacingBetweenSlices",
    "SliceThickness",
    "SharedFunctionalGroupsSequence",
    "PerFrameFunctionalGroupsSequence",
]
SEGMENTATIONS = (
    "1.2.840.10008.5.1.4.1.1.66.4",  # Segmentation Storage
    "1.2.840.10008.5.1.4.1.1.66.7",  # Label Map Segmentation Storage
)


@dataclass(frozen=True, eq=False)
class Header:
    """A DICOM file and what its header says (`TAGS`)."""

    path: Path
    dataset: Dataset

    @property
    def is_segmentation(self) -> bool:
        """Whether the file is a DICOM SEG object."""
        return self.dataset.get("SOPClassUID", "") in SEGMENTATIONS

    @property
    def series(self) -> str:
        """The UID of its series."""
        return str(self.dataset.get("SeriesInstanceUID", ""))


@dataclass(frozen=True, eq=False)
class Slice:
    """One frame of one file, and where it lies."""

    path: Path
    frame: int  # of the file, from 0
    name: str  # for messages
    number: int | None  # InstanceNumber
    size: tuple[int, int]  # columns, rows
    spacing: tuple[float, float]  # millimetres from row to row, from column to column
    gap: float  # to the next slice, as the header says
    orientation: NDArray[np.float64] | None  # [2, 3]: along a row, along a column, in LPS
    position: NDArray[np.float64] | None  # of the first pixel, in LPS

    @property
    def affine(self) -> Affine:
        """Pixel indices [column, row, 0] to RAS+ millimetres; as stored if it does not say."""
        along = np.eye(3)[:2] if self.orientation is None else self.orientation
        affine = np.eye(4)
        affine[:3, 0] = along[0] * self.spacing[1]
        affine[:3, 1] = along[1] * self.spacing[0]
        affine[:3, 2] = np.cross(*along) * self.gap
        affine[:3, 3] = 0 if self.position is None else self.position
        return LPS_TO_RAS @ affine


# --- headers ------------------------------------------------------------------------------------


def files_of(folder: Path) -> list[Path]:
    """The files of a series' folder: neither hidden ones, nor the index, nor folders in it."""
    visible = (p for p in folder.iterdir() if p.name[0] != "." and p.name.upper() != "DICOMDIR")
    return sorted(path for path in visible if not path.is_dir())


def read_headers(path: Path) -> list[Header]:
    """The header of a file, or of every file of a folder."""
    files = files_of(path) if path.is_dir() else [path]
    if not files:
        raise BadFile("folder without a DICOM file", "put the series into it, or take it away")
    return [Header(file, _read_header(file, path)) for file in files]


def image_headers(path: Path, series: str | None) -> list[Header]:
    """The headers of the one series of images that a path stands for."""
    headers = read_headers(path)
    if path.is_dir():
        headers = _one_series(headers, series)
    for header in headers:
        if header.is_segmentation or not header.dataset.get("Rows"):
            raise _no_image(header.path)
    return headers


def image_slices(path: Path, series: str | None = None) -> list[Slice]:
    """Every slice of the one series that a path stands for, as the files lie."""
    return [one for header in image_headers(path, series) for one in slices_of(header)]


def slices_of(header: Header) -> list[Slice]:
    """Every frame of a file, with its place."""
    with naming(header.path):
        try:
            return list(_slices(header))
        except (ValueError, TypeError, AttributeError, OverflowError):  # numbers that are none
            raise unreadable(header.path, "DICOM") from None


def _read_header(file: Path, asked: Path) -> Dataset:
    from pydicom import dcmread
    from pydicom.errors import InvalidDicomError

    try:
        return dcmread(file, stop_before_pixels=True, specific_tags=TAGS)
    except InvalidDicomError:
        if file == asked:
            raise unreadable(file, "DICOM") from None
        raise _no_image(file) from None
    except Exception:  # pydicom raises whatever it stumbles over in a damaged file
        with naming(file):
            raise unreadable(file, "DICOM") from None


def _no_image(file: Path) -> BadFile:
    cure = "take it away, or hide it behind a name that begins with a dot"
    return BadFile("file that is no DICOM image", cure, file.name)


def _one_series(headers: list[Header], pattern: str | None) -> list[Header]:
    for header in headers:
        if not header.series:  # every image has one: the file is cut off in its header
            raise _no_image(header.path)
    chosen = [h for h in headers if pattern is None or re.search(pattern, _description(h))]
    if not chosen:
        cure = "mend `series` in federation.yaml"
        raise BadFile("no DICOM series that matches `series`", cure, _listed(headers))
    if len({header.series for header in chosen}) > 1:
        cure = (
            "choose one by `series: REGEX` in federation.yaml, which is searched in the "
            "SeriesDescription, or move the others away"
        )
        raise BadFile("several DICOM series in one folder", cure, _listed(chosen))
    return chosen


def _description(header: Header) -> str:
    return str(header.dataset.get("SeriesDescription") or "")


def _listed(headers: Sequence[Header]) -> str:
    count = Counter((header.series, _description(header)) for header in headers)
    return "; ".join(
        f"{description or 'no description'}: {files} file{'s' if files > 1 else ''}"
        for (_, description), files in count.items()
    )


# --- slices -------------------------------------------------------------------------------------


def _slices(header: Header) -> Iterator[Slice]:
    data = header.dataset
    count = int(data.get("NumberOfFrames") or 1)
    frames = list(data.get("PerFrameFunctionalGroupsSequence") or [])
    if len({_scale(data, frame) for frame in frames}) > 1:
        cure = "export the series as one file a slice"
        raise BadFile("frames with different rescale slopes", cure)
    for number in range(count):
        frame = frames[number] if number < len(frames) else None
        yield _slice(header, number, count, frame)


def _slice(header: Header, number: int, count: int, frame: Dataset | None) -> Slice:
    data = header.dataset
    orientation = _numbers(data, frame, "PlaneOrientationSequence", "ImageOrientationPatient")
    position = _numbers(data, frame, "PlanePositionSequence", "ImagePositionPatient")
    spacing = _numbers(data, frame, "PixelMeasuresSequence", "PixelSpacing")
    if spacing is None:
        spacing = _numbers(data, None, "", "ImagerPixelSpacing")
    gap = _gap(data, frame)
    if orientation is None or position is None:
        orientation = position = None
    elif frame is None and count > 1:  # only the first frame's place is stated
        position = position + number * gap * np.cross(*orientation.reshape(2, 3))
    instance = data.get("InstanceNumber")
    return Slice(
        path=header.path,
        frame=number,
        name=header.path.name + (f" frame {number + 1}" if count > 1 else ""),
        number=None if instance is None else int(instance),
        size=(int(data.Columns), int(data.Rows)),
        spacing=(1.0, 1.0) if spacing is None else (float(spacing[0]), float(spacing[1])),
        gap=gap,
        orientation=None if orientation is None else orientation.reshape(2, 3),
        position=position,
    )


def _numbers(
    data: Dataset, frame: Dataset | None, sequence: str, attribute: str
) -> NDArray[np.float64] | None:
    value = _attribute(data, frame, sequence, attribute)
    return None if value is None else np.array(value, dtype=np.float64)


def _gap(data: Dataset, frame: Dataset | None) -> float:
    for attribute in ("SpacingBetweenSlices", "SliceThickness"):
        value = _attribute(data, frame, "PixelMeasuresSequence", attribute)
        if value:
            return abs(float(value))
    return 1.0


def _scale(data: Dataset, frame: Dataset) -> tuple[Any, Any]:
    sequence = "PixelValueTransformationSequence"
    names = ("RescaleSlope", "RescaleIntercept")
    slope, intercept = (_attribute(data, frame, sequence, name) for name in names)
    return slope, intercept


def _attribute(data: Dataset, frame: Dataset | None, sequence: str, attribute: str) -> Any:
    """A frame's own value, else that of all frames, else the file's."""
    shared = data.get("SharedFunctionalGroupsSequence") or [None]
    for groups in (frame, shared[0]):
        items = groups.get(sequence) if groups is not None else None
        if items and items[0].get(attribute) not in (None, ""):
            return items[0].get(attribute)
    value = data.get(attribute)
    return None if value in (None, "") else value
