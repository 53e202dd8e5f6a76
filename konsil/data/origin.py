"""Where a federation comes from: a federation file, or a folder, a CSV or a generator without."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from konsil.config import FederationConfig, TaskConfig
from konsil.data import synthetic
from konsil.data.cache import folder_once
from konsil.data.findings import Findings
from konsil.data.listing import Listing, list_manifest
from konsil.data.manifest import Manifest, Slices, fractions, read_manifest
from konsil.data.plain import csv_manifest, folder_manifest
from konsil.data.recipe import Recipe
from konsil.data.sources import Item
from konsil.errors import DataError
from konsil.tasks import targets_of

BYTES_AN_IMAGE = 2**19  # of a synthetic federation, with its mask: at most


def find_source(config: FederationConfig, task: TaskConfig) -> FileSource:
    """The source that an experiment names."""
    if config.file is None:
        return FileSource(_plain_manifest(config, task), config, task)
    manifest = read_manifest(config.file)
    _check_file_task(manifest, task)
    return FileSource(manifest, config, task)


def kind_of(task: TaskConfig) -> str:
    """What a federation must hold for a task, in the words of federation files."""
    return "segmentation" if targets_of(task) == "masks" else "classification"


class FileSource:
    """A federation file, perhaps one in memory. What the experiment gives beside it wins."""

    def __init__(self, manifest: Manifest, config: FederationConfig, task: TaskConfig) -> None:
        self.manifest, self.config, self.task = manifest, config, task
        self.root = manifest.root  # the folder that all paths are relative to
        given, rule = config.model_fields_set, manifest.content.split
        self.split = (  # fractions and seed, for what is not given
            config.split if "split" in given else fractions(rule),
            config.split_seed if "split_seed" in given else rule.seed,
        )

    def listing(self, sites: list[str] | None) -> Listing:
        """All images of the wanted sites, volumes whole; mistakes are raised together."""
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
            key = self.manifest.key("classes", "task.classes")
            classes = checked_classes(items, given, self.manifest.path, key)
            return Recipe(channels, self.config.image_size, (), tuple(classes), readings)
        structures = next(iter(readings.values())).structures
        return Recipe(channels, self.config.image_size, structures, (), readings)

    def labels_given(self) -> list[str] | None:
        """Structures or classes, if they are written down; None: those that occur."""
        return self.manifest.labels

    def channels_read(self) -> int:
        """As how many channels images are read: the experiment's, or the file's."""
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


def _plain_manifest(config: FederationConfig, task: TaskConfig) -> Manifest:
    """What an experiment says of a folder or a CSV; a synthetic federation fills the gaps."""
    head: dict[str, Any] = {"task": kind_of(task)}
    folder = config.folder
    if config.synthetic is not None:
        own = synthetic.FEDERATIONS[config.synthetic]
        _check_synthetic_task(own, task)
        folder = _written(config)
        head |= {"structures": own.structures, "classes": own.classes, "channels": own.channels}
        head["patient"] = own.patient_pattern
    said: dict[str, Any] = {"structures": task.structures or None, "classes": task.classes}
    said["patient"] = config.patient_pattern
    head |= {key: value for key, value in said.items() if value is not None}
    if folder is not None:
        return folder_manifest(folder, head)
    assert config.csv is not None  # the experiment file gives exactly one source
    return csv_manifest(config.csv, head)


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
