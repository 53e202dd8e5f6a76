"""A federation: found, checked, split and decoded before round 1."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import PIL

from konsil.config import FederationConfig, TaskConfig
from konsil.data import synthetic
from konsil.data.cache import folder_once
from konsil.data.decode import Report, write_arrays
from konsil.data.findings import Findings
from konsil.data.folders import list_folder
from konsil.data.notes import warnings_about
from konsil.data.recipe import Recipe, fingerprint, hash_files
from konsil.data.sources import SPLITS, Item, Patients
from konsil.data.splits import draw_splits
from konsil.data.tables import list_csv
from konsil.errors import DataError
from konsil.files import write_text


@dataclass(frozen=True)
class Federation:
    """What is known about the sites' data; the arrays are opened by `training_data`."""

    sites: list[str]  # the roster
    labels: list[str]  # structure names, or class names
    channels: int
    counts: dict[str, dict[str, int]]  # site -> split -> images
    patients: dict[str, dict[str, int]]  # site -> split -> patients
    warnings: list[str]
    fingerprint: str  # changes exactly if the numbers can change
    folder: Path  # the cache entry: <site>/{train,val,test}/{images,targets}.npy
    items: tuple[Item, ...]

    def write_splits(self, path: Path) -> None:
        """Which image went where, as a CSV that federation.csv reads again."""
        text = io.StringIO(newline="")
        table = csv.writer(text)
        table.writerow(["site", "image", "label", "patient", "split"])
        for item in self.items:
            table.writerow([item.site, item.image, item.label, item.patient, item.split])
        write_text(path, text.getvalue())


def open_federation(
    config: FederationConfig, task: TaskConfig, report: Report | None = None
) -> Federation:
    """Find the files, check everything, draw the splits, and decode what is not cached yet.

    `report(site, done, total)` is called while images are decoded. Raises DataError.
    """
    source = _resolve(config, task)
    items = source.list_items(config.sites)
    recipe = source.recipe(items)
    items = draw_splits(items, config.split, config.split_seed, by_class=bool(recipe.classes))
    sites = config.sites or sorted({item.site for item in items})
    items.sort(key=lambda i: (sites.index(i.site), SPLITS.index(i.split), i.image))

    names = dict.fromkeys(name for item in items for name in recipe.files(item))
    digests = hash_files(source.root, list(names))
    identity = fingerprint(recipe, items, digests)
    # Another version of the decoder may give other pixels for the same files.
    folder = config.cache_folder / f"{identity[:32]}-pillow{PIL.__version__}"
    facts = folder_once(
        folder, lambda entry: write_arrays(entry, source.root, items, recipe, digests, report)
    )
    return Federation(
        sites=list(sites),
        labels=recipe.labels,
        channels=recipe.channels,
        counts=_count(sites, [(i.site, i.split) for i in items]),
        patients=_count(sites, list({(i.site, i.split, i.patient): 0 for i in items})),
        warnings=warnings_about(items, recipe, facts, digests),
        fingerprint=identity,
        folder=folder,
        items=tuple(items),
    )


def _count(sites: Sequence[str], places: Sequence[tuple[str, ...]]) -> dict[str, dict[str, int]]:
    counts = {site: dict.fromkeys(SPLITS, 0) for site in sites}
    for site, split, *_ in places:
        counts[site][split] += 1
    return counts


@dataclass(frozen=True)
class _Source:
    """Where a federation lies and how it is read, gaps filled in."""

    folder: Path | None
    csv: Path | None
    task: str
    size: int
    channels: int
    patients: Patients
    structures: dict[str, list[int]] | None
    classes: list[str] | None

    @property
    def root(self) -> Path:
        """The folder that all paths are relative to."""
        if self.folder is not None:
            return self.folder
        assert self.csv is not None  # the experiment file gives exactly one source
        return self.csv.parent

    def list_items(self, sites: list[str] | None) -> list[Item]:
        """All images of the wanted sites."""
        if self.csv is not None:
            return list_csv(self.csv, self.task, sites, self.patients)
        return list_folder(self.root, self.task, sites, self.patients)

    def recipe(self, items: Sequence[Item]) -> Recipe:
        """What the files are turned into."""
        if self.task == "classification":
            classes = tuple(self._checked_classes(items))
            return Recipe(self.channels, self.size, classes=classes)
        structures: dict[str, Any] = self.structures or {"foreground": None}
        return Recipe(self.channels, self.size, structures=tuple(structures.items()))

    def _checked_classes(self, items: Sequence[Item]) -> list[str]:
        present = sorted({item.label for item in items})
        if self.classes is None:
            if len(present) < 2:
                raise DataError(
                    f"{self.root}: only the class {present[0]} at all sites; a classification "
                    "needs two, so add a folder (or rows) of the other class"
                )
            return present
        found = Findings()
        for site, label in sorted({(item.site, item.label) for item in items}):
            if label not in self.classes:
                cure = f"task.classes is {self.classes}: add the class or take its images away"
                found.add("unknown class", f"{label} at site {site}", cure)
        found.raise_if_any(self.root)
        return self.classes


def _resolve(config: FederationConfig, task: TaskConfig) -> _Source:
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
    return _Source(
        folder=folder,
        csv=config.csv,
        task=task.name,
        size=config.image_size,
        channels=channels,
        patients=Patients(pattern),
        structures=structures,
        classes=classes,
    )


def _check_synthetic_task(own: synthetic.SyntheticFederation, task: TaskConfig) -> None:
    kind = "classification" if own.classes else "segmentation"
    if task.name != kind:
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

    folder_once(folder, generate)
    return folder
