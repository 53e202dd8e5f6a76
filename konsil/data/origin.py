"""Where a federation comes from: a federation file, or a folder, a CSV or a generator without."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from konsil.config import FederationConfig, TaskConfig
from konsil.data import synthetic
from konsil.data.cache import folder_once
from konsil.data.findings import Findings
from konsil.data.listing import Listing, list_manifest, read_table
from konsil.data.manifest import FederationFile, Manifest, Rows, read_manifest
from konsil.data.recipe import Recipe
from konsil.data.sources import READABLE, SUFFIXES, Item, Row, visible
from konsil.errors import DataError
from konsil.tasks import targets_of

BYTES_AN_IMAGE = 2**19  # of a synthetic federation, with its mask: at most
Head = Mapping[str, Any]  # what an experiment says of all sites, as keys of a federation file


def find_source(config: FederationConfig, task: TaskConfig) -> FileSource:
    """The source that an experiment names."""
    if config.file is None:
        return FileSource(_plain_manifest(config, task), config, task)
    manifest = read_manifest(config.file)
    _check_task(task, manifest.task, f"{manifest.path}: describes", "change `task` in the file")
    if task.structures or (task.classes and manifest.labels):
        key = "structures" if task.structures else "classes"
        raise DataError(
            f"{manifest.path}: {key} stand in this file; leave task.{key} out of the experiment"
        )
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
            config.split if "split" in given else (rule.train, rule.val, rule.test),
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
        sites = dict.fromkeys(item.site for item in items)
        readings = {site: self.manifest.reading(site) for site in sites}
        classes = self._classes(items) if self.manifest.task == "classification" else ()
        structures = next(iter(readings.values())).structures
        channels, size = self.channels_read(), self.config.image_size
        return Recipe(channels, size, structures, tuple(classes), readings)

    def _classes(self, items: Sequence[Item]) -> Sequence[str]:
        """The classes in their order: those given, or those found, sorted."""
        given, path = self.manifest.labels or self.task.classes, self.manifest.path
        present = sorted({item.label for item in items})
        if given is None and len(present) < 2:
            raise DataError(
                f"{path}: only the class {present[0]} at all sites; a classification "
                "needs two, so add a folder (or rows) of the other class"
            )
        found = Findings()
        for site, label in sorted({(item.site, item.label) for item in items}):
            if given is not None and label not in given:
                key = self.manifest.key("classes", "task.classes")
                cure = f"{key} is {list(given)}: add the class or take its images away"
                found.add("unknown class", f"{label} at site {site}", cure)
        found.raise_if_any(path)
        return given or present

    def channels_read(self) -> int:
        """As how many channels images are read: the experiment's, or the file's."""
        given = "channels" in self.config.model_fields_set
        return self.config.channels if given else self.manifest.content.channels


def _check_task(task: TaskConfig, kind: str, described: str, else_do: str) -> None:
    if kind_of(task) != kind:
        raise DataError(f"{described} a {kind} federation: set task.name to {kind}, or {else_do}")


def _plain_manifest(config: FederationConfig, task: TaskConfig) -> Manifest:
    """What an experiment says of a folder or a CSV; a synthetic federation fills the gaps."""
    head: dict[str, Any] = {"task": kind_of(task)}
    folder = config.folder
    if config.synthetic is not None:
        own = synthetic.FEDERATIONS[config.synthetic]
        kind = "classification" if own.classes else "segmentation"
        described = f"federation.synthetic = {own.name} is"
        _check_task(task, kind, described, "choose another federation")
        folder = _written(config)
        head |= {"structures": own.structures, "classes": own.classes, "channels": own.channels}
        head["patient"] = own.patient_pattern
    said: dict[str, Any] = {"structures": task.structures or None, "classes": task.classes}
    said |= {"patient": config.patient_pattern}
    head |= {key: value for key, value in said.items() if value is not None}
    if folder is not None:
        return _of_folder(folder, head)
    assert config.csv is not None  # the experiment file gives exactly one source
    return _of_csv(config.csv, head)


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


# --- a folder or a CSV: a federation file in memory, with a list for every site -----------------


def _in_memory(path: Path, head: Head, sites: Iterable[str], rows: Rows) -> Manifest:
    blocks = {site: {"list": path.name} for site in sites}
    return Manifest(path, FederationFile.model_validate({**head, "sites": blocks}), rows)


def _of_csv(path: Path, head: Head) -> Manifest:
    """The columns site, image, label and perhaps patient and split."""
    rows = read_table(path, needed=("site", "image", "label"))[1]
    if not rows:
        raise DataError(f"{path}: empty; every image of the federation is one row")
    by_site: dict[str, list[Row]] = {}
    for row in rows:
        by_site.setdefault(row.cells["site"], []).append(row)
    if "" in by_site:
        first = by_site[""][0].where
        raise DataError(f"{path}: row with an empty cell, {first}: site; fill it in")
    return _in_memory(path, head, by_site, lambda site, found: by_site[site])


def _of_folder(root: Path, head: Head) -> Manifest:
    """One folder a site: images/ + masks/, or one folder a class."""
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; federation.folder holds one folder a site")
    found = Findings()
    sites = _look(root, "", found).folders
    if not sites:
        found.raise_if_any(root)
        raise DataError(f"{root}: empty; a federation's folder holds one folder a site")
    return _in_memory(root, head, sites, partial(_folder_rows, root, head["task"]))


class _Contents(NamedTuple):
    """What lies in one folder, hidden entries left out."""

    folders: list[str]
    images: list[str]
    others: set[str]  # suffixes of files that are no images


def _look(root: Path, folder: str, found: Findings) -> _Contents:
    contents = _Contents([], [], set())
    for entry in visible(root / folder):
        suffix = os.path.splitext(entry.name)[1].lower()
        if not os.path.exists(entry.path):
            where = Path(entry.path).relative_to(root).as_posix()
            found.add("link that leads nowhere", where, "mend the link or take it away")
        elif entry.is_dir():
            contents.folders.append(entry.name)
        elif suffix in SUFFIXES:
            contents.images.append(entry.name)
        else:
            contents.others.add(suffix or entry.name)
    return contents


def _folder_rows(root: Path, task: str, site: str, found: Findings) -> list[Row]:
    """The images of a site, each with its mask or the name of its folder."""
    top = _look(root, site, found)
    inside = {name: _look(root, f"{site}/{name}", found) for name in top.folders}
    wants = "images/ and masks/" if task == "segmentation" else "one folder a class"
    layout = "segmentation" if {"images", "masks"} & set(inside) else "classification"
    if not any(contents.images for contents in (top, *inside.values())):
        others = sorted(top.others.union(*(contents.others for contents in inside.values())))
        where = f"{site} (it holds {', '.join(others)})" if others else site
        cure = (
            f"put its images there ({READABLE}), take the folder away, "
            "or name the sites to use in federation.sites"
        )
        found.add("folder that is no site, for it holds no images", where, cure)
        return []
    for name in top.images:
        found.add("image outside the folders of its site", f"{site}/{name}", f"a site has {wants}")
    if layout != task:
        where = f"{site} (it has {', '.join(f'{name}/' for name in inside) or 'loose images'})"
        cure = f"task.name is {task}: every site then has {wants}"
        found.add(f"site that is not laid out for {task}", where, cure)
        return []
    if task == "segmentation":
        return _pairs(site, inside, found)
    return [
        # Two classes may number their images alike, so the class is part of the name.
        Row("", {"image": image, "label": name}, alone=f"{name}/{stem}")
        for name, contents in inside.items()
        for stem, image in _by_stem(f"{site}/{name}", contents, found).items()
    ]


def _pairs(site: str, inside: dict[str, _Contents], found: Findings) -> list[Row]:
    for name in sorted(set(inside) - {"images", "masks"}):
        if inside[name].images:
            cure = "a segmentation site has images/ and masks/ alone: move the folder away"
            found.add("folder beside images/ and masks/", f"{site}/{name}", cure)
    images, masks = (
        _by_stem(f"{site}/{name}", inside.get(name, _Contents([], [], set())), found)
        for name in ("images", "masks")
    )
    for stem in sorted(images.keys() - masks.keys()):
        cure = "put a mask of the same name (any suffix) into masks/, or take the image away"
        found.add("image without a mask", images[stem], cure)
    for stem in sorted(masks.keys() - images.keys()):
        cure = "put an image of the same name (any suffix) into images/, or take the mask away"
        found.add("mask without an image", masks[stem], cure)
    both = sorted(images.keys() & masks.keys())
    return [Row("", {"image": images[s], "label": masks[s]}, alone=s) for s in both]


def _by_stem(folder: str, contents: _Contents, found: Findings) -> dict[str, str]:
    for name in contents.folders:
        cure = "put the images themselves there; folders further down are not read"
        found.add("folder where images are expected", f"{folder}/{name}", cure)
    stems: dict[str, str] = {}
    for name in contents.images:
        first = stems.setdefault(os.path.splitext(name)[0], f"{folder}/{name}")
        if first != f"{folder}/{name}":
            cure = "keep one of them, or rename one"
            found.add("two files of one name", f"{first} and {folder}/{name}", cure)
    return stems
