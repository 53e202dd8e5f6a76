"""What CSV files beside the images say: patients, classes, or the whole list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from konsil.data.listing import PARTS, read_table
from konsil.data.sources import without_suffix
from konsil.errors import DataError
from konsil.prepare.guess.draft import Draft, SiteDraft, site_name
from konsil.prepare.guess.files import Unit
from konsil.prepare.guess.rules import called, class_order, joined, says

NEARLY_ALL = 0.95
MOST_CLASSES = 20
TRIED = 50  # rows, to see what a column holds
Cells = Mapping[str, str]


@dataclass(frozen=True)
class Table:
    """A CSV and what its columns seem to be."""

    path: str
    columns: list[str]
    rows: list[Cells]
    site: str | None
    patient: str | None
    split: str | None

    @property
    def folder(self) -> PurePosixPath:
        """The folder that its paths begin at."""
        return PurePosixPath(self.path).parent

    def of_site(self, site: str) -> list[Cells]:
        """The rows of a site: by its column, or by where the table lies, or all."""
        if self.site is not None:
            return [row for row in self.rows if site_name(row[self.site]) == site]
        home = self.folder.name
        return self.rows if not home or site_name(home) == site else []

    def label(self) -> str | None:
        """The one column that may hold a class: called so, or else the only one of few values."""
        taken = {self.site, self.patient, self.split}
        few = [c for c in self.columns if c not in taken and self._few_values(c)]
        named = [c for c in few if joined(c) in called("class column")] or few
        return named[0] if len(named) == 1 else None

    def _few_values(self, column: str) -> bool:
        values = Counter(row[column] for row in self.rows)
        return 2 <= len(values) <= min(MOST_CLASSES, len(self.rows) // 3) and "" not in values

    def naming(self, site: SiteDraft) -> tuple[str, dict[str, Cells]] | None:
        """The column that names a site's images, and the row of each image by its path."""
        by_stem = {unit.stem: unit.path for unit in site.images}
        if len(by_stem) < len(site.images):
            return None  # names that occur twice tell nothing
        for column in self.columns:
            found: dict[str, Cells] = {}
            for row in self.of_site(site.name):
                path = by_stem.get(PurePosixPath(without_suffix(row[column].strip())).name)
                found |= {path: row} if path else {}
            if found and len(found) >= NEARLY_ALL * len(site.images):
                return column, found
        return None

    def listing(self, site: str, image: str, label: str) -> dict[str, Any]:
        """A site's block that lists its images by this table."""
        listed: dict[str, Any] = {"file": self.path}
        if self.site is not None:
            listed["where"] = {self.site: self.of_site(site)[0][self.site]}
        optional = {"patient": self.patient, "split": self.split}
        known = {key: column for key, column in optional.items() if column is not None}
        return {"list": {**listed, "image": image, "label": label, **known}}


def read_tables(root: Path, paths: Sequence[str]) -> list[Table]:
    """All CSV files with rows in them."""
    tables = []
    for path in paths:
        try:
            columns, rows = read_table(root / path)
        except DataError:  # no CSV of ours; nothing depends on it
            continue
        if rows:
            tables.append(_table(path, columns, [row.cells for row in rows]))
    return tables


def _table(path: str, columns: list[str], rows: list[Cells]) -> Table:
    site, patient, split = (
        next((c for c in columns if joined(c) in called(f"{role} column")), None)
        for role in ("site", "patient", "split")
    )
    if split is not None and not all(row[split].lower() in PARTS for row in rows):
        split = None
    return Table(path, columns, rows, site, patient, split)


# --- a table that names the images --------------------------------------------------------------


def patients_in(tables: Sequence[Table], site: SiteDraft) -> tuple[str, dict[str, str]]:
    """The table that knows a site's patients, and the patient of each image by its path."""
    for table in tables:
        named = table.naming(site) if table.patient is not None else None
        if named is not None:
            return table.path, {path: row[str(table.patient)] for path, row in named[1].items()}
    return "", {}


def as_list(tables: Sequence[Table], site: SiteDraft, label: str | None = None) -> bool:
    """Let a table list a site's images instead of a pattern; False if it cannot say their paths.

    `label` is the column of the class; without it the masks keep their places.
    """
    for table in tables:
        named = table.naming(site)
        if named is None:
            continue
        image = _template(table, named[0], site.images)
        mask = label or _template(table, named[0], site.masks.get("", []))
        if image is not None and mask is not None:
            site.keys = table.listing(site.name, image, mask)
            site.images = [unit for unit in site.images if unit.path in named[1]]
            return True
    return False


def _template(table: Table, column: str, units: Sequence[Unit]) -> str | None:
    """Where the files lie, with {column} for their names, seen from the table's folder."""
    places = {(unit.dirs, unit.suffix) for unit in units}
    folder = PurePosixPath(*units[0].dirs) if units else PurePosixPath()
    if len(places) != 1 or not folder.is_relative_to(table.folder):
        return None
    with_suffix = all(without_suffix(row[column]) != row[column] for row in table.rows)
    name = f"{{{column}}}{'' if with_suffix else units[0].suffix}"
    return (folder.relative_to(table.folder) / name).as_posix()


def classes_from_names(tables: Sequence[Table], sites: Sequence[SiteDraft]) -> Draft | None:
    """The sites whose images a table names, with a column for the class; None if there is none."""
    for table in tables:
        label = table.label()
        listed = [site for site in sites if label and as_list([table], site, label)]
        if listed:
            draft = Draft("classification", listed)
            _add_classes(draft, table, str(label))
            left = [site.name for site in sites if site not in listed]
            why = f"was left out, for {table.path} does not name it"
            draft.to_do += [f"{name} {why}" for name in left]
            return draft
    return None


# --- a table that lists everything --------------------------------------------------------------


def from_paths(root: Path, tables: Sequence[Table], task: str | None) -> Draft | None:
    """The federation of a table with a column of images' paths, and masks' paths or classes."""
    for table in tables:
        paths = [c for c in table.columns if _holds_paths(root, table, c)]
        mask = next((c for c in paths if says("mask", c)), None)
        image = next((c for c in paths if not says("mask", c)), None)
        if image and mask and task != "classification":
            return _listed(root, Draft("segmentation"), table, image, mask)
        if image and table.label() and task != "segmentation":
            return _listed(root, Draft("classification"), table, image, str(table.label()))
    return None


def _holds_paths(root: Path, table: Table, column: str) -> bool:
    cells = [row[column].strip() for row in table.rows[:: max(1, len(table.rows) // TRIED)]]
    folder = root / table.folder
    return all(without_suffix(cell) != cell and (folder / cell).is_file() for cell in cells)


def _listed(root: Path, draft: Draft, table: Table, image: str, label: str) -> Draft:
    home = table.folder.name or root.resolve().name
    names = [row[table.site] for row in table.rows] if table.site else [home]
    draft.found.append(f"{table.path} lists the images")
    for name in sorted(set(map(site_name, names))):
        rows = table.of_site(name) if table.site else table.rows
        images, labels = (
            [(table.folder / row[column].strip()).as_posix() for row in rows]
            for column in (image, label)
        )
        site = SiteDraft(name, table.listing(name, image, label), list(map(Unit.of, images)))
        site.masks = {"": list(map(Unit.of, labels))} if draft.task == "segmentation" else {}
        draft.sites.append(site)
    if draft.task == "classification":
        _add_classes(draft, table, label)
    return draft


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
