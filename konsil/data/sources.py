"""An image with its label as it is listed, and what the names of files and sites say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from konsil.data.findings import Findings
from konsil.errors import ConfigError, DataError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
SPLITS = ("train", "val", "test")
# rows of results.csv, the pooled images and a model of the super model: none of them is a site
RESERVED_SITES = ("client_average", "global", "all-sites", "selector")
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
    cells: Mapping[str, str]
    split: str = ""
    labels: Mapping[str, str] | None = None  # a datalist with several labels, or {} for none
    alone: str = ""  # the patient, if nothing else is said; default: the image without its suffix


class Patients:
    """Patient ids from file names: group 1 of a pattern, or every image its own patient.

    The pattern is searched in the name without its suffix, or in the path if it has a slash.
    """

    def __init__(self, pattern: str | None, key: str = "federation.patient_pattern") -> None:
        self._key = key
        try:
            self._pattern = None if pattern is None else re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"{key} = {pattern!r}: not a regular expression ({error})") from None
        if self._pattern is not None and self._pattern.groups < 1:
            raise ConfigError(
                f"{key} = {pattern!r}: put the patient's part of the name into brackets, "
                r"such as ^(.+)_\d+$"
            )

    @property
    def known(self) -> bool:
        """Whether ids are read from names, so that equal ids mean something."""
        return self._pattern is not None

    def of(self, image: str, alone: str, found: Findings) -> str:
        """The patient of an image; `alone` names it when every image is its own patient."""
        if self._pattern is None:
            return alone
        path = without_suffix(image)
        whole = "/" in self._pattern.pattern
        match = self._pattern.search(path if whole else PurePosixPath(path).name)
        if match is None or not match.group(1):
            found.add(
                f"file name that {self._key} does not match",
                image,
                f"rename the file or change the pattern {self._pattern.pattern!r}",
            )
            return alone
        return match.group(1)


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
