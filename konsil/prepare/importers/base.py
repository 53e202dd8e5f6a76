"""What an importer states about its data set, and what came of an import."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from konsil.errors import ConfigError
from konsil.prepare.importers.source import Source
from konsil.registry import Registry

Progress = Callable[[str, int, int], None]  # site, cases done, cases in all
Head = Mapping[str, Any]


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


@dataclass(frozen=True)
class Case(ABC):
    """One image or volume with its label, found but not yet read."""

    source: Source
    site: str
    name: str  # of the files that are written, without suffix
    files: Mapping[str, str]  # such as image and mask -> path below the source folder
    patient: str = field(default="", kw_only=True)  # where the data say so
    part: str = field(default="", kw_only=True)  # the data's own train, val or test

    @property
    def whose(self) -> str:
        """The patient, or the case itself where the data do not say."""
        return self.patient or self.name

    @property
    def image(self) -> str:
        """The image's path below the source folder, by which messages know the case."""
        return self.files["image"]

    def path(self, file: str) -> Path:
        """Where one of its files is."""
        return self.source.root / self.files[file]

    @abstractmethod
    def write(self, folder: Path, options: Options) -> Written:
        """Write image and label into the site's folder; raises BadFile or LeftOut."""


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

    def source(self, folder: Path) -> Source:
        """A downloaded folder that should hold this data set."""
        return Source(folder, self.name, self.title, self.layout)

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
        a, b, c, d = (max(map(len, column)) for column in zip(*cells, strict=True))
        lines = [f"{w:<{a}}  {x:<{b}}  {y:>{c}}  {z:>{d}}".rstrip() for w, x, y, z in cells]
        paper = [f"paper: {self.table}"] if self.table else []
        return "\n".join([*lines, *paper, *(f"- {note}" for note in self.notes)])
