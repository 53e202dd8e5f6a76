"""What is to be asked about: pictures, volumes and DICOM series, as files or in folders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from konsil.data.image_file import is_picture
from konsil.data.readers import what_it_is
from konsil.data.sources import VOLUME_SUFFIXES
from konsil.data.volumes import DICOM
from konsil.errors import DataError
from konsil.prepare.walk import below, folders

MARK_BYTES = 512  # of a file without a suffix: enough to see whether it is DICOM


@dataclass(frozen=True)
class Input:
    """One picture, volume or DICOM series, and what it is called among the others."""

    path: Path
    name: str  # relative, with slashes; unique among the inputs of a call


def find_inputs(given: Sequence[Path]) -> list[Input]:
    """Everything that was given, folders opened up; DataError if there is nothing to ask about."""
    inputs = [one for path in given for one in _inputs(path, alone=len(given) == 1)]
    names: dict[str, Path] = {}
    for one in inputs:
        other = names.setdefault(one.name, one.path)
        if other != one.path:
            raise DataError(
                f"{other} and {one.path}: their answers would have the same name, {one.name}; "
                "ask about them in two calls with folders of their own"
            )
    return list(dict.fromkeys(inputs))


def _inputs(path: Path, alone: bool) -> Iterator[Input]:
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    if not path.is_dir():
        yield Input(path, path.name)
        return
    found = list(_in_folder(path))
    if not found:
        known = "pictures (PNG, JPEG, BMP, TIFF), volumes (NIfTI, MetaImage, NRRD) or DICOM"
        raise DataError(f"{path}: no {known} in this folder")
    if found == [""]:  # the folder itself is a series
        yield Input(path, path.resolve().name)
        return
    first = "" if alone else path.resolve().name
    for name in found:
        yield Input(path / name, below(first, name) if name else first or path.resolve().name)


def _in_folder(root: Path) -> Iterator[str]:
    """Relative paths of what is there; a folder of DICOM files is one thing, "" the root's."""
    for folder, files in folders(root):
        dicom = [name for name in files if is_dicom(root / folder / name)]
        if len(dicom) > 1:
            yield folder
        alone = dicom if len(dicom) == 1 else []
        for name in files:
            if name in alone or (name not in dicom and is_image(name)):
                yield below(folder, name)


def is_dicom(path: Path) -> bool:
    """Whether a file is DICOM: by its suffix, or by its content if it has none."""
    if path.name.upper() == "DICOMDIR":
        return False
    if path.suffix.lower() in DICOM:
        return True
    if path.suffix and not path.suffix[1:].isdigit():  # the last number of a UID is no suffix
        return False
    try:
        with open(path, "rb") as file:
            return what_it_is(file.read(MARK_BYTES)) == "DICOM"
    except OSError:
        return False


def is_image(name: str) -> bool:
    """Whether a file is a picture or a volume by its name."""
    return is_picture(name) or name.lower().endswith(VOLUME_SUFFIXES)
