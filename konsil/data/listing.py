"""The items of a federation file: by patterns, or from a CSV or datalist; nothing is decoded."""

import csv
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    Row,
    check_names,
    choose_sites,
    leaves_folder,
    without_suffix,
)
from konsil.errors import ConfigError, DataError

BY_FOLDER = "folder"  # labels: folder = the name of the image's folder is its class
ALL_READABLE = f"{READABLE}, NIfTI, MetaImage, NRRD, DICOM"
# MONAI's names of the parts of a datalist, and other people's
PARTS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
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
        self.listed = self.block.list or Listed(file=manifest.path.name)  # patterns: all beside it
        self.key = f"sites.{site}"
        self.classes = manifest.class_of(site)
        self.patient_key = manifest.key(f"{self.key}.patient", "federation.patient_pattern")
        self.patient_pattern = _patient_pattern(self.block.patient, self.patient_key)
        self.knows_patients = self.patient_pattern is not None
        self.notes: list[str] = []

    def items(self, seen: set[str]) -> Iterator[Item]:
        """Its images; a list must not name those that were `seen`."""
        listed = self.listed
        if leaves_folder(listed.file):
            self._usable(listed.file)  # reports it
            return
        rows = self._rows()
        there = {column for row in rows for column in row.cells}
        columns = {"image": listed.image, "label": listed.label}
        for key, column in (("patient", listed.patient), ("split", listed.split)):
            if column is not None or key in there:  # the usual name, if nothing else is said
                columns[key] = column or key
        self.knows_patients |= "patient" in columns
        where = {key: plain_label(value) for key, value in listed.where.items()}
        chosen = [r for r in rows if where == {k: plain_label(r.cells.get(k, "")) for k in where}]
        labelled = [row for row in chosen if row.cells.get("label", "") is not None]
        for item in filter(None, (self._item(row, columns) for row in labelled)):
            if item.image in seen:
                self.found.add("image listed twice", item.image, "keep one row an image")
            seen.add(item.image)
            yield item
        if len(labelled) < len(chosen):
            count = len(chosen) - len(labelled)
            self.notes.append(f"site {self.site}: {count} entries without a label left out")
        if listed.where and not chosen:
            wanted = ", ".join(f"{k} = {v}" for k, v in listed.where.items())
            where_not = f"{os.path.basename(listed.file)}: {wanted}"
            self.found.add("list without a row for its site", where_not, "mend it")

    def _rows(self) -> Sequence[Row]:
        if self.manifest.rows is not None:
            return self.manifest.rows(self.site, self.found)
        if self.block.list is None:
            segmentation = self.manifest.task == "segmentation"
            return list(self._pairs() if segmentation else self._in_folders())
        path = self.manifest.root / self.listed.file
        return _datalist(path) if path.suffix.lower() == ".json" else read_table(path)[1]

    def _item(self, row: Row, columns: Mapping[str, str]) -> Item | None:
        where = f"{os.path.basename(self.listed.file)}, {row.where}"
        cells = {key: self._cell(where, row, column, key) for key, column in columns.items()}
        if None in cells.values():
            return None
        image, label = self._path(cells["image"]), cells["label"]
        said = cells.get("split", "")
        split = PARTS.get(said.lower(), "")
        if said and not split:
            cure = f"a split is one of {', '.join(SPLITS)}"
            self.found.add("unknown split", f"{where}: {said}", cure)
        patient = cells.get("patient") or self._patient(image, row.alone or without_suffix(image))
        if not self._usable(image):
            return None
        if self.manifest.task == "classification":
            return Item(self.site, image, self._class(str(label), image), patient, split)
        masks = self._masks(image, label if isinstance(label, dict) else {"": label})
        if masks is None:
            return None
        alone = masks.pop("", "")
        return Item(self.site, image, alone, patient, split, masks=tuple(masks.items()))

    def _masks(self, image: str, given: Mapping[str, Any]) -> dict[str, str] | None:
        """The masks by structure, in their order; a mask of all structures is that of ""."""
        names = [""] if "" in given else self.manifest.labels or []
        if set(given) != set(names):
            cure = f"structures in {self.manifest.path.name} names {', '.join(names) or 'none'}"
            where = f"{image}: {', '.join(given)}"
            self.found.add("labels of other structures than the file's", where, cure)
            return None
        masks = {name: self._path(str(given[name])) for name in names}
        there = [self._usable(mask) for mask in masks.values()]  # every missing one is reported
        return masks if all(there) else None

    def _cell(self, where: str, row: Row, column: str, key: str) -> Any:
        try:
            text = column.format_map(row.cells) if "{" in column else row.cells[column]
        except (KeyError, ValueError, IndexError):
            names = ", ".join(row.cells)
            cure = f"set {self.key}.list.{key} to a column, or a template of columns: {names}"
            self.found.add(f"missing column for the {key}", where.split(",")[0], cure)
            return None
        if isinstance(text, str) and not text.strip():
            self.found.add("row with an empty cell", f"{where}: {column}", "fill it in")
            return None
        return text

    def _path(self, text: str) -> str:
        """A path of a list starts at the list's folder; here all start at the manifest's."""
        path = os.path.join(os.path.dirname(self.listed.file), text)
        return os.path.normpath(path).replace(os.sep, "/")

    def _patient(self, image: str, alone: str) -> str:
        """Group 1 of the pattern; `alone` if every image is its own patient.

        The pattern is searched in the name without suffix, or in the path if it has a slash.
        """
        if self.patient_pattern is None:
            return alone
        path, pattern = without_suffix(image), self.patient_pattern.pattern
        match = self.patient_pattern.search(path if "/" in pattern else PurePosixPath(path).name)
        if match is None or not match.group(1):
            cure = f"rename the file or change the pattern {pattern!r}"
            self.found.add(f"file name that {self.patient_key} does not match", image, cure)
            return alone
        return match.group(1)

    def _class(self, label: str, where: str) -> str:
        if not self.classes:
            return label
        label = plain_label(label)
        if label not in self.classes:
            known = ", ".join(sorted(self.classes))
            cure = f"classes in {self.manifest.path.name} knows {known}: add it, or mend the label"
            self.found.add("label that classes does not mention", f"{where}: {label}", cure)
        return self.classes.get(label, label)

    def _usable(self, path: str) -> bool:
        """Whether a file or folder may be an image or mask; what is none is reported."""
        full, outside = os.path.join(self.manifest.root, path), leaves_folder(path)
        there = not outside and os.path.exists(full)
        named = path.lower().endswith((*SUFFIXES, *VOLUME_SUFFIXES))
        if outside:
            what = "path that leaves the federation's folder"
            cure = (
                "paths are relative and stay in the federation's folder: move the file or mend it"
            )
        elif there and (named or os.path.isdir(full)):
            return True
        elif there:
            what = "file that is no image by its name"
            cure = f"images and masks are {ALL_READABLE}: mend the pattern or the file"
        elif os.path.islink(full):
            what, cure = "link that leads nowhere", "mend the link or take it away"
        else:
            what = "missing file"
            cure = "paths start at the folder of the list: mend the list or put the file there"
        self.found.add(what, path, cure)
        return False

    # --- by patterns ---

    def _find(self, text: str, key: str) -> dict[str, Stars]:
        """Files that a pattern matches and that may be images; what is none is reported."""
        found = Pattern(text, f"{self.key}.{key}").find(self.manifest.root)
        matches = {path: stars for path, stars in found if self._usable(path)}
        if not matches:
            cure = f"mend {self.key}.{key} in {self.manifest.path.name}, or put the files there"
            self.found.add("pattern that matches no image", text, cure)
        return matches

    def _pairs(self) -> Iterator[Row]:
        labels = self.block.labels
        patterns = labels if isinstance(labels, dict) else {"": str(labels)}
        keys = {name: f"labels.{name}" if name else "labels" for name in patterns}
        files = {name: self._find(text, keys[name]) for name, text in patterns.items()}
        # Where masks lie beside their images, *.png matches both: what labels matches is no image.
        taken = {path for matches in files.values() for path in matches}
        found = self._find(str(self.block.images), "images")  # the block was checked to have both
        images = {path: stars for path, stars in found.items() if path not in taken}
        masks = {
            name: self._by_stars(files[name], images, keys[name], text)
            for name, text in patterns.items()
        }
        for image, stars in images.items():
            if all(image in mask for mask in masks.values()):
                own = {name: mask[image] for name, mask in masks.items()}
                yield _starred(image, own.get("", own), stars)

    def _by_stars(
        self, masks: dict[str, Stars], images: dict[str, Stars], key: str, text: str
    ) -> dict[str, str]:
        """Image -> its mask: as many stars as both patterns have, from the end, must agree."""
        if not masks or not images:
            return {}
        shared = min(len(next(iter(images.values()))), len(next(iter(masks.values()))))
        by_stars: dict[Stars, str] = {}
        for path, stars in masks.items():
            first = by_stars.setdefault(stars[len(stars) - shared :], path)
            if first != path:
                cure = f"make {self.key}.{key} match one of them, or take one away"
                self.found.add("two masks for one image", f"{first} and {path}", cure)
        pairs: dict[str, str] = {}
        owners: dict[str, str] = {}
        for image, stars in images.items():
            mask = by_stars.get(stars[len(stars) - shared :])
            if mask is None:
                cure = f"put its mask where {self.key}.{key} looks ({text}), or take the image away"
                self.found.add("image without a mask", image, cure)
                continue
            pairs[image] = mask
            if owners.setdefault(mask, image) != image:
                where = f"{mask} for {owners[mask]} and {image}"
                cure = f"give {self.key}.{key} as many stars as it takes to tell images apart"
                self.found.add("one mask for two images", where, cure)
        for mask in sorted(set(by_stars.values()) - set(owners)):
            cure = f"put its image where {self.key}.images looks, or take the mask away"
            self.found.add("mask without an image", mask, cure)
        return pairs

    def _in_folders(self) -> Iterator[Row]:
        if self.block.labels != BY_FOLDER:
            cure = f"write labels: {BY_FOLDER}, or list: a CSV with a column for the class"
            self.found.add("classification without labels", f"{self.key}.labels", cure)
            return
        for image, stars in self._find(str(self.block.images), "images").items():
            yield _starred(image, PurePosixPath(image).parent.name, stars)


def _starred(image: str, label: str | dict[str, str], stars: Stars) -> Row:
    """The stars name the patient if nothing else does: the splits of a plain folder then stay."""
    return Row("", {"image": image, "label": label}, without_suffix("/".join(stars) or image))


def _patient_pattern(pattern: str | None, key: str) -> re.Pattern[str] | None:
    if pattern is None:
        return None
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{key} = {pattern!r}: not a regular expression ({error})") from None
    if compiled.groups < 1:
        raise ConfigError(
            f"{key} = {pattern!r}: put the patient's part of the name into brackets, "
            r"such as ^(.+)_\d+$"
        )
    return compiled


# --- lists --------------------------------------------------------------------------------------


def read_table(path: Path, needed: Sequence[str] = ()) -> tuple[list[str], list[Row]]:
    """The columns and rows of a CSV."""
    with _reading(path, "CSV in UTF-8"), path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, skipinitialspace=True)
        columns = reader.fieldnames = [name.strip() for name in reader.fieldnames or []]
        rows = []
        for row in reader:  # cells beyond the last column have no name
            cells = {name: (text or "").strip() for name, text in row.items() if name is not None}
            rows.append(Row(f"line {reader.line_num}", cells))
    missing = [name for name in needed if name not in columns]
    if missing:
        raise DataError(
            f"{path}: the column {', '.join(missing)} is missing; needed are {', '.join(needed)}, "
            f"separated by commas; found: {', '.join(columns) or 'an empty file'}"
        )
    return columns, rows


def _datalist(path: Path) -> list[Row]:
    with _reading(path, "JSON"):
        content = json.loads(path.read_text(encoding="utf-8"))
    parts = {"": content} if isinstance(content, list) else content
    rows = []
    for part, entries in parts.items() if isinstance(parts, dict) else ():
        if (part and part not in PARTS) or not isinstance(entries, list):
            continue  # a datalist also has a name, a licence, ...
        for number, entry in enumerate(entries):
            where = f"{part or 'entry'} {number}"
            given = {"split": part} if part else {}
            rows.append(Row(where, given | _entry(entry, f"{path}, {where}")))
    if not rows:
        raise DataError(
            f"{path}: no entries; a datalist has lists called training, validation and test, whose "
            'entries look like {"image": ..., "label": ...}'
        )
    return rows


def _entry(entry: Any, where: str) -> dict[str, Any]:
    """The cells of an entry; the label is None where there is none, as in a challenge's test."""
    if isinstance(entry, str):
        return {"image": entry, "label": None}
    if not isinstance(entry, dict):
        raise DataError(f'{where} is {entry!r}; an entry looks like {{"image": ..., "label": ...}}')
    cells = {k: str(v).strip() for k, v in entry.items() if not isinstance(v, dict | list)}
    label = entry.get("label")
    return cells | ({"label": label or None} if label is None or isinstance(label, dict) else {})


@contextmanager
def _reading(path: Path, kind: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; a site's list is a CSV or datalist") from None
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as {kind} ({error})") from None


# --- splits from a file -----------------------------------------------------------------------


def _with_splits(manifest: Manifest, items: list[Item], found: Findings) -> list[Item]:
    name = manifest.content.split.file
    if name is None or not items:
        return items
    Pattern(name, "split.file")  # refuses what leaves the folder
    given: dict[tuple[str, str], str] = {}
    for row in read_table(manifest.root / name, needed=("site", "image", "split"))[1]:
        site, image, split = (row.cells[key] for key in ("site", "image", "split"))
        if given.setdefault((site, image), split) != split:
            where = f"{name}, {row.where}: {site}: {image}"
            found.add("image with two splits", where, "keep one row an image")
    there = {(item.site, item.image) for item in items}
    sites = {item.site for item in items}
    for site, image in given:
        if site in sites and (site, image) not in there:
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
