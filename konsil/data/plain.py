"""A plain folder or CSV, without a federation file: one in memory, with a list for every site."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from konsil.data.findings import Findings
from konsil.data.listing import read_table
from konsil.data.manifest import FederationFile, Manifest, Rows
from konsil.data.sources import READABLE, SUFFIXES, Row
from konsil.errors import DataError

Head = Mapping[str, Any]  # what an experiment says of all sites, as keys of a federation file


def _in_memory(path: Path, head: Head, sites: Iterable[str], rows: Rows) -> Manifest:
    blocks = {site: {"list": path.name} for site in sites}
    return Manifest(path, FederationFile.model_validate({**head, "sites": blocks}), rows)


# --- a CSV --------------------------------------------------------------------------------------


def csv_manifest(path: Path, head: Head) -> Manifest:
    """A CSV with the columns site, image, label and perhaps patient and split."""
    columns, rows = read_table(path)
    missing = [name for name in ("site", "image", "label") if name not in columns]
    if missing:
        raise DataError(
            f"{path}: the column {', '.join(missing)} is missing; needed are site, image, label, "
            f"separated by commas; found: {', '.join(columns) or 'an empty file'}"
        )
    if not rows:
        raise DataError(f"{path}: empty; every image of the federation is one row")
    by_site: dict[str, list[Row]] = {}
    for row in rows:
        by_site.setdefault(row.cells["site"], []).append(row)
    if "" in by_site:
        first = by_site[""][0].where
        raise DataError(f"{path}: row with an empty cell, {first}: site; fill it in")
    return _in_memory(path, head, by_site, lambda site, found: by_site[site])


# --- a folder -----------------------------------------------------------------------------------


def folder_manifest(root: Path, head: Head) -> Manifest:
    """A folder with one folder a site: images/ + masks/, or one folder a class."""
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; federation.folder holds one folder a site")
    found = Findings()
    sites = _look(root, "", found).folders
    if not sites:
        found.raise_if_any(root)
        raise DataError(f"{root}: empty; a federation's folder holds one folder a site")
    return _in_memory(root, head, sites, partial(_folder_rows, root, head["task"]))


@dataclass
class _Contents:
    """What lies in one folder, hidden entries left out."""

    folders: list[str] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    others: set[str] = field(default_factory=set)  # suffixes of files that are no images


def _look(root: Path, folder: str, found: Findings) -> _Contents:
    contents = _Contents()
    try:
        entries = sorted(os.scandir(root / folder), key=lambda e: e.name)
    except OSError as error:
        raise DataError(f"{root / folder}: cannot be listed ({error.strerror})") from None
    for entry in entries:
        suffix = os.path.splitext(entry.name)[1].lower()
        if entry.name.startswith("."):
            continue
        if entry.is_symlink() and not os.path.exists(entry.path):
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
    if not top.images and not any(contents.images for contents in inside.values()):
        _report_empty(site, [top, *inside.values()], found)
        return []
    if not _layout_fits(site, task, top, inside, found):
        return []
    if task == "segmentation":
        return _pairs(site, inside, found)
    return [
        # Two classes may number their images alike, so the class is part of the name.
        Row("", {"image": image, "label": name}, alone=f"{name}/{stem}")
        for name, contents in inside.items()
        for stem, image in _by_stem(f"{site}/{name}", contents, found).items()
    ]


def _report_empty(site: str, contents: list[_Contents], found: Findings) -> None:
    others = sorted(set[str]().union(*(c.others for c in contents)))
    where = f"{site} (it holds {', '.join(others)})" if others else site
    found.add(
        "folder that is no site, for it holds no images",
        where,
        f"put its images there ({READABLE}), take the folder away, "
        "or name the sites to use in federation.sites",
    )


def _layout_fits(
    site: str, task: str, top: _Contents, inside: dict[str, _Contents], found: Findings
) -> bool:
    """Whether a site is laid out for the task; what does not belong there is reported."""
    wants = "images/ and masks/" if task == "segmentation" else "one folder a class"
    for name in top.images:
        found.add("image outside the folders of its site", f"{site}/{name}", f"a site has {wants}")
    layout = "segmentation" if {"images", "masks"} & set(inside) else "classification"
    if layout != task:
        where = f"{site} (it has {', '.join(f'{name}/' for name in inside) or 'loose images'})"
        cure = f"task.name is {task}: every site then has {wants}"
        found.add(f"site that is not laid out for {task}", where, cure)
        return False
    for name in sorted(set(inside) - {"images", "masks"}) if task == "segmentation" else ():
        if inside[name].images:
            cure = "a segmentation site has images/ and masks/ alone: move the folder away"
            found.add("folder beside images/ and masks/", f"{site}/{name}", cure)
    return True


def _pairs(site: str, inside: dict[str, _Contents], found: Findings) -> list[Row]:
    images = _by_stem(f"{site}/images", inside.get("images", _Contents()), found)
    masks = _by_stem(f"{site}/masks", inside.get("masks", _Contents()), found)
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
        stem = os.path.splitext(name)[0]
        if stem in stems:
            where = f"{stems[stem]} and {folder}/{name}"
            found.add("two files of one name", where, "keep one of them, or rename one")
        stems.setdefault(stem, f"{folder}/{name}")
    return stems
