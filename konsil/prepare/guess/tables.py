"""Classes, patients or the whole list from CSV files beside the images; patients from names."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from konsil.data.listing import read_table
from konsil.data.sources import without_suffix
from konsil.errors import DataError
from konsil.prepare.guess.draft import Draft, SiteDraft, site_name
from konsil.prepare.guess.rules import PATIENTS, called, class_order, joined, says

NEARLY_ALL = 0.95
MOST_CLASSES = 20
TRIED = 50  # rows, to see what a column holds
FEWEST = 3  # patients of a site: one each to train, to validate and to test
IMAGES_EACH = 1.5  # on average, or a pattern says nothing
LARGEST = 0.6  # of a site's images, by one patient
Cells = Mapping[str, str]


@dataclass(frozen=True)
class Table:
    """A CSV and what its columns seem to be."""

    path: str
    columns: list[str]
    rows: list[Cells]
    roles: dict[str, str]  # site, patient -> column

    @property
    def folder(self) -> PurePosixPath:
        """The folder that its paths begin at."""
        return PurePosixPath(self.path).parent

    def of_site(self, site: str) -> list[Cells]:
        """The rows of a site: by its column, or by where the table lies, or all."""
        if "site" in self.roles:
            return [row for row in self.rows if site_name(row[self.roles["site"]]) == site]
        home = self.folder.name
        return self.rows if not home or site_name(home) == site else []

    def label(self) -> str | None:
        """The one column that is called like a class and holds few values."""
        named = [c for c in self.columns if joined(c) in called("class")]
        few = [c for c in named if 2 <= len({row[c] for row in self.rows}) <= MOST_CLASSES]
        return few[0] if len(few) == 1 else None

    def naming(self, site: SiteDraft) -> tuple[str, dict[str, Cells]]:
        """The column that names a site's images, and the row of each image by its path."""
        by_name = {_stem(item.image): item.image for item in site.items}
        for column in self.columns:
            rows = {_stem(row[column].strip()): row for row in self.of_site(site.name)}
            found = {path: rows[name] for name, path in by_name.items() if name in rows}
            # names that occur twice in a site count once: they tell nothing
            if found and len(found) >= NEARLY_ALL * len(site.items):
                return column, found
        return "", {}

    def take_over(self, site: SiteDraft, label: str | None = None) -> bool:
        """List a site's images instead of a pattern; False if this cannot say their paths.

        `label` is the column of the class; without it the masks keep their places.
        """
        column, named = self.naming(site)
        image = self._template(column, [item.image for item in site.items]) if named else None
        if label is None and named and site.items[0].label:
            label = self._template(column, [item.label for item in site.items])
        if image is None or label is None:
            return False
        site.keys = self.block(site.name, image, label)
        site.items = [item for item in site.items if item.image in named]
        return True

    def _template(self, column: str, paths: Sequence[str]) -> str | None:
        """Where the files lie, with {column} for their names, seen from the table's folder."""
        places = {(str(PurePosixPath(p).parent), p[len(without_suffix(p)) :]) for p in paths}
        folder, suffix = places.pop()
        if places or not PurePosixPath(folder).is_relative_to(self.folder):
            return None
        with_suffix = all(without_suffix(row[column]) != row[column] for row in self.rows)
        name = f"{{{column}}}{'' if with_suffix else suffix}"
        return (PurePosixPath(folder).relative_to(self.folder) / name).as_posix()

    def block(self, site: str, image: str, label: str) -> dict[str, Any]:
        """A site's block that lists its images by this table."""
        column = self.roles.get("site")
        where = {"where": {column: self.of_site(site)[0][column]}} if column else {}
        patient = {role: name for role, name in self.roles.items() if role == "patient"}
        return {"list": {"file": self.path, **where, "image": image, "label": label, **patient}}


def _stem(path: str) -> str:
    return PurePosixPath(without_suffix(path)).name


def read_tables(root: Path, paths: Sequence[str]) -> list[Table]:
    """All CSV files with rows in them."""
    tables = []
    for path in paths:
        try:
            columns, rows = read_table(root / path)
        except DataError:  # no CSV of ours; nothing depends on it
            continue
        roles = {
            role: next((c for c in columns if joined(c) in called(role)), None)
            for role in ("site", "patient")
        }
        known = {role: column for role, column in roles.items() if column is not None}
        if rows:
            tables.append(Table(path, columns, [row.cells for row in rows], known))
    return tables


# --- a federation of a table ----------------------------------------------------------------------


def classes_from_names(tables: Sequence[Table], sites: Sequence[SiteDraft]) -> Draft | None:
    """The sites whose images a table names, with a column for the class; None if there is none."""
    for table in tables:
        label = table.label()
        listed = [site for site in sites if label and table.take_over(site, label)]
        if listed:
            draft = Draft("classification", listed)
            _add_classes(draft, table, str(label))
            return draft
    return None


def from_paths(root: Path, tables: Sequence[Table], task: str | None) -> Draft | None:
    """The federation of a table with a column of images' paths, and masks' paths or classes."""
    for table in tables:
        paths = [c for c in table.columns if _holds_paths(root, table, c)]
        image = next((c for c in paths if not says("mask", c)), None)
        mask = next((c for c in paths if says("mask", c)), None)
        label = table.label()
        if image and mask and task != "classification":
            draft, label = Draft("segmentation"), mask
        elif image and label and task != "segmentation":
            draft = Draft("classification")
            _add_classes(draft, table, label)
        else:
            continue
        home, column = table.folder.name or root.resolve().name, table.roles.get("site")
        names = {site_name(row[column] if column else home) for row in table.rows}
        draft.sites = [SiteDraft(name, table.block(name, image, label)) for name in sorted(names)]
        draft.found.append(f"{table.path} lists the images")
        return draft
    return None


def _holds_paths(root: Path, table: Table, column: str) -> bool:
    cells = [row[column].strip() for row in table.rows[:: max(1, len(table.rows) // TRIED)]]
    folder = root / table.folder
    return all(without_suffix(cell) != cell and (folder / cell).is_file() for cell in cells)


def _add_classes(draft: Draft, table: Table, column: str) -> None:
    """The classes that a column holds; numbers get a name to be edited."""
    draft.found.append(f"{table.path} has the classes, in the column {column}")
    labels = class_order({row[column].strip() for row in table.rows})
    draft.top["classes"] = labels
    if any(label.lstrip("-").isdigit() for label in labels):
        names = {f"class_{label}": [int(label) if label.isdigit() else label] for label in labels}
        draft.top["classes"] = names
        draft.comments["classes"] = ["(!) Edit the names. The last is the positive one."]
        draft.to_do.append(f"classes: give {', '.join(names)} their names")


# --- patients -----------------------------------------------------------------------------------


def add_patients(draft: Draft, tables: Sequence[Table]) -> None:
    """A pattern for every site whose names tell, or the table that knows better."""
    agreeing: set[str] = set()  # tables
    guessed: list[SiteDraft] = []
    in_vain: list[str] = []
    for site in draft.sites:
        named = [(t, t.naming(site)[1]) for t in tables if "patient" in t.roles]
        table, rows = next(((t, rows) for t, rows in named if rows), (None, {}))
        truth = {path: row[table.roles["patient"]] for path, row in rows.items()} if table else {}
        by_folder = "patient" in site.settings
        if not by_folder and "list" not in site.keys:
            site.settings |= _pattern(site, truth)
        if by_folder or ("patient" in site.settings and not table):
            guessed.append(site)
        elif table is None:
            in_vain.append(site.name)
        elif "patient" in site.settings:
            agreeing.add(table.path)
        elif "list" not in site.keys and len({*truth.values()}) < len(truth):
            _use_table(draft, site, table)
    _say(draft, ", ".join(sorted(agreeing)), guessed, in_vain)


def _use_table(draft: Draft, site: SiteDraft, table: Table) -> None:
    if table.take_over(site):
        draft.found.append(f"{site.name}: the patients are in {table.path}, not in file names")
    else:
        draft.to_do.append(
            f"{site.name}: {table.path} knows the patients, but no pattern in the file names "
            "agrees with it: give a `list` with the columns image, label, patient"
        )


def _pattern(site: SiteDraft, truth: Mapping[str, str]) -> dict[str, str]:
    """The first pattern that divides the images as the table does, or else that makes sense."""
    if truth and len(set(truth.values())) == len(truth):
        return {}  # every image is another patient, which needs no pattern
    for pattern, _ in PATIENTS:
        matches = {item.image: re.search(pattern, _stem(item.image)) for item in site.items}
        groups = {path: match.group(1) for path, match in matches.items() if match}
        known = {path: group for path, group in groups.items() if path in truth}
        fits = _alike(known, truth) if truth else _makes_sense(groups)
        if fits and len(groups) == len(matches):
            return {"patient": pattern}
    return {}


def _alike(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether both divide the same paths into the same groups."""
    pairs = {(one[path], other[path]) for path in one}
    return len(pairs) == len(set(one.values())) == len(set(other.values()))


def _makes_sense(groups: Mapping[str, str]) -> bool:
    """Enough patients, none too large; and `normal/normal_01` repeats the folder."""
    sizes = Counter(groups.values())
    enough = len(sizes) >= FEWEST and len(groups) >= IMAGES_EACH * len(sizes)
    folders = {path: path.rpartition("/")[0] for path in groups}
    return enough and max(sizes.values()) <= LARGEST * len(groups) and not _alike(groups, folders)


def _say(draft: Draft, agreeing: str, guessed: Sequence[SiteDraft], in_vain: list[str]) -> None:
    comments = draft.comments.setdefault("patient", [])
    if agreeing:
        comments.append(f"Agrees with the patients in {agreeing}.")
        draft.found.append(f"the patients in file names agree with {agreeing}")
    if guessed:
        comments.append("(!) Guessed from names: group 1 of the pattern must be the patient.")
        pattern, path = guessed[0].settings["patient"], guessed[0].items[0].image
        match = re.search(pattern, path if "/" in pattern else _stem(path))
        who = match.group(1) if match else "?"
        draft.to_do.append(f"patient: check the pattern; with it {path} is of the patient {who}")
    if in_vain:
        where = "" if len(in_vain) == len(draft.sites) else f" at {', '.join(in_vain)}"
        draft.to_do.append(
            f"patient: no file name tells which images belong to one patient{where}, so every "
            "file counts as its own; if that is wrong, give a pattern or a list"
        )
