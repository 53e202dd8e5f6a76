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
    roles: dict[str, str]  # site, patient, split -> column

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
        """The one column that may hold a class: called so, or else the only one of few values."""
        few = [c for c in self.columns if c not in self.roles.values() and self._few_values(c)]
        named = [c for c in few if joined(c) in called("class")] or few
        return named[0] if len(named) == 1 else None

    def _few_values(self, column: str) -> bool:
        values = Counter(row[column] for row in self.rows)
        return 2 <= len(values) <= min(MOST_CLASSES, len(self.rows) // 3) and "" not in values

    def naming(self, site: SiteDraft) -> tuple[str, dict[str, Cells]]:
        """The column that names a site's images, and the row of each image by its path."""
        by_name = {_name(item.image): item.image for item in site.items}  # names that occur twice
        for column in self.columns:  # tell nothing: then too few are left
            rows = {_name(row[column].strip()): row for row in self.of_site(site.name)}
            found = {path: rows[name] for name, path in by_name.items() if name in rows}
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
        known = {key: self.roles[key] for key in ("patient", "split") if key in self.roles}
        return {"list": {"file": self.path, **where, "image": image, "label": label, **known}}


def _name(path: str) -> str:
    return PurePosixPath(without_suffix(path)).name


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
    roles: dict[str, str] = {}
    for role, words in (("site", "site"), ("patient", "patient"), ("split", "split column")):
        named = [c for c in columns if joined(c) in called(words)]
        if named and (role != "split" or all(r[named[0]].lower() in PARTS for r in rows)):
            roles[role] = named[0]
    return Table(path, columns, rows, roles)


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
        mask = next((c for c in paths if says("mask", c)), None)
        image = next((c for c in paths if not says("mask", c)), None)
        if image and mask and task != "classification":
            return _listed(root, Draft("segmentation"), table, image, mask)
        label = table.label()
        if image and label and task != "segmentation":
            draft = _listed(root, Draft("classification"), table, image, label)
            _add_classes(draft, table, label)
            return draft
    return None


def _holds_paths(root: Path, table: Table, column: str) -> bool:
    cells = [row[column].strip() for row in table.rows[:: max(1, len(table.rows) // TRIED)]]
    folder = root / table.folder
    return all(without_suffix(cell) != cell and (folder / cell).is_file() for cell in cells)


def _listed(root: Path, draft: Draft, table: Table, image: str, label: str) -> Draft:
    home, column = table.folder.name or root.resolve().name, table.roles.get("site")
    names = {site_name(row[column] if column else home) for row in table.rows}
    draft.sites = [SiteDraft(name, table.block(name, image, label)) for name in sorted(names)]
    draft.found.append(f"{table.path} lists the images")
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
