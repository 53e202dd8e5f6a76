"""Which images a federation holds: listed from folders or from a CSV, nothing decoded yet."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from konsil.data.findings import Findings
from konsil.errors import ConfigError, DataError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
SPLITS = ("train", "val", "test")
RESERVED_SITES = ("client_average", "global")  # rows of results.csv that are no site
READABLE = "PNG, JPEG, BMP or TIFF"


@dataclass(frozen=True)
class Item:
    """One image with its label, as listed. Paths are relative to the federation's folder."""

    site: str
    image: str
    label: str  # segmentation: the mask's path; classification: the class
    patient: str
    split: str = ""  # "" until it is drawn


class Patients:
    """Patient ids from file names: group 1 of a pattern, or every image its own patient."""

    def __init__(self, pattern: str | None) -> None:
        try:
            self._pattern = None if pattern is None else re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                f"federation.patient_pattern = {pattern!r}: not a regular expression ({error})"
            ) from None
        if self._pattern is not None and self._pattern.groups < 1:
            raise ConfigError(
                f"federation.patient_pattern = {pattern!r}: put the patient's part of the name "
                r"into brackets, such as ^(.+)_\d+$"
            )

    def of(self, image: str, alone: str, found: Findings) -> str:
        """The patient of an image; `alone` names it when every image is its own patient."""
        if self._pattern is None:
            return alone
        match = self._pattern.search(PurePosixPath(image).stem)
        if match is None or not match.group(1):
            found.add(
                "file name that federation.patient_pattern does not match",
                image,
                f"rename the file or change the pattern {self._pattern.pattern!r}",
            )
            return alone
        return match.group(1)


def choose_sites(available: Iterable[str], wanted: Sequence[str] | None, source: Path) -> list[str]:
    """The roster: the wanted sites in their order, or all in the order of their names."""
    known = sorted(available)
    if wanted is None:
        return known
    unknown = [site for site in wanted if site not in known]
    if unknown:
        raise DataError(
            f"{source}: federation.sites names {', '.join(unknown)}, which is not there; "
            f"found: {', '.join(known) or 'no site'}"
        )
    if not wanted or len(set(wanted)) < len(wanted):
        raise DataError(f"federation.sites = {list(wanted)}: name at least one site, each once")
    return list(wanted)


# --- folders ------------------------------------------------------------------------------------


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
    _check_names(sites, found)
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


# --- CSV ----------------------------------------------------------------------------------------


def list_csv(path: Path, task: str, wanted: Sequence[str] | None, patients: Patients) -> list[Item]:
    """The items of a CSV with the columns site, image, label and perhaps patient and split."""
    found = Findings()
    rows = _read_rows(path)
    listed = [item for line, row in rows if (item := _row_item(line, row, patients, found))]
    found.raise_if_any(path)
    sites = choose_sites({item.site for item in listed}, wanted, path)
    _check_names(sites, found)
    items = [item for item in listed if item.site in sites]
    _check_files(path.parent, items, task, found)
    _check_splits_given(items, found)
    found.raise_if_any(path)
    return items


def _read_rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            columns = [name.strip() for name in reader.fieldnames or []]
            reader.fieldnames = columns
            rows = [(reader.line_num, row) for row in reader]
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; federation.csv is a list of images") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as CSV in UTF-8 ({error})") from None
    missing = [name for name in ("site", "image", "label") if name not in columns]
    if missing:
        raise DataError(
            f"{path}: the column {', '.join(missing)} is missing; needed are site, image, label, "
            f"separated by commas; found: {', '.join(columns) or 'an empty file'}"
        )
    if not rows:
        raise DataError(f"{path}: empty; every image of the federation is one row")
    return rows


def _row_item(line: int, row: dict[str, str], patients: Patients, found: Findings) -> Item | None:
    cells = {name: (row.get(name) or "").strip() for name in ("site", "image", "label")}
    cells |= {name: (row[name] or "").strip() for name in ("patient", "split") if name in row}
    blank = [name for name, cell in cells.items() if not cell]
    if blank:
        found.add("row with an empty cell", f"line {line}: {', '.join(blank)}", "fill it in")
        return None
    if cells.get("split", "train") not in SPLITS:
        where = f"line {line}: {cells['split']}"
        found.add("unknown split", where, f"a split is one of {', '.join(SPLITS)}")
        return None
    image = os.path.normpath(cells["image"].replace("\\", "/"))
    if "patient" not in cells:
        alone = PurePosixPath(image).with_suffix("").as_posix()
        cells["patient"] = patients.of(image, alone, found)
    return Item(cells["site"], image, cells["label"], cells["patient"], cells.get("split", ""))


def _check_files(root: Path, items: list[Item], task: str, found: Findings) -> None:
    seen: set[str] = set()
    for item in items:
        if item.image in seen:
            found.add("image listed twice", item.image, "keep one row an image")
        seen.add(item.image)
        for name in [item.image] + ([item.label] if task == "segmentation" else []):
            _check_file(root, name, found)


def _check_file(root: Path, name: str, found: Findings) -> None:
    normal = os.path.normpath(name)
    if os.path.isabs(normal) or normal.split(os.sep)[0] == os.pardir:
        cure = "paths are relative to the CSV's folder and stay inside it: move the CSV or the file"
        found.add("path that leaves the CSV's folder", name, cure)
    elif not (root / normal).is_file():
        broken = (root / normal).is_symlink()
        what = "link that leads nowhere" if broken else "missing file"
        found.add(what, name, "paths are relative to the CSV's folder; mend the row or the file")
    elif os.path.splitext(name)[1].lower() not in SUFFIXES:
        found.add("file that is no image by its name", name, f"images and masks are {READABLE}")


def _check_splits_given(items: list[Item], found: Findings) -> None:
    """Splits from the file are taken as they are, but no patient may stand on two sides."""
    if not any(item.split for item in items):
        return
    where: dict[tuple[str, str], set[str]] = {}
    for item in items:
        where.setdefault((item.site, item.patient), set()).add(item.split)
    for (site, patient), splits in sorted(where.items()):
        if len(splits) > 1:
            names = ", ".join(name for name in SPLITS if name in splits)
            cure = "give all images of a patient the same split"
            found.add("patient in more than one split", f"{patient} of {site}: {names}", cure)
    filled = {(item.site, item.split) for item in items}
    for site in sorted({item.site for item in items}):
        for split in SPLITS:
            if (site, split) not in filled:
                cure = "every site needs images to train, to validate and to test"
                found.add("site with an empty split", f"{site}: {split}", cure)


def _check_names(sites: list[str], found: Findings) -> None:
    for site in sites:
        if site in RESERVED_SITES:
            found.add("site with a reserved name", site, "the results use this name: rename it")
        if site.startswith(".") or re.search(r"[/\\\x00-\x1f]", site):
            cure = "a site's name becomes a folder: no slash, no leading dot"
            found.add("site whose name cannot be used", repr(site), cure)
