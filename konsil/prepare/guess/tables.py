"""What CSV files beside the images say: patients, or the whole list."""

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
from konsil.prepare.guess.walk import Contents, Unit
from konsil.prepare.guess.words import class_order, joined, says_mask, these

SITE = these("site center centre hospital clinic institution institute client vendor")
PATIENT = these("patient patientid patientname subject subjectid pid mrn")
SPLIT = these("split set subset partition part")
LABEL = these(
    "label class target diagnosis category y disease grade outcome tumor tumour glaucoma "
    "malignant malignancy dx"
)
NEARLY_ALL = 0.95
MOST_CLASSES = 20
TRIED = 50  # rows, to see what a column holds


@dataclass(frozen=True)
class Table:
    """A CSV and what its columns seem to be."""

    path: str
    columns: list[str]
    rows: list[Mapping[str, str]]
    site: str | None
    patient: str | None
    split: str | None

    def of_site(self, site: str) -> list[Mapping[str, str]]:
        """The rows of a site: by its column, or by where the table lies, or all."""
        if self.site is not None:
            return [row for row in self.rows if site_name(row[self.site]) == site]
        folder = PurePosixPath(self.path).parent.name
        return self.rows if not folder or site_name(folder) == site else []

    def where(self, site: str) -> dict[str, Any]:
        """The condition that chooses a site's rows."""
        if self.site is None:
            return {}
        value = next(row[self.site] for row in self.of_site(site))
        return {"where": {self.site: value}}

    def labels(self) -> list[str]:
        """Columns that may hold a class: those called so, or else all with few values."""
        taken = {self.site, self.patient, self.split}
        few = [c for c in self.columns if c not in taken and self._few_values(c)]
        return [c for c in few if joined(c) in LABEL] or few

    def _few_values(self, column: str) -> bool:
        values = Counter(row[column] for row in self.rows)
        return 2 <= len(values) <= min(MOST_CLASSES, len(self.rows) // 3) and "" not in values


def read_tables(root: Path, contents: Contents) -> list[Table]:
    """All CSV files with rows in them."""
    tables = []
    for path in contents.tables:
        try:
            columns, rows = read_table(root / path)
        except DataError:  # no CSV of ours; nothing depends on it
            continue
        cells = [row.cells for row in rows]
        if cells:
            tables.append(_table(path, columns, cells))
    return tables


def _table(path: str, columns: list[str], rows: list[Mapping[str, str]]) -> Table:
    def called(names: frozenset[str]) -> str | None:
        return next((c for c in columns if joined(c) in names), None)

    split = called(SPLIT)
    if split is not None and not all(row[split].lower() in PARTS for row in rows):
        split = None
    return Table(path, columns, rows, called(SITE), called(PATIENT), split)


# --- a table that names the images --------------------------------------------------------------


def names_of(table: Table, site: SiteDraft) -> tuple[str, dict[str, Mapping[str, str]]] | None:
    """The column that names a site's images, and the row of each image by its path."""
    rows = table.of_site(site.name)
    by_stem = {unit.stem: unit.path for unit in site.images}
    if len(by_stem) < len(site.images):
        return None  # names that occur twice tell nothing
    for column in table.columns:
        found = {by_stem[s]: row for row in rows if (s := _stem(row[column])) in by_stem}
        if found and len(found) >= NEARLY_ALL * len(site.images):
            return column, found
    return None


def _stem(cell: str) -> str:
    return PurePosixPath(without_suffix(cell.strip())).name


def patients_in(tables: Sequence[Table], draft: Draft) -> dict[str, tuple[str, dict[str, str]]]:
    """Site -> the table that knows its patients, and the patient of each image by its path."""
    truths = {}
    for site in draft.sites:
        for table in tables:
            named = names_of(table, site) if table.patient is not None else None
            if named is not None:
                patients = {path: row[str(table.patient)] for path, row in named[1].items()}
                truths[site.name] = table.path, patients
    return truths


def as_list(tables: Sequence[Table], site: SiteDraft, label: str | None = None) -> bool:
    """Let a table list a site's images instead of a pattern; False if it cannot say their paths.

    `label` is the column of the class; without it the masks keep their places.
    """
    for table in tables:
        named = names_of(table, site)
        if named is None or (label is not None and label not in table.columns):
            continue
        column, found = named
        image = _template(table, column, site.images)
        masks = site.masks.get("", [])
        mask = label or _template(table, column, masks)
        if image is None or mask is None:
            continue
        site.keys = {"list": _listed(table, site.name, image, mask)}
        site.images = [unit for unit in site.images if unit.path in found]
        site.settings.pop("patient", None)
        return True
    return False


def _listed(table: Table, site: str, image: str, label: str) -> dict[str, Any]:
    listed = {"file": table.path, **table.where(site), "image": image, "label": label}
    optional = {"patient": table.patient, "split": table.split}
    return listed | {key: column for key, column in optional.items() if column is not None}


def _template(table: Table, column: str, units: Sequence[Unit]) -> str | None:
    """Where the files lie, with {column} for their names, seen from the table's folder."""
    if len({(unit.dirs, unit.suffix) for unit in units}) != 1:
        return None
    with_suffix = all(without_suffix(row[column]) != row[column] for row in table.rows)
    folder = PurePosixPath("/".join(units[0].dirs))
    beside = PurePosixPath(table.path).parent
    if not folder.is_relative_to(beside):
        return None
    name = f"{{{column}}}{'' if with_suffix else units[0].suffix}"
    return (folder.relative_to(beside) / name).as_posix()


def classes_from_names(tables: Sequence[Table], sites: Sequence[SiteDraft]) -> Draft | None:
    """The sites whose images a table names, with a column for the class; None if there is none."""
    for table in tables:
        labels = table.labels()
        named = [site for site in sites if names_of(table, site) is not None]
        if len(labels) != 1 or not named:
            continue
        draft = Draft("classification", [s for s in named if as_list([table], s, labels[0])])
        if draft.sites:
            add_classes(draft, {row[labels[0]].strip() for row in table.rows})
            draft.found.append(f"{table.path} has the classes, in the column {labels[0]}")
            left = [site.name for site in sites if site not in draft.sites]
            draft.to_do += [
                f"{name} was left out, for {table.path} does not name it" for name in left
            ]
            return draft
    return None


# --- a table that lists everything --------------------------------------------------------------


def from_paths(root: Path, tables: Sequence[Table], task: str | None) -> Draft | None:
    """The federation of a table with a column of images' paths, and masks' paths or classes."""
    for table in tables:
        paths = [c for c in table.columns if _holds_paths(root, table, c)]
        masks = [c for c in paths if says_mask(c)]
        images = [c for c in paths if c not in masks]
        if images and masks and task != "classification":
            return _listed_draft(root, table, "segmentation", images[0], masks[0])
        if images and task != "segmentation" and len(table.labels()) == 1:
            return _listed_draft(root, table, "classification", images[0], table.labels()[0])
    return None


def _holds_paths(root: Path, table: Table, column: str) -> bool:
    folder = (root / table.path).parent
    cells = [row[column].strip() for row in table.rows[:: max(1, len(table.rows) // TRIED)]]
    return all(without_suffix(cell) != cell and (folder / cell).is_file() for cell in cells)


def _listed_draft(root: Path, table: Table, task: str, image: str, label: str) -> Draft:
    draft = Draft(task, [])
    names = [row[table.site] for row in table.rows] if table.site else [_home(root, table)]
    for name in sorted(set(map(site_name, names))):
        rows = table.of_site(name) if table.site else table.rows
        site = SiteDraft(name, {"list": _listed(table, name, image, label)})
        site.images = [_unit(table, row[image]) for row in rows]
        if task == "segmentation":
            site.masks = {"": [_unit(table, row[label]) for row in rows]}
        draft.sites.append(site)
    if task == "classification":
        add_classes(draft, {row[label].strip() for row in table.rows})
    draft.found.append(f"{table.path} lists the images")
    return draft


def add_classes(draft: Draft, labels: set[str]) -> None:
    """The classes that a column holds; numbers get a name to be edited."""
    ordered = class_order(labels)
    if not any(label.lstrip("-").isdigit() for label in labels):
        draft.top["classes"] = ordered
        return
    names = {f"class_{label}": [int(label) if label.isdigit() else label] for label in ordered}
    draft.top["classes"] = names
    draft.comments["classes"] = ["(!) Edit the names. The last is the positive one."]
    draft.to_do.append(f"classes: give {', '.join(names)} their names")


def _home(root: Path, table: Table) -> str:
    return PurePosixPath(table.path).parent.name or root.resolve().name


def _unit(table: Table, cell: str) -> Unit:
    path = (PurePosixPath(table.path).parent / cell.strip()).as_posix()
    picture = path.lower().endswith((".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff"))
    return Unit(path, "picture" if picture else "volume")
