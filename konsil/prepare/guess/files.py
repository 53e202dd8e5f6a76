"""What lies in a folder: pictures, volumes, DICOM series, tables. Only headers are read."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from konsil.data.findings import BadFile
from konsil.data.image_file import is_picture
from konsil.data.readers import what_it_is
from konsil.data.sources import SUFFIXES, VOLUME_SUFFIXES, without_suffix
from konsil.errors import DataError
from konsil.prepare.guess.rules import role_of, says
from konsil.prepare.walk import below, folders

if TYPE_CHECKING:
    from konsil.data.volumes.headers import Header

DICOM = (".dcm", ".ima")
# the voxels that belong to .mhd and .nhdr, and what nobody takes for data
NO_DATA = (".raw", ".zraw", ".raw.gz", ".yaml", ".yml", ".md", ".txt")


@dataclass(frozen=True)
class Unit:
    """A picture, a volume, or the folder of a DICOM series."""

    path: str  # relative to the federation's folder
    kind: Literal["picture", "volume", "series"]
    segmentation: bool = False  # a DICOM SEG
    descriptions: tuple[str, ...] = ()  # of a folder's images, if it holds several series

    @cached_property
    def dirs(self) -> tuple[str, ...]:
        """The folders it lies in."""
        return tuple(self.path.split("/")[:-1])

    @cached_property
    def neutral(self) -> tuple[int, ...]:
        """The depths of those folders whose names mean nothing by themselves."""
        return tuple(depth for depth, name in enumerate(self.dirs) if not role_of(name, depth))

    @cached_property
    def stem(self) -> str:
        """Its name without suffix."""
        name = self.path.rpartition("/")[2]
        return name if self.kind == "series" else without_suffix(name)

    @property
    def suffix(self) -> str:
        """The suffix as it is written."""
        return self.path.rpartition("/")[2][len(self.stem) :]


@dataclass
class Contents:
    """Everything that was found."""

    units: list[Unit] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)  # CSV
    datalists: list[str] = field(default_factory=list)  # JSON
    left_out: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # why -> what


def look_around(root: Path) -> Contents:
    """Everything below a folder, in the order of names."""
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; give the folder that holds the sites' images")
    contents = Contents()
    for folder, names in folders(root):
        dicom = {name for name in names if _is_dicom(root / folder / name)}
        contents.units += _dicom_units(root, folder, dicom)
        for name in names:
            if name not in dicom:
                _take(root, below(folder, name), contents)
    return contents


def _take(root: Path, path: str, contents: Contents) -> None:
    name = path.lower()
    if not (root / path).exists():
        contents.left_out["links that lead nowhere"].append(path)
    elif name.endswith((*SUFFIXES, *VOLUME_SUFFIXES)):
        contents.units.append(Unit(path, "picture" if is_picture(path) else "volume"))
    elif name.endswith(".csv"):
        contents.tables.append(path)
    elif name.endswith(".json"):
        contents.datalists.append(path)
    elif not name.endswith(NO_DATA):
        suffix = os.path.splitext(name)[1] or "no suffix"
        contents.left_out[f"files that are not read ({suffix})"].append(path)


# --- DICOM --------------------------------------------------------------------------------------


def _is_dicom(path: Path) -> bool:
    """By its suffix, or, without one (archives name files by number or UID), by its content."""
    if path.name.lower().endswith(DICOM):
        return True
    if re.search(r"\.\D[^.]*$", path.name) or path.name.upper() == "DICOMDIR":
        return False
    try:
        with path.open("rb") as file:
            return what_it_is(file.read(132)) == "DICOM"
    except OSError:
        return False


def _dicom_units(root: Path, folder: str, names: set[str]) -> Iterator[Unit]:
    """A folder that is a series, or files that are each a volume of their own."""
    ordered = sorted(names)
    some = {*ordered[:1], *ordered[len(ordered) // 2 :][:1], *ordered[-1:]}
    headers = _headers(root / folder, some | {name for name in names if says("mask", name)})
    if len({header.series for header in headers}) > 1:
        headers = _headers(root / folder, names)
    images = [header for header in headers if not header.is_segmentation]
    alone = [header for header in headers if header.is_segmentation]
    series = {header.series for header in images}
    if not folder or (1 < len(images) == len(series) == len(names) - len(alone)):
        alone += images  # files of their own
    elif images:
        found = {str(header.dataset.get("SeriesDescription") or "") for header in images}
        several = len(series) > 1 or alone  # then one of them must be chosen
        yield Unit(folder, "series", descriptions=tuple(sorted(found)) if several else ())
    elif len(alone) == 1 == len(names):
        yield Unit(folder, "series", segmentation=True)
        return
    for header in alone:
        yield Unit(below(folder, header.path.name), "volume", header.is_segmentation)


def _headers(folder: Path, names: set[str]) -> list[Header]:
    from konsil.data.volumes.headers import read_headers

    headers = []
    for name in sorted(names):
        with suppress(BadFile):  # `konsil data check` says what is wrong with it
            headers += read_headers(folder / name)
    return headers
