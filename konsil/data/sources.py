"""An image with its label as it is listed, and what the names of files and sites say."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from konsil.data.findings import Findings
from konsil.errors import DataError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
SPLITS = ("train", "val", "test")
# rows of results.csv, the pooled images and a model of the super model: none of them is a site
RESERVED_SITES = ("client_average", "global", "all-sites", "selector", "novelty")
READABLE = "PNG, JPEG, BMP or TIFF"
VOLUME_SUFFIXES = (".nii.gz", ".nii", ".mhd", ".mha", ".nrrd", ".nhdr", ".dcm", ".ima")


@dataclass(frozen=True)
class Item:
    """One image with its label, as listed. Paths are relative to the federation's folder."""

    site: str
    image: str
    label: str  # the mask's path, or the class; "" where every structure has a mask of its own
    patient: str
    split: str = ""  # "" until it is drawn
    masks: tuple[tuple[str, str], ...] = ()  # one file a structure: (structure, path)
    plane: int | None = None  # of a volume: which slice

    @property
    def name(self) -> str:
        """The image in messages: its file, and the slice of a volume."""
        return self.image if self.plane is None else f"{self.image} (slice {self.plane})"


@dataclass(frozen=True)
class Row:
    """One row of a list: a line of a CSV, an entry of a datalist, an image of a plain folder."""

    where: str
    cells: Mapping[str, Any]  # texts; the label of a datalist may be a block, or None
    alone: str = ""  # the patient, if nothing else is said; default: the image without its suffix


def visible(folder: Path) -> list[os.DirEntry[str]]:
    """What lies in a folder, in the order of names; hidden things are left alone."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be listed ({error.strerror}); its images would be left out unseen: "
            "check its permissions"
        ) from None
    return [entry for entry in entries if not entry.name.startswith(".")]


def leaves_folder(path: str) -> bool:
    """Whether a path leads out of the folder that it should be relative to."""
    normal = os.path.normpath(path)
    return os.path.isabs(normal) or normal.split(os.sep)[0] == os.pardir


def without_suffix(path: str) -> str:
    """A path without the suffix of its format; .nii.gz is one suffix."""
    for suffix in (*SUFFIXES, *VOLUME_SUFFIXES):
        if path.lower().endswith(suffix):
            return path[: -len(suffix)]
    return path


def choose_sites(available: Iterable[str], wanted: Sequence[str] | None, source: Path) -> list[str]:
    """The roster: the wanted sites in their order, or all in the order of their names."""
    known = sorted(available)
    if wanted is None:
        return known
    unknown = [site for site in wanted if site not in known]
    if unknown:
        raise DataError(
            f"{source}: federation.sites names {', '.join(unknown)}, which is not there; "
            f"found: {', '.join(known) or 'no site'}"
        )
    if not wanted or len(set(wanted)) < len(wanted):
        raise DataError(f"federation.sites = {list(wanted)}: name at least one site, each once")
    return list(wanted)


def check_names(sites: Sequence[str], found: Findings) -> None:
    """A site's name becomes a folder and a row of the results."""
    for site in sites:
        if site in RESERVED_SITES:
            found.add("site with a reserved name", site, "Konsil uses it for itself: rename it")
        if site.startswith(".") or re.search(r"[/\\\x00-\x1f]", site):
            cure = "a site's name becomes a folder: no slash, no leading dot"
            found.add("site whose name cannot be used", repr(site), cure)
