"""What an importer states of its data set, the folder it looks into, and the cases it finds."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from textwrap import indent
from typing import Any, Literal, TypeVar

from konsil.data.findings import BadFile, Findings
from konsil.data.sources import SUFFIXES
from konsil.errors import ConfigError, DataError
from konsil.prepare.walk import below, folders
from konsil.registry import Registry

JUNK = frozenset({"__macosx", "thumbs.db", "desktop.ini"})  # what unpacking leaves
SHOWN = 12  # folders of a download that is not understood
UNPAIRED = "get the data set again, or take the file away"


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


class Source:
    """A downloaded folder and its files. How deep the expected folders lie does not matter."""

    def __init__(self, root: Path, importer: Importer) -> None:
        if not root.is_dir():
            raise DataError(f"{root}: no such folder; give the folder that {importer.name} is in")
        self.root, self.importer = root, importer
        self.found = Findings()

    @cached_property
    def files(self) -> list[str]:
        """Every file below the folder, in the order of names."""
        paths = (below(folder, name) for folder, names in folders(self.root) for name in names)
        return sorted(path for path in paths if JUNK.isdisjoint(path.lower().split("/")))

    @cached_property
    def folders(self) -> dict[str, list[str]]:
        """Every folder that holds files, with their paths."""
        found: dict[str, list[str]] = {}
        for path in self.files:
            found.setdefault(path.rpartition("/")[0] or ".", []).append(path)
        return found

    def matching(self, pattern: str, of: Collection[str] | None = None) -> dict[str, re.Match[str]]:
        """Files whose path ends as the pattern says, from a folder's or file's name on."""
        regex = re.compile(rf"(?:^|.*/)(?:{pattern})$", re.IGNORECASE)
        files = self.files if of is None else of
        return {name: match for name in files if (match := regex.match(name))}

    def by_name(self, pattern: str, of: Collection[str] | None = None) -> dict[str, list[str]]:
        """Files by the pattern's groups in lower case, joined by _."""
        files: dict[str, list[str]] = {}
        for path, match in self.matching(pattern, of).items():
            files.setdefault("_".join(match.groups()).lower(), []).append(path)
        return files

    def named(self, pattern: str, of: Collection[str] | None = None) -> dict[str, str]:
        """The same where a name must not occur twice."""
        files = self.by_name(pattern, of)
        cure = "keep one of the two; was the data set unpacked twice?"
        for first, *others in files.values():
            for other in others:
                self.refuse("file that is there twice", f"{first} and {other}", cure)
        return {key: paths[0] for key, paths in files.items()}

    def pairs(
        self, explained: Iterable[str] | None = None, **kinds: str | Mapping[str, str]
    ) -> dict[str, dict[str, str]]:
        """Files that belong together by their names: name -> image, mask, ... -> path.

        A kind is a pattern for `named`, or its files, found already; the first are the images.
        `explained` are further pictures that the layout knows; given, no other may be there.
        """
        found = {k: self.named(own) if isinstance(own, str) else own for k, own in kinds.items()}
        images, *_ = found.values()
        for kind, own in found.items():
            text = kind.replace("_", " ")
            if not own:
                raise self.not_understood(f"no {text} of it was found")
            for key in sorted(images.keys() - own.keys()):
                self.refuse(f"image without a {text}", images[key])
            for key in sorted(own.keys() - images.keys()):
                self.refuse(f"{text} without an image", own[key])
        if explained is not None:
            known = {path for own in found.values() for path in own.values()}
            self.refuse_unexplained(known.union(explained))
        self.raise_if_any()
        return {key: {kind: own[key] for kind, own in found.items()} for key in images}

    def refuse(self, what: str, where: str, cure: str = UNPAIRED) -> None:
        """A mistake in the folder; all of them are raised together when the cases are found."""
        self.found.add(what, where, cure)

    def raise_if_any(self) -> None:
        """Go no further with what was refused."""
        self.found.raise_if_any(self.root)

    def refuse_unexplained(self, explained: Iterable[str]) -> None:
        """Every picture must have been explained by the layout: none is skipped in silence."""
        cure = (
            "take it away, or give the folder of this data set alone; "
            f"`konsil data import` shows the layout of {self.importer.name}"
        )
        for path in sorted(set(self.files).difference(explained)):
            if path.lower().endswith(SUFFIXES):
                self.refuse("image that the layout does not explain", path, cure)

    def not_understood(self, why: str) -> DataError:
        """An error that shows the layout expected and what was found instead."""
        there = [
            f"{folder}/: {len(paths)} file(s), such as {paths[0].rpartition('/')[2]}"
            for folder, paths in self.folders.items()
        ]
        if len(there) > SHOWN:
            there[SHOWN:] = [f"and {len(there) - SHOWN} more folders"]
        expected = indent(self.importer.layout.strip("\n"), "    ")
        found = indent("\n".join(there) or "nothing: the folder is empty", "    ")
        return DataError(
            f"{self.root}: {why}\n  {self.importer.title} is expected as\n{expected}\n"
            f"  at any depth; found\n{found}\n"
            "  -> give the folder into which the data set was unpacked"
        )


@dataclass(frozen=True)
class Written:
    """What became of a case, relative to its site's folder."""

    image: str
    label: str  # the mask's path, or the class
    counts: Mapping[str, int]  # such as images: 1, or cases: 1 and labelled slices: 20
    note: str = ""  # something a person should know of it


class LeftOut(Exception):
    """A case that the data set's owners labelled in a way nobody can use; the report names it."""


@dataclass(frozen=True)
class Case(ABC):
    """One image or volume with its label, found but not yet read."""

    source: Source
    site: str
    name: str  # of the files that are written, without suffix
    files: Mapping[str, str]  # such as image and mask -> path below the source folder
    patient: str = field(default="", kw_only=True)  # where the data say so
    part: str = field(default="", kw_only=True)  # the data's own train, val or test

    def __str__(self) -> str:
        """The image's path below the source folder, by which messages know the case."""
        return self.files["image"]

    @property
    def whose(self) -> str:
        """The patient, or the case itself where the data do not say."""
        return self.patient or self.name

    def path(self, file: str) -> Path:
        """Where one of its files is."""
        return self.source.root / self.files[file]

    @contextmanager
    def blaming(self, file: str) -> Iterator[None]:
        """What is wrong with one of the files names it, beside the image the case is known by."""
        try:
            yield
            return
        except BadFile as error:
            bad = error
        except OSError as error:
            bad = BadFile("file that cannot be read", "get it again", str(error.strerror))
        name = "" if file == "image" else self.files[file]
        raise BadFile(bad.what, bad.cure, ": ".join(filter(None, (name, bad.detail)))) from None

    @abstractmethod
    def write(self, folder: Path, options: Options) -> Written:
        """Write image and label into the site's folder; raises BadFile or LeftOut."""


@dataclass(frozen=True)
class LeftOutCase(Case):
    """A case that is left out before it is read."""

    why: str

    def write(self, folder: Path, options: Options) -> Written:
        """Nothing, for a reason."""
        raise LeftOut(self.why)


Head = Mapping[str, Any]
Find = Callable[[Source, Options], Sequence[Case]]
F = TypeVar("F", bound=Find)


@dataclass(frozen=True, kw_only=True)
class Importer:
    """A public data set: what it is, how its folder looks, and how cases are found in it."""

    name: str
    title: str
    sites: tuple[str, ...]
    layout: str  # the tree of folders, as a person sees it
    licence: str  # as the owners state it
    home: str  # where a person gets it
    head: Head | Callable[[Source, Options], Head]  # of the federation file: task, structures ...
    find: Find
    certainty: str = ""  # how sure we are of the layout, and from what
    table: str = ""  # of the paper that the counts are from
    paper: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # site -> what -> how many
    differs: Mapping[str, str] = field(default_factory=dict)  # site -> why counts may differ
    blocks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # site -> further keys
    options: tuple[str, ...] = ()  # beside overwrite, which all know

    def check(self, options: Options) -> None:
        """Refuse an option that this data set does not know."""
        allowed = ("overwrite", *self.options)
        for name, value in options.given().items():
            if name not in allowed:
                raise ConfigError(
                    f"{self.name}: {name} = {value!r} is no option of this data set; "
                    f"it knows {', '.join(allowed)}"
                )
        if options.crop is not None and not 1 <= options.crop < float("inf"):
            raise ConfigError(f"crop = {options.crop}: 1 or more times the disc's diameter")

    def describe(self) -> str:
        """What a person reads before downloading."""
        lines = [
            f"{self.name}: {self.title}",
            f"sites:   {', '.join(self.sites)}",
            f"from:    {self.home}",
            f"licence: {self.licence}",
            f"options: {', '.join(('overwrite', *self.options))}",
            "layout:",
            indent(self.layout.strip("\n"), "  "),
            *([f"  ({self.certainty})"] if self.certainty else []),
        ]
        return "\n".join(lines)


IMPORTERS: Registry[Importer] = Registry(
    "importer", "konsil.prepare.importers", group="konsil.importers"
)


def importer(name: str, **stated: Any) -> Callable[[F], F]:
    """Register a function that finds a data set's cases; `stated`: the other fields of Importer."""

    def register(find: F) -> F:
        IMPORTERS.add(name, Importer(name=name, find=find, **stated), find)
        return find

    return register
