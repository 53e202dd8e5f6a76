"""A federation from a CSV that lists its images; nothing is decoded yet."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from konsil.data.findings import Findings
from konsil.data.sources import (
    READABLE,
    SPLITS,
    SUFFIXES,
    Item,
    Patients,
    check_names,
    choose_sites,
)
from konsil.errors import DataError


def list_csv(
    path: Path, task: str, wanted: Sequence[str] | None, patients: Patients
) -> tuple[list[Item], bool]:
    """The items of a CSV with the columns site, image, label and perhaps patient and split.

    Also whether it has a column for the patients.
    """
    found = Findings()
    rows = _read_rows(path)
    listed = [item for line, row in rows if (item := _row_item(line, row, patients, found))]
    found.raise_if_any(path)
    sites = choose_sites({item.site for item in listed}, wanted, path)
    check_names(sites, found)
    items = [item for item in listed if item.site in sites]
    _check_files(path.parent, items, task, found)
    check_splits_given(items, found)
    check_no_split_empty(items, found)
    found.raise_if_any(path)
    return items, "patient" in rows[0][1]


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
    image = Path(os.path.normpath(cells["image"])).as_posix()
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


def check_no_split_empty(items: Sequence[Item], found: Findings) -> None:
    """If one is given, all three are."""
    if not any(item.split for item in items):
        return
    filled = {(item.site, item.split) for item in items}
    for site in sorted({item.site for item in items}):
        for split in SPLITS:
            if (site, split) not in filled:
                cure = "every site needs images to train, to validate and to test"
                found.add("site with an empty split", f"{site}: {split}", cure)
