"""Where a federation comes from: a folder, a CSV, a federation file, or a generator."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from konsil.config import FederationConfig, TaskConfig
from konsil.data import synthetic
from konsil.data.cache import folder_once
from konsil.data.findings import Findings
from konsil.data.folders import list_folder
from konsil.data.listing import Listing, list_manifest
from konsil.data.manifest import Manifest, Slices, fractions, read_manifest
from konsil.data.recipe import UNNAMED, Recipe
from konsil.data.sources import Item, Patients
from konsil.data.splits import Fractions
from konsil.data.tables import list_csv
from konsil.errors import DataError
from konsil.tasks import targets_of

BYTES_AN_IMAGE = 2**19  # of a synthetic federation, with its mask: at most


class Source(ABC):
    """Lists a federation's images and says how they are read."""

    root: Path  # the folder that all paths are relative to
    split: tuple[Fractions, int]  # fractions and seed, for what is not given

    @abstractmethod
    def listing(self, sites: list[str] | None) -> Listing:
        """All images of the wanted sites, volumes whole."""

    @abstractmethod
    def recipe(self, items: Sequence[Item]) -> Recipe:
        """What the files are turned into."""

    @abstractmethod
    def labels_given(self) -> list[str] | None:
        """Structures or classes, if they are written down; None: those that occur."""

    @abstractmethod
    def channels_read(self) -> int:
        """As how many channels images are read."""

    def slices(self, site: str) -> Slices:
        """How a site's volumes become images."""
        return Slices()


def find_source(config: FederationConfig, task: TaskConfig) -> Source:
    """The source that an experiment names."""
    if config.file is None:
        return _resolve(config, task)
    manifest = read_manifest(config.file)
    _check_file_task(manifest, task)
    return FileSource(manifest, config, task)


def kind_of(task: TaskConfig) -> str:
    """What a federation must hold for a task, in the words of federation files."""
    return "segmentation" if targets_of(task) == "masks" else "classification"


class FileSource(Source):
    """A federation file. What the experiment gives beside it wins."""

    def __init__(self, manifest: Manifest, config: FederationConfig, task: TaskConfig) -> None:
        self.manifest, self.config, self.task = manifest, config, task
        self.root = manifest.root
        given, rule = config.model_fields_set, manifest.content.split
        self.split = (
            config.split if "split" in given else fractions(rule),
            config.split_seed if "split_seed" in given else rule.seed,
        )

    def listing(self, sites: list[str] | None) -> Listing:
        """All images of the wanted sites; mistakes are raised together."""
        found = Findings()
        listing = list_manifest(self.manifest, sites, found)
        found.raise_if_any(self.manifest.path)
        return listing

    def recipe(self, items: Sequence[Item]) -> Recipe:
        """What the files are turned into, site by site."""
        channels = self.channels_read()
        sites = dict.fromkeys(item.site for item in items)
        readings = {site: self.manifest.reading(site) for site in sites}
        if self.manifest.task == "classification":
            given = self.manifest.labels or self.task.classes
            classes = checked_classes(items, given, self.manifest.path, "classes")
            return Recipe(channels, self.config.image_size, (), tuple(classes), readings)
        structures = next(iter(readings.values())).structures
        return Recipe(channels, self.config.image_size, structures, (), readings)

    def labels_given(self) -> list[str] | None:
        """Structures or classes, if the file names them."""
        return self.manifest.labels

    def channels_read(self) -> int:
        """The experiment's, or the file's."""
        given = "channels" in self.config.model_fields_set
        return self.config.channels if given else self.manifest.content.channels

    def slices(self, site: str) -> Slices:
        """How a site's volumes become images."""
        return self.manifest.site(site).slices


def _check_file_task(manifest: Manifest, task: TaskConfig) -> None:
    if kind_of(task) != manifest.task:
        raise DataError(
            f"{manifest.path}: describes a {manifest.task} federation: set task.name to "
            f"{manifest.task}, or change `task` in the file"
        )
    if task.structures or (task.classes and manifest.labels):
        key = "structures" if task.structures else "classes"
        raise DataError(
            f"{manifest.path}: {key} stand in this file; leave task.{key} out of the experiment"
        )


@dataclass(frozen=True)
class _Plain(Source):
    """A folder or a CSV with the experiment's own settings, gaps filled in."""

    folder: Path | None
    csv: Path | None
    task: str
    size: int
    channels: int
    patients: Patients
    structures: dict[str, list[int]] | None
    classes: list[str] | None
    split: tuple[Fractions, int]

    @property
    def root(self) -> Path:  # type: ignore[override]
        """The folder that all paths are relative to."""
        if self.folder is not None:
            return self.folder
        assert self.csv is not None  # the experiment file gives exactly one source
        return self.csv.parent

    def listing(self, sites: list[str] | None) -> Listing:
        """All images of the wanted sites."""
        if self.csv is not None:
            items, known = list_csv(self.csv, self.task, sites, self.patients)
        else:
            items, known = list_folder(self.root, self.task, sites, self.patients), False
        known = known or self.patients.known
        return Listing(items, [], frozenset(item.site for item in items) if known else frozenset())

    def recipe(self, items: Sequence[Item]) -> Recipe:
        """What the files are turned into."""
        if self.task == "classification":
            classes = checked_classes(items, self.classes, self.root, "task.classes")
            return Recipe(self.channels, self.size, classes=tuple(classes))
        given = self.structures
        structures = tuple((n, tuple(v)) for n, v in given.items()) if given else UNNAMED
        return Recipe(self.channels, self.size, structures=structures)

    def labels_given(self) -> list[str] | None:
        """Structures or classes, if the experiment names them."""
        return list(self.structures) if self.structures else self.classes

    def channels_read(self) -> int:
        """The experiment's, or the synthetic federation's."""
        return self.channels


def checked_classes(
    items: Sequence[Item], given: Sequence[str] | None, source: Path, key: str
) -> list[str]:
    """The classes in their order: those given, or those found, sorted."""
    present = sorted({item.label for item in items})
    if given is None:
        if len(present) < 2:
            raise DataError(
                f"{source}: only the class {present[0]} at all sites; a classification "
                "needs two, so add a folder (or rows) of the other class"
            )
        return present
    found = Findings()
    for site, label in sorted({(item.site, item.label) for item in items}):
        if label not in given:
            cure = f"{key} is {list(given)}: add the class or take its images away"
            found.add("unknown class", f"{label} at site {site}", cure)
    found.raise_if_any(source)
    return list(given)


def _resolve(config: FederationConfig, task: TaskConfig) -> _Plain:
    """The settings in force: a synthetic federation fills in what the experiment leaves out."""
    folder, pattern = config.folder, config.patient_pattern
    channels: int = config.channels
    structures, classes = task.structures, task.classes
    if config.synthetic is not None:
        own = synthetic.FEDERATIONS[config.synthetic]
        _check_synthetic_task(own, task)
        folder = _written(config)
        channels = channels if "channels" in config.model_fields_set else own.channels
        pattern = pattern or own.patient_pattern
        structures = structures or own.structures
        classes = classes or own.classes
    return _Plain(
        folder=folder,
        csv=config.csv,
        task=kind_of(task),
        size=config.image_size,
        channels=channels,
        patients=Patients(pattern),
        structures=structures,
        classes=classes,
        split=(config.split, config.split_seed),
    )


def _check_synthetic_task(own: synthetic.SyntheticFederation, task: TaskConfig) -> None:
    kind = "classification" if own.classes else "segmentation"
    if kind_of(task) != kind:
        raise DataError(
            f"federation.synthetic = {own.name} is a {kind} federation: "
            f"set task.name to {kind}, or choose another federation"
        )


def _written(config: FederationConfig) -> Path:
    """The folder of a synthetic federation, generated if it is not there."""
    name = str(config.synthetic)
    counts = config.images or synthetic.FEDERATIONS[name].images
    state = hashlib.sha256(repr(sorted(counts.items())).encode())
    for source in sorted(Path(synthetic.__file__).parent.glob("*.py")):
        state.update(source.read_bytes())  # another generator draws other images
    folder = config.cache_folder / "synthetic" / f"{name}-{state.hexdigest()[:16]}"

    def generate(building: Path) -> dict[str, Any]:
        synthetic.write_federation(name, building, images=counts)
        return {}

    size = sum(counts.values()) * BYTES_AN_IMAGE
    folder_once(folder, generate, size=size, limit=config.cache_limit_bytes)
    return folder
