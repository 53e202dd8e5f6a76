"""What an importer states about its data set, and what it finds in a downloaded folder."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from konsil.errors import ConfigError, DataError

if TYPE_CHECKING:
    from konsil.data.findings import Findings

Progress = Callable[[str, int, int], None]  # site, cases done, cases in all
Head = Mapping[str, Any]
JUNK = ("__macosx", "thumbs.db", "desktop.ini")  # what unpacking leaves; hidden files likewise
SHOWN = 12  # entries of a folder that is not understood


@dataclass(frozen=True)
class Options:
    """What a person may choose. `Importer.options` names those a data set knows."""

    overwrite: bool = False  # replace sites that are there already
    splits: Literal["drawn", "given"] = "drawn"  # given: the data's own, in a list
    crop: float | None = None  # a square around the disc, this many times its diameter wide
    release: str | None = None  # of a data set that was published several times
    images: int | None = None  # a random subset of this size, over all sites
    seed: int = 0  # of the subset, and of what is drawn where the data's split has gaps
    link: bool = False  # hard links instead of copies
    centres: bool = False  # a site for each centre that can be told apart

    def given(self) -> dict[str, Any]:
        """Those that differ from the default."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) != f.default}


ALWAYS = ("overwrite",)


@dataclass(frozen=True)
class Written:
    """What became of a case, relative to its site's folder."""

    image: str
    label: str  # the mask's path, or the class
    counts: Mapping[str, int]  # such as images: 1, or cases: 1 and labelled slices: 20
    note: str = ""  # something a person should know of it


class LeftOut(Exception):
    """A case that the data set's owners labelled in a way nobody can use; the report names it."""


@dataclass(frozen=True, kw_only=True)
class Case(ABC):
    """One image or volume with its label, found but not yet read."""

    site: str
    name: str  # of the files, without suffix
    patient: str = ""  # where the data say so
    part: str = ""  # the data's own train, val or test

    @property
    def whose(self) -> str:
        """The patient, or the case itself where the data do not say."""
        return self.patient or self.name

    @abstractmethod
    def write(self, folder: Path, options: Options) -> Written:
        """Write image and label into the site's folder; raises BadFile or LeftOut."""

    @property
    @abstractmethod
    def where(self) -> str:
        """The image's path below the source folder, for messages."""


@dataclass(frozen=True)
class Importer:
    """A public data set: what it is, how its folder looks, and how cases are found in it."""

    name: str
    title: str
    sites: tuple[str, ...]
    layout: str  # the tree of folders, as a person sees it
    certainty: str  # how sure we are of it, and from what
    licence: str  # as the owners state it
    home: str  # where a person gets it
    table: str  # of the paper that the counts are from
    paper: Mapping[str, Mapping[str, int]]  # site -> what is counted -> how many
    head: Head | Callable[[Source, Options], Head]  # of the federation file: task, structures ...
    find: Callable[[Source, Options], Sequence[Case]]
    differs: Mapping[str, str] = field(default_factory=dict)  # site -> why counts may differ
    blocks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # site -> further keys
    options: tuple[str, ...] = ()

    def check(self, options: Options) -> None:
        """Refuse an option that this data set does not know."""
        allowed = (*ALWAYS, *self.options)
        for name, value in options.given().items():
            if name not in allowed:
                raise ConfigError(
                    f"{self.name}: {name} = {value!r} is no option of this data set; "
                    f"it knows {', '.join(allowed)}"
                )
        if options.crop is not None and not 1 <= options.crop < float("inf"):
            raise ConfigError(f"crop = {options.crop}: 1 or more times the disc's diameter")

    def head_of(self, source: Source, options: Options) -> Head:
        """What stands at the top of the federation file; it may depend on the release."""
        return self.head(source, options) if callable(self.head) else self.head

    def describe(self) -> str:
        """What a person reads before downloading."""
        lines = [
            f"{self.name}: {self.title}",
            f"sites:   {', '.join(self.sites)}",
            f"from:    {self.home}",
            f"licence: {self.licence}",
            f"options: {', '.join((*ALWAYS, *self.options))}",
            "layout:",
            *(f"  {line}" for line in self.layout.strip("\n").splitlines()),
            f"  ({self.certainty})",
        ]
        return "\n".join(lines)


# --- the folder a person downloaded ---------------------------------------------------------------


class Source:
    """A downloaded folder and its files. How deep the expected folders lie does not matter."""

    def __init__(self, root: Path, importer: Importer) -> None:
        if not root.is_dir():
            raise DataError(f"{root}: no such folder; give the folder that {importer.name} is in")
        self.root = root
        self._importer = importer

    @cached_property
    def files(self) -> list[str]:
        """Every file below the folder, in the order of names."""
        return sorted(_walk(self.root, "", frozenset()))

    def matching(self, pattern: str, of: Sequence[str] | None = None) -> dict[str, re.Match[str]]:
        """Files whose path ends as the pattern says, from a folder's or file's name on."""
        regex = re.compile(rf"(?:^|.*/)(?:{pattern})$", re.IGNORECASE)
        files = self.files if of is None else of
        return {name: match for name in files if (match := regex.match(name))}

    def named(
        self, pattern: str, found: Findings, of: Sequence[str] | None = None
    ) -> dict[str, str]:
        """Files by the pattern's first group in lower case; a name must not occur twice."""
        files: dict[str, str] = {}
        for path, match in self.matching(pattern, of).items():
            first = files.setdefault(match.group(1).lower(), path)
            if first != path:
                cure = "keep one of the two; was the data set unpacked twice?"
                found.add("file that is there twice", f"{first} and {path}", cure)
        return files

    def refuse_unexplained(self, explained: Sequence[str], found: Findings) -> None:
        """Every image must have been explained by the layout: none is skipped in silence."""
        from konsil.data.sources import SUFFIXES

        rest = set(self.files).difference(explained)
        for name in sorted(rest):
            if name.lower().endswith(SUFFIXES):
                found.add(
                    "image that the layout does not explain",
                    name,
                    "take it away, or give the folder of this data set alone; "
                    f"`konsil data import` shows the layout of {self._importer.name}",
                )

    def not_understood(self, why: str) -> DataError:
        """An error that shows the layout expected and what was found instead."""
        layout = "\n".join(f"    {line}" for line in self._importer.layout.strip("\n").splitlines())
        return DataError(
            f"{self.root}: {why}\n  {self._importer.title} is expected as\n{layout}\n"
            f"  at any depth; found\n{self._contents()}\n"
            "  -> give the folder into which the data set was unpacked"
        )

    def _contents(self) -> str:
        folders: dict[str, list[str]] = {}
        for name in self.files:
            folder, _, file = name.rpartition("/")
            folders.setdefault(folder or ".", []).append(file)
        lines = [
            f"    {folder}/: {len(files)} file(s), such as {files[0]}"
            for folder, files in list(folders.items())[:SHOWN]
        ]
        if len(folders) > SHOWN:
            lines.append(f"    and {len(folders) - SHOWN} more folders")
        return "\n".join(lines) or "    nothing: the folder is empty"


def refuse_unpaired(
    images: Mapping[str, str], labels: Mapping[str, str], found: Findings, label: str = "mask"
) -> None:
    """Every image needs its label, and every label its image."""
    cure = "get the data set again, or take the file away"
    for key in sorted(images.keys() - labels.keys()):
        found.add(f"image without a {label}", images[key], cure)
    for key in sorted(labels.keys() - images.keys()):
        found.add(f"{label} without an image", labels[key], cure)


def _walk(root: Path, folder: str, above: frozenset[str]) -> Iterator[str]:
    """Files below a folder; links to folders are followed, but never in a circle."""
    real = os.path.realpath(root / folder)
    if real in above:
        return
    try:
        entries = list(os.scandir(root / folder))
    except OSError as error:
        raise DataError(f"{root / folder}: cannot be listed ({error.strerror})") from None
    for entry in entries:
        if entry.name.startswith(".") or entry.name.lower() in JUNK:
            continue
        path = f"{folder}/{entry.name}" if folder else entry.name
        if entry.is_dir():
            yield from _walk(root, path, above | {real})
        else:
            yield path


# --- what came of it ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One count, beside the paper's."""

    site: str
    what: str
    made: int
    paper: int | None


@dataclass(frozen=True)
class ImportReport:
    """What an import made, against the paper's counts."""

    name: str
    table: str
    dest: Path
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The same for machines."""
        return {**asdict(self), "dest": str(self.dest)}

    def text(self) -> str:
        """A table and the notes below it."""
        cells = [("site", "what", "made", "paper")]
        cells += [
            (r.site, r.what, f"{r.made:,}", "-" if r.paper is None else f"{r.paper:,}")
            for r in self.rows
        ]
        widths = [max(len(row[i]) for row in cells) for i in range(4)]
        lines = [
            f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}".rstrip()
            for a, b, c, d in cells
        ]
        return "\n".join([*lines, f"paper: {self.table}", *(f"- {note}" for note in self.notes)])
