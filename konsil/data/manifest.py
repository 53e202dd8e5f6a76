"""The federation file: where each site's images and labels are, and what they mean.

One YAML beside the data. What is written at the top holds for every site; a site may say
otherwise. Paths are relative to the file's folder and never leave it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from konsil.config import Block, checked, parse_yaml
from konsil.data.findings import Findings
from konsil.data.readers import Codes, Percentiles
from konsil.data.recipe import UNNAMED, Reading
from konsil.data.sources import Row
from konsil.data.volumes import View
from konsil.errors import ConfigError, DataError

NAME = "federation.yaml"


def refuse_switches(given: Any) -> Any:
    """YAML reads yes, no, on and off as booleans: here they are words."""
    if isinstance(given, bool):
        word = "yes (or on, true)" if given else "no (or off, false)"
        raise ValueError(f"YAML takes the word {word} for a switch: put it into quotes")
    inner = [*given, *given.values()] if isinstance(given, dict) else given
    for one in inner if isinstance(inner, list) else []:
        refuse_switches(one)
    return given


WORDS = BeforeValidator(refuse_switches)
Code = int | str  # a mask's value, or a colour such as "#ff0000"
Names = Annotated[dict[str, list[Code]] | list[str] | None, WORDS]  # each with its codes, or alone


class Slices(Block):
    """How a volume becomes 2-D images."""

    view: View = "axial"
    which: Literal["all", "labelled"] = "labelled"
    every: int = Field(1, ge=1)  # of those, every n-th


class PercentileWindow(Block):
    """Intensities from the darker to the brighter percentile of an image or volume."""

    percentiles: tuple[float, float]


class Shared(Block):
    """What holds for all sites, or for one."""

    patient: str | None = None
    structures: Names = None
    classes: Names = None
    background: Annotated[Code, WORDS] = 0
    window: tuple[float, float] | PercentileWindow | Literal["full"] | None = None
    slices: Slices = Slices()
    channel: int | None = Field(None, ge=0)
    series: str | None = None
    geometry: Literal["check", "ignore"] = "check"

    @field_validator("structures", "classes")
    @classmethod
    def _named_once(cls, names: Any, info: ValidationInfo) -> Any:
        if names is not None and (not names or len(set(names)) < len(names)):
            raise ValueError("at least one name, each once")
        labels = names.values() if isinstance(names, dict) and info.field_name == "classes" else ()
        codes = [plain_label(label) for own in labels for label in own]
        twice = sorted({code for code in codes if codes.count(code) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)}: a label belongs to one class")
        return names

    @field_validator("series")
    @classmethod
    def _is_expression(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"not a regular expression ({error})") from None
        return pattern

    @field_validator("window")
    @classmethod
    def _rising(cls, window: Any) -> Any:
        if isinstance(window, tuple) and not window[0] < window[1]:
            raise ValueError("darkest and brightest intensity, the smaller first")
        if isinstance(window, PercentileWindow):
            low, high = window.percentiles
            if not 0 <= low < high <= 100:
                raise ValueError("percentiles: two numbers from 0 to 100, the smaller first")
        return window

    @property
    def codes(self) -> dict[str, list[Code]]:
        """The mask values of each structure, where they are written down."""
        return self.structures if isinstance(self.structures, dict) else {}


class Listed(Block):
    """A CSV or MONAI datalist, and what its columns (or keys) mean."""

    file: str
    where: Annotated[dict[str, str | int | float], WORDS] = Field({})  # only rows with these values
    image: str = "image"  # a column, or a template with {column}s
    label: str = "label"
    patient: str | None = None
    split: str | None = None


class SiteBlock(Shared):
    """One site: patterns for its files, or a list of them."""

    images: str | None = None
    labels: str | dict[str, str] | None = None
    list: Listed | None = None

    @field_validator("list", mode="before")
    @classmethod
    def _only_a_file(cls, given: Any) -> Any:
        return {"file": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.images is None) == (self.list is None):
            raise ValueError("give either images (with labels) or list")
        if self.images is not None and self.labels is None:
            raise ValueError("labels: missing; a pattern for the masks, or folder for classes")
        if self.list is not None and self.labels is not None:
            raise ValueError("labels: they stand in the list; leave out one of the two")
        return self


class SplitRule(Block):
    """Fractions to draw, by patient; or a file that says which image is in which part."""

    train: float = 0.5
    val: float = 0.25
    test: float = 0.25
    seed: int = 0
    file: str | None = None

    @model_validator(mode="after")
    def _sum_to_one(self) -> Self:
        parts = (self.train, self.val, self.test)
        if min(parts) <= 0 or abs(sum(parts) - 1) > 1e-6:
            raise ValueError("train, val and test must be positive and sum to 1")
        return self


class FederationFile(Shared):
    """A federation file: the sites, where their files lie, and what labels mean."""

    task: Literal["segmentation", "classification"] = "segmentation"
    channels: Literal[1, 3] = 3
    split: SplitRule = SplitRule()
    sites: dict[str, SiteBlock] = Field(min_length=1)

    @model_validator(mode="after")
    def _fits_the_task(self) -> Self:
        key, other = "structures", "segmentation"
        if self.task == other:
            key, other = "classes", "classification"
        blocks = {"": self, **{f"sites.{site}.": block for site, block in self.sites.items()}}
        for where, block in blocks.items():
            if getattr(block, key) is not None:
                raise ValueError(f"{where}{key}: they belong to task: {other}")
        return self


Rows = Callable[[str, Findings], Sequence[Row]]


@dataclass(frozen=True)
class Manifest:
    """A federation file that was read, with what each site says in force.

    A plain folder or CSV (`path`) has no file: there `rows` lists a site's images.
    """

    path: Path
    content: FederationFile
    rows: Rows | None = None

    @cached_property
    def root(self) -> Path:
        """The folder that all paths are relative to."""
        return self.path if self.path.is_dir() else self.path.parent

    def key(self, name: str, plain: str) -> str:
        """What people call a key of the file; `plain` where there is none."""
        return name if self.rows is None else plain

    @property
    def task(self) -> str:
        """What the labels are for: segmentation or classification."""
        return self.content.task

    def site(self, name: str) -> SiteBlock:
        """A site's block, gaps filled from the top of the file."""
        top = self.content.model_dump(include={*Shared.model_fields}, exclude_unset=True)
        own = self.content.sites[name].model_dump(exclude_unset=True)
        own["slices"] = top.get("slices", {}) | own.get("slices", {})  # key by key
        return SiteBlock.model_validate(top | own)

    @cached_property
    def labels(self) -> list[str] | None:
        """Names of structures or classes in their order; None if the file does not say."""
        key = "structures" if self.task == "segmentation" else "classes"
        blocks: list[Any] = [self.content, *self.content.sites.values()]
        names = [getattr(block, key) for block in blocks]
        if all(n is None for n in names):  # masks by structure name them, too
            names = [b.labels for b in blocks[1:] if isinstance(b.labels, dict)]
        given = [list(n) for n in names if n is not None]
        for other in given[1:]:
            if set(other) != set(given[0]):
                raise ConfigError(
                    f"{self.path}: {key} are {', '.join(given[0])} in one place and "
                    f"{', '.join(other)} in another; every site has the same names"
                )
        return given[0] if given else None

    def reading(self, site: str) -> Reading:
        """How a site's files become images and masks."""
        block = self.site(site)
        written = [block.background, *(code for codes in block.codes.values() for code in codes)]
        window = block.window
        return Reading(
            structures=self._structures(block),
            background=_number(block.background),
            colours=any(isinstance(code, str) for code in written),
            window=Percentiles(*window.percentiles) if isinstance(window, Block) else window,
            view=block.slices.view,
            channel=block.channel,
            series=block.series,
            check_geometry=block.geometry == "check",
            mapping=self.key(f"structures in {self.path.name}", "task.structures"),
        )

    def _structures(self, block: SiteBlock) -> tuple[tuple[str, Codes], ...]:
        if self.task == "classification":
            return ()
        if self.labels is None:
            return UNNAMED
        codes = {name: tuple(map(_number, own)) for name, own in block.codes.items()}
        return tuple((name, codes.get(name)) for name in self.labels)

    def class_of(self, site: str) -> Mapping[str, str]:
        """What a site's labels say -> the class; empty: a label is the class itself."""
        classes = self.site(site).classes
        if not isinstance(classes, dict):
            return {}
        return {
            plain_label(code): name for name, codes in classes.items() for code in (*codes, name)
        }


def read_manifest(path: Path) -> Manifest:
    """A federation file, or the file of that name in a folder."""
    if path.is_dir():
        if not (path / NAME).is_file():
            raise DataError(
                f"{path}: holds no {NAME}; `konsil data init {path}` writes one from what it finds"
            )
        path = path / NAME
    elif not path.exists():
        raise ConfigError(
            f"{path}: no such federation file; `konsil data init` writes one for a folder of "
            "images, `konsil data import` for a public set"
        )
    content = checked(FederationFile, parse_yaml(path, "federation"), str(path))
    manifest = Manifest(path, content)
    if manifest.task == "segmentation":
        for site in content.sites:
            try:
                _check_structures(manifest.labels, manifest.site(site))
            except ValueError as error:
                raise ConfigError(f"{path}: sites.{site}: {error}") from None
    return manifest


def _check_structures(names: list[str] | None, block: SiteBlock) -> None:
    """What a site says of its structures, with the top of the file filled in."""
    background = _number(block.background)
    for name, codes in block.codes.items():
        if not codes or background in map(_number, codes):
            raise ValueError(
                f"structures.{name} = {codes}: list its mask values; {block.background!r} is "
                "the background"
            )
    if isinstance(block.labels, dict):
        if set(names or []) != set(block.labels):
            raise ValueError(
                f"labels has patterns for {', '.join(block.labels)}; the structures are "
                f"{', '.join(names or [])}"
            )
    elif block.list is None and len(names or []) > 1 and not block.codes:
        raise ValueError(
            f"its masks are one file an image, so say which values are which structure, such as "
            f"structures: {{{', '.join(f'{n}: [{i}]' for i, n in enumerate(names or [], 1))}}}"
        )


def plain_label(label: object) -> str:
    """A label as text: 1, 1.0 and "1" are the same."""
    text = str(label).strip()
    return text.removesuffix(".0") if re.fullmatch(r"-?\d+\.0", text) else text


def _number(code: Code) -> int:
    """A colour as the number 0xRRGGBB; a value as it is."""
    if isinstance(code, int):
        return code
    if not re.fullmatch(r"#[0-9a-fA-F]{6}", code):
        raise ValueError(f'{code!r}: a mask value is a number, or a colour such as "#ff0000"')
    return int(code[1:], 16)
