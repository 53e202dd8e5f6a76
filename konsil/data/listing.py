"""The items of a federation file: by patterns, or from a CSV or datalist; nothing is decoded."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from konsil.data.findings import Findings
from konsil.data.manifest import Listed, Manifest, plain_label
from konsil.data.patterns import Pattern, Stars
from konsil.data.sources import (
    READABLE,
    SPLITS,
    SUFFIXES,
    VOLUME_SUFFIXES,
    Item,
    Patients,
    Row,
    check_names,
    choose_sites,
    without_suffix,
)
from konsil.errors import DataError

BY_FOLDER = "folder"  # labels: folder = the name of the image's folder is its class
ALL_READABLE = f"{READABLE}, NIfTI, MetaImage, NRRD, DICOM"
# MONAI's names of the parts of a datalist, and other people's
PARTS = {
    "training": "train",
    "train": "train",
    "validation": "val",
    "valid": "val",
    "val": "val",
    "testing": "test",
    "test": "test",
}


@dataclass(frozen=True)
class Listing:
    """What a federation file leads to."""

    items: list[Item]
    notes: list[str]  # things left out that should be known
    real_patients: frozenset[str]  # sites whose patients are known, not one an image


def list_manifest(manifest: Manifest, wanted: Sequence[str] | None, found: Findings) -> Listing:
    """All images of the wanted sites, volumes whole. Mistakes are added to `found`."""
    sites = choose_sites(manifest.content.sites, wanted, manifest.path)
    check_names(sites, found)
    items: list[Item] = []
    notes: list[str] = []
    known = []
    seen: set[str] = set()
    for site in sites:
        reader, before = _SiteReader(manifest, site, found), len(found)
        own = list(reader.items(seen if manifest.rows else set()))
        if not own and len(found) == before:
            found.add("site without images", site, "mend its patterns or its list")
        items += own
        notes += reader.notes
        known += [site] if reader.knows_patients else []
    items = _with_splits(manifest, items, found)
    check_splits_given(items, found)
    return Listing(items, notes, frozenset(known))


class _SiteReader:
    """The files of one site."""

    def __init__(self, manifest: Manifest, site: str, found: Findings) -> None:
        self.manifest, self.site, self.found = manifest, site, found
        self.block = manifest.site(site)
        self.key = f"sites.{site}"
        self.classes = manifest.class_of(site)
        pattern_key = manifest.key(f"{self.key}.patient", "federation.patient_pattern")
        self.patients = Patients(self.block.patient, pattern_key)
        self.knows_patients = self.patients.known
        self.notes: list[str] = []

    def items(self, seen: set[str]) -> Iterator[Item]:
        """Its images; a list must not name those that were `seen`."""
        if self.block.list is not None:
            yield from self._listed(self.block.list, seen)
        elif self.manifest.task == "classification":
            yield from self._in_folders()
        else:
            yield from self._pairs()

    # --- by patterns ---

    def _find(self, text: str, key: str) -> dict[str, Stars]:
        """Files that a pattern matches and that may be images; what is none is reported."""
        matches = {}
        for path, stars in Pattern(text, f"{self.key}.{key}").find(self.manifest.root):
            if self._usable(path):
                matches[path] = stars
        if not matches:
            cure = f"mend {self.key}.{key} in {self.manifest.path.name}, or put the files there"
            self.found.add("pattern that matches no image", text, cure)
        return matches

    def _usable(self, path: str) -> bool:
        full = self.manifest.root / path
        if not full.exists():
            self.found.add("link that leads nowhere", path, "mend the link or take it away")
        elif full.is_dir() or path.lower().endswith((*SUFFIXES, *VOLUME_SUFFIXES)):
            return True
        else:
            cure = f"images and masks are {ALL_READABLE}: mend the pattern or the file"
            self.found.add("file that is no image by its name", path, cure)
        return False

    def _pairs(self) -> Iterator[Item]:
        assert self.block.images is not None  # the block was checked to have both
        assert self.block.labels is not None
        labels = self.block.labels
        patterns = labels if isinstance(labels, dict) else {"": labels}
        keys = {name: f"labels.{name}" if name else "labels" for name in patterns}
        files = {name: self._find(text, keys[name]) for name, text in patterns.items()}
        # Where masks lie beside their images, *.png matches both: what labels matches is no image.
        taken = {path for matches in files.values() for path in matches}
        found = self._find(self.block.images, "images")
        images = {path: stars for path, stars in found.items() if path not in taken}
        masks = {
            name: self._by_stars(files[name], images, keys[name], text)
            for name, text in patterns.items()
        }
        order = [n for n in self.manifest.labels or [*patterns] if n in patterns] or [""]
        for image, stars in images.items():
            paths = {name: mask[image] for name, mask in masks.items() if image in mask}
            if len(paths) == len(patterns):
                yield self._item(image, stars, paths, order)

    def _by_stars(
        self, masks: dict[str, Stars], images: dict[str, Stars], key: str, text: str
    ) -> dict[str, str]:
        """Image -> its mask: as many stars as both patterns have, from the end, must agree."""
        if not masks or not images:
            return {}
        shared = min(len(next(iter(images.values()))), len(next(iter(masks.values()))))
        by_stars: dict[Stars, str] = {}
        for path, stars in masks.items():
            end = stars[len(stars) - shared :]
            if end in by_stars:
                where = f"{by_stars[end]} and {path}"
                cure = f"make {self.key}.{key} match one of them, or take one away"
                self.found.add("two masks for one image", where, cure)
            by_stars.setdefault(end, path)
        ends = {image: stars[len(stars) - shared :] for image, stars in images.items()}
        missing = [image for image, end in ends.items() if end not in by_stars]
        for image in missing:
            cure = f"put its mask where {self.key}.{key} looks ({text}), or take the image away"
            self.found.add("image without a mask", image, cure)
        for end in sorted(by_stars.keys() - set(ends.values())):
            cure = f"put its image where {self.key}.images looks, or take the mask away"
            self.found.add("mask without an image", by_stars[end], cure)
        first: dict[Stars, str] = {}
        for image, end in ends.items():
            if end in by_stars and first.setdefault(end, image) != image:
                where = f"{by_stars[end]} for {first[end]} and {image}"
                cure = f"give {self.key}.{key} as many stars as it takes to tell images apart"
                self.found.add("one mask for two images", where, cure)
        return {image: by_stars[end] for image, end in ends.items() if end in by_stars}

    def _in_folders(self) -> Iterator[Item]:
        if self.block.labels != BY_FOLDER:
            cure = f"write labels: {BY_FOLDER}, or list: a CSV with a column for the class"
            self.found.add("classification without labels", f"{self.key}.labels", cure)
            return
        assert self.block.images is not None
        for image, stars in self._find(self.block.images, "images").items():
            label = self._class(PurePosixPath(image).parent.name, image)
            yield Item(self.site, image, label, self._patient(image, stars))

    def _item(self, image: str, stars: Stars, paths: dict[str, str], order: Sequence[str]) -> Item:
        patient = self._patient(image, stars)
        if "" in paths:
            return Item(self.site, image, paths[""], patient)
        return Item(
            self.site, image, "", patient, masks=tuple((name, paths[name]) for name in order)
        )

    def _patient(self, image: str, stars: Stars) -> str:
        """Without a pattern the stars name the patient: the splits of a plain folder then stay."""
        return self.patients.of(image, without_suffix("/".join(stars) or image), self.found)

    def _class(self, label: str, where: str) -> str:
        if not self.classes:
            return label
        label = plain_label(label)
        if label not in self.classes:
            known = ", ".join(sorted(self.classes))
            cure = f"classes in {self.manifest.path.name} knows {known}: add it, or mend the label"
            self.found.add("label that classes does not mention", f"{where}: {label}", cure)
            return label
        return self.classes[label]

    # --- from a list ---

    def _listed(self, listed: Listed, seen: set[str]) -> Iterator[Item]:
        path = self.manifest.root / listed.file
        if not self._inside(listed.file):
            return
        columns, rows = self._rows(path)
        listed = _with_usual_columns(listed, columns)
        self.knows_patients |= listed.patient is not None
        chosen = [row for row in rows if _chosen(row.cells, listed)]
        labelled = [row for row in chosen if row.labels != {}]
        for item in filter(None, (self._row_item(path, row, listed) for row in labelled)):
            if item.image in seen:
                self.found.add("image listed twice", item.image, "keep one row an image")
            seen.add(item.image)
            yield item
        if len(labelled) < len(chosen):
            count = len(chosen) - len(labelled)
            self.notes.append(f"site {self.site}: {count} entries without a label left out")
        if listed.where and not chosen:
            wanted = ", ".join(f"{k} = {v}" for k, v in listed.where.items())
            self.found.add("list without a row for its site", f"{path.name}: {wanted}", "mend it")

    def _rows(self, path: Path) -> tuple[Sequence[str], Sequence[Row]]:
        if self.manifest.rows is not None:
            rows = self.manifest.rows(self.site, self.found)
            return list(rows[0].cells) if rows else [], rows
        return (_datalist if path.suffix.lower() == ".json" else read_table)(path)

    def _row_item(self, path: Path, row: Row, listed: Listed) -> Item | None:
        where = f"{path.name}, {row.where}"
        cells = {}
        for key in ("image", "label", "patient", "split"):
            column = getattr(listed, key)
            if column is None or (key == "label" and row.labels):
                continue
            cells[key] = self._cell(where, row.cells, column, key)
        if any(cell is None for cell in cells.values()):
            return None
        image = self._path(str(cells["image"]), path)
        split = PARTS.get(str(cells.get("split") or row.split).lower(), "")
        if (cells.get("split") or row.split) and not split:
            cure = f"a split is one of {', '.join(SPLITS)}"
            self.found.add("unknown split", f"{where}: {cells.get('split')}", cure)
        alone = row.alone or without_suffix(image)
        patient = cells.get("patient") or self.patients.of(image, alone, self.found)
        labels = row.labels or str(cells["label"])
        return self._listed_item(image, labels, patient, split, path)

    def _listed_item(
        self, image: str, labels: Any, patient: str, split: str, path: Path
    ) -> Item | None:
        if not self._is_file(image):
            return None
        if self.manifest.task == "classification":
            return Item(self.site, image, self._class(str(labels), image), patient, split)
        if isinstance(labels, Mapping):
            names = self.manifest.labels or []
            if set(labels) != set(names):
                cure = f"structures in {self.manifest.path.name} names {', '.join(names) or 'none'}"
                where = f"{image}: {', '.join(labels)}"
                self.found.add("labels of other structures than the file's", where, cure)
                return None
            masks = tuple((name, self._path(str(labels[name]), path)) for name in names)
            there = [self._is_file(mask) for _, mask in masks]  # every missing one is reported
            return Item(self.site, image, "", patient, split, masks=masks) if all(there) else None
        mask = self._path(str(labels), path)
        return Item(self.site, image, mask, patient, split) if self._is_file(mask) else None

    def _cell(self, where: str, cells: Mapping[str, str], column: str, key: str) -> str | None:
        try:
            text = column.format_map(cells) if "{" in column else cells[column]
        except (KeyError, ValueError, IndexError):
            names = ", ".join(cells)
            cure = f"set {self.key}.list.{key} to a column, or a template of columns: {names}"
            self.found.add(f"missing column for the {key}", where.split(",")[0], cure)
            return None
        if not text.strip():
            self.found.add("row with an empty cell", f"{where}: {column}", "fill it in")
            return None
        return text

    def _path(self, text: str, listed_in: Path) -> str:
        """A path of a list starts at the list's folder; here all start at the manifest's."""
        folder = listed_in.parent.relative_to(self.manifest.root)
        return Path(os.path.normpath(folder / text)).as_posix()

    def _inside(self, path: str) -> bool:
        normal = os.path.normpath(path)
        if os.path.isabs(normal) or normal.split(os.sep)[0] == os.pardir:
            cure = (
                "paths are relative and stay in the federation's folder: move the file or mend it"
            )
            self.found.add("path that leaves the federation's folder", path, cure)
            return False
        return True

    def _is_file(self, path: str) -> bool:
        if not self._inside(path):
            return False
        if not (self.manifest.root / path).exists():
            broken = (self.manifest.root / path).is_symlink()
            what = "link that leads nowhere" if broken else "missing file"
            cure = "paths start at the folder of the list: mend the list or put the file there"
            self.found.add(what, path, cure)
            return False
        return self._usable(path)


# --- lists --------------------------------------------------------------------------------------


def read_table(path: Path) -> tuple[list[str], list[Row]]:
    """The columns and rows of a CSV."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            reader.fieldnames = [name.strip() for name in reader.fieldnames or []]
            rows = [Row(f"line {reader.line_num}", _texts(row)) for row in reader]
            columns = list(reader.fieldnames)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; a site's list is a CSV or datalist") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as CSV in UTF-8 ({error})") from None
    return columns, rows


def _texts(row: Mapping[str | Any, Any]) -> dict[str, str]:
    return {k: v.strip() if isinstance(v, str) else "" for k, v in row.items() if k is not None}


def _datalist(path: Path) -> tuple[list[str], list[Row]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; a site's list is a CSV or datalist") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error})") from None
    parts = {"": content} if isinstance(content, list) else content
    rows = []
    columns: dict[str, None] = {}
    for part, entries in parts.items() if isinstance(parts, dict) else ():
        if (part and part not in PARTS) or not isinstance(entries, list):
            continue  # a datalist also has a name, a licence, ...
        for number, entry in enumerate(entries):
            row = _datalist_row(entry, f"{path}, {part or 'entry'} {number}", PARTS.get(part, ""))
            columns |= dict.fromkeys(row.cells)
            rows.append(row)
    if not rows:
        raise DataError(
            f"{path}: no entries; a datalist has lists called training, validation and test, whose "
            'entries look like {"image": ..., "label": ...}'
        )
    return list(columns), rows


def _datalist_row(entry: Any, where: str, split: str) -> Row:
    if isinstance(entry, str):  # an image without a label, as in the test part of a challenge
        return Row(where, {"image": entry}, split, {})
    if not isinstance(entry, dict):
        raise DataError(f'{where} is {entry!r}; an entry looks like {{"image": ..., "label": ...}}')
    plain = {k: str(v).strip() for k, v in entry.items() if not isinstance(v, dict | list)}
    label = entry.get("label")
    if label is None:
        return Row(where, plain, split, {})
    return Row(where, plain, split, label if isinstance(label, dict) else None)


def _with_usual_columns(listed: Listed, columns: Sequence[str]) -> Listed:
    """A column called patient or split is used if nothing else is said."""
    usual = {
        key: key for key in ("patient", "split") if getattr(listed, key) is None and key in columns
    }
    return listed.model_copy(update=usual)


def _chosen(cells: Mapping[str, str], listed: Listed) -> bool:
    return all(
        plain_label(cells.get(key, "")) == plain_label(value) for key, value in listed.where.items()
    )


# --- splits from a file -----------------------------------------------------------------------


def _with_splits(manifest: Manifest, items: list[Item], found: Findings) -> list[Item]:
    name = manifest.content.split.file
    if name is None or not items:
        return items
    Pattern(name, "split.file")  # refuses what leaves the folder
    columns, rows = read_table(manifest.root / name)
    missing = [c for c in ("site", "image", "split") if c not in columns]
    if missing:
        raise DataError(
            f"{manifest.root / name}: the column {', '.join(missing)} is missing; needed are "
            f"site, image, split; found: {', '.join(columns) or 'an empty file'}"
        )
    given: dict[tuple[str, str], str] = {}
    for row in rows:
        key = row.cells["site"], row.cells["image"]
        if given.setdefault(key, row.cells["split"]) != row.cells["split"]:
            where = f"{name}, {row.where}: {key[0]}: {key[1]}"
            found.add("image with two splits", where, "keep one row an image")
    there = {(item.site, item.image) for item in items}
    for site, image in given:
        if (site, image) not in there and any(item.site == site for item in items):
            cure = f"mend the row in {name}, or put the image there"
            found.add("split of an image that is not there", f"{site}: {image}", cure)
    done = []
    for item in items:
        split = PARTS.get(given.get((item.site, item.image), "").lower(), "")
        if not split:
            cure = f"give it a row in {name} with train, val or test"
            found.add("image without a split", f"{item.site}: {item.image}", cure)
        done.append(replace(item, split=split))
    return done


def check_splits_given(items: Sequence[Item], found: Findings) -> None:
    """Splits from the file are taken as they are, but no patient may stand on two sides."""
    where: dict[tuple[str, str], set[str]] = {}
    for item in items:
        where.setdefault((item.site, item.patient), set()).add(item.split)
    for (site, patient), splits in sorted(where.items()):
        if len(splits) > 1:
            names = ", ".join(name for name in SPLITS if name in splits)
            cure = "give all images of a patient the same split"
            found.add("patient in more than one split", f"{patient} of {site}: {names}", cure)
