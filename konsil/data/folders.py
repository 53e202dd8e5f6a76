"""A federation from a folder with one folder a site; nothing is decoded yet."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from konsil.data.findings import Findings
from konsil.data.sources import READABLE, SUFFIXES, Item, Patients, check_names, choose_sites
from konsil.errors import DataError


@dataclass
class _Contents:
    """What lies in one folder, hidden entries left out."""

    folders: list[str] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    others: set[str] = field(default_factory=set)  # suffixes of files that are no images


def list_folder(
    root: Path, task: str, wanted: Sequence[str] | None, patients: Patients
) -> list[Item]:
    """The items of a folder with one folder a site: images/ + masks/, or one folder a class."""
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; federation.folder holds one folder a site")
    found = Findings()
    sites = choose_sites(_look(root, root, found).folders, wanted, root)
    if not sites:
        found.raise_if_any(root)
        raise DataError(f"{root}: empty; a federation's folder holds one folder a site")
    check_names(sites, found)
    items = [item for site in sites for item in _site_items(root, site, task, patients, found)]
    found.raise_if_any(root)
    return items


def _look(root: Path, folder: Path, found: Findings) -> _Contents:
    contents = _Contents()
    try:
        entries = sorted(os.scandir(folder), key=lambda e: e.name)
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed ({error.strerror})") from None
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


def _site_items(
    root: Path, site: str, task: str, patients: Patients, found: Findings
) -> list[Item]:
    top = _look(root, root / site, found)
    inside = {name: _look(root, root / site / name, found) for name in top.folders}
    if not top.images and not any(contents.images for contents in inside.values()):
        _report_empty(site, [top, *inside.values()], found)
        return []
    layout = "segmentation" if {"images", "masks"} & set(inside) else "classification"
    if not _layout_fits(site, layout, task, top, inside, found):
        return []
    if task == "segmentation":
        return _pairs(site, inside, patients, found)
    return _classes(site, inside, patients, found)


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
    site: str,
    layout: str,
    task: str,
    top: _Contents,
    inside: dict[str, _Contents],
    found: Findings,
) -> bool:
    """Whether a site is laid out for the task; what does not belong there is reported."""
    wants = "images/ and masks/" if task == "segmentation" else "one folder a class"
    for name in top.images:
        found.add("image outside the folders of its site", f"{site}/{name}", f"a site has {wants}")
    if layout != task:
        where = f"{site} (it has {', '.join(f'{name}/' for name in inside) or 'loose images'})"
        cure = f"task.name is {task}: every site then has {wants}"
        found.add(f"site that is not laid out for {task}", where, cure)
        return False
    if layout == "segmentation":
        for name in sorted(set(inside) - {"images", "masks"}):
            if inside[name].images:
                cure = "a segmentation site has images/ and masks/ alone: move the folder away"
                found.add("folder beside images/ and masks/", f"{site}/{name}", cure)
    return True


def _pairs(
    site: str, inside: dict[str, _Contents], patients: Patients, found: Findings
) -> list[Item]:
    images = _by_stem(f"{site}/images", inside.get("images", _Contents()), found)
    masks = _by_stem(f"{site}/masks", inside.get("masks", _Contents()), found)
    for stem in sorted(images.keys() - masks.keys()):
        cure = "put a mask of the same name (any suffix) into masks/, or take the image away"
        found.add("image without a mask", images[stem], cure)
    for stem in sorted(masks.keys() - images.keys()):
        cure = "put an image of the same name (any suffix) into images/, or take the mask away"
        found.add("mask without an image", masks[stem], cure)
    return [
        Item(site, images[stem], masks[stem], patients.of(images[stem], stem, found))
        for stem in sorted(images.keys() & masks.keys())
    ]


def _classes(
    site: str, inside: dict[str, _Contents], patients: Patients, found: Findings
) -> list[Item]:
    items = []
    for name, contents in inside.items():
        for stem, image in _by_stem(f"{site}/{name}", contents, found).items():
            # Two classes may number their images alike, so the class is part of the name.
            items.append(Item(site, image, name, patients.of(image, f"{name}/{stem}", found)))
    return items


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
