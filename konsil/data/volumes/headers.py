"""The headers of DICOM files, by pydicom: which files are a series, and where its slices lie.

Only `TAGS` are read: no name of a patient can get into a message or a warning.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
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
    "SOPClassUID", "SeriesInstanceUID", "SeriesDescription", "InstanceNumber", "Rows", "Columns",
    "NumberOfFrames", "PixelSpacing", "ImagerPixelSpacing", "SpacingBetweenSlices",
    "SliceThickness", "ImagePositionPatient", "ImageOrientationPatient",
    "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence",
    "SegmentationType", "MaximumFractionalValue", "ReferencedSeriesSequence",
]  # fmt: skip
# Of the functional groups, of all frames or of each, those with something of ours.
GROUPS = [
    "PixelMeasuresSequence", "PlanePositionSequence", "PlaneOrientationSequence",
    "PixelValueTransformationSequence", "SegmentIdentificationSequence",
]  # fmt: skip
SEGMENTATIONS = (
    "1.2.840.10008.5.1.4.1.1.66.4",  # Segmentation Storage
    "1.2.840.10008.5.1.4.1.1.66.7",  # Label Map Segmentation Storage
)
AS_STORED = np.diag([1.0, 1.0, 0.0])  # the place of a slice that does not say where it lies


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

    @property
    def description(self) -> str:
        """What people call its series."""
        return str(self.dataset.get("SeriesDescription") or "")


@dataclass(frozen=True, eq=False)
class Slice:
    """One frame of one file, and where it lies."""

    path: Path
    frame: int  # of the file, from 0
    name: str  # for messages
    number: int | None  # InstanceNumber
    segment: int | None  # of a DICOM SEG
    size: tuple[int, int]  # columns, rows
    spacing: tuple[float, float]  # millimetres from row to row, from column to column
    gap: float  # to the next slice, as the header says
    place: NDArray[np.float64] | None  # LPS: along a row, along a column, of the first pixel

    @property
    def affine(self) -> Affine:
        """Pixel indices [column, row, 0] to RAS+ millimetres; as stored if it does not say."""
        along, down, first = AS_STORED if self.place is None else self.place
        columns = along * self.spacing[1], down * self.spacing[0], np.cross(along, down) * self.gap
        affine = np.eye(4)
        affine[:3] = np.stack([*columns, first], axis=1)
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


def _read_header(file: Path, asked: Path) -> Dataset:
    from pydicom import dcmread
    from pydicom.errors import InvalidDicomError

    try:
        return dcmread(file, stop_before_pixels=True, specific_tags=TAGS)
    except InvalidDicomError:
        raise (unreadable(file, "DICOM") if file == asked else _no_image(file)) from None
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
    chosen = [h for h in headers if pattern is None or re.search(pattern, h.description)]
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


def _listed(headers: Sequence[Header]) -> str:
    count = Counter((header.series, header.description) for header in headers)
    return "; ".join(
        f"{description or 'no description'}: {files} file{'s' if files > 1 else ''}"
        for (_, description), files in count.items()
    )


# --- slices -------------------------------------------------------------------------------------


def slices_of(header: Header) -> list[Slice]:
    """Every frame of a file, with its place."""
    with naming(header.path):
        try:
            return list(_slices(header))
        # Numbers that are none, or of a kind that is none.
        except (ValueError, TypeError, AttributeError, OverflowError, NotImplementedError):
            raise unreadable(header.path, "DICOM") from None


def _slices(header: Header) -> Iterator[Slice]:
    data = header.dataset
    count = int(data.get("NumberOfFrames") or 1)
    frames = list(data.get("PerFrameFunctionalGroupsSequence") or [])
    finders = [_finder(data, frame) for frame in frames]
    if len({(find("RescaleSlope"), find("RescaleIntercept")) for find in finders}) > 1:
        cure = "export the series as one file a slice"
        raise BadFile("frames with different rescale slopes", cure)
    for number, find in zip_longest(range(count), finders[:count]):
        # Without a group of its own a frame lies as far behind the file's place as its number says.
        yield _slice(header, number, count, find or _finder(data), behind=0 if find else number)


def _slice(
    header: Header, number: int, count: int, find: Callable[[str], Any], behind: int
) -> Slice:
    spacing = find("PixelSpacing") or find("ImagerPixelSpacing") or (1.0, 1.0)
    gaps = (find(name) for name in ("SpacingBetweenSlices", "SliceThickness"))
    gap = next((abs(float(gap)) for gap in gaps if gap), 1.0)
    axes, first = find("ImageOrientationPatient"), find("ImagePositionPatient")
    place = None
    if axes is not None and first is not None:
        place = np.array([*np.reshape(axes, (2, 3)), first], dtype=np.float64)
        place[2] += behind * gap * np.cross(*place[:2])
    instance, segment = find("InstanceNumber"), find("ReferencedSegmentNumber")
    return Slice(
        path=header.path,
        frame=number,
        name=header.path.name + (f" frame {number + 1}" if count > 1 else ""),
        number=None if instance is None else int(instance),
        segment=None if segment is None else int(segment),
        size=(int(header.dataset.Columns), int(header.dataset.Rows)),
        spacing=(float(spacing[0]), float(spacing[1])),
        gap=gap,
        place=place,
    )


def _finder(data: Dataset, frame: Dataset | None = None) -> Callable[[str], Any]:
    """Looks for a value: a frame's own, else that of all frames, else the file's."""
    shared = data.get("SharedFunctionalGroupsSequence") or [None]
    groups = [group for group in (frame, shared[0]) if group is not None]
    items = [(group.get(name) or [None])[0] for group in groups for name in GROUPS]
    places = [*(item for item in items if item is not None), data]

    def find(attribute: str) -> Any:
        values = (place.get(attribute) for place in places)
        return next((value for value in values if value not in (None, "")), None)

    return find
