"""`konsil data init`: a first federation file from a folder as people have it.

It looks at names, at headers and at a sample of the files. Whatever it had to guess is marked in
the file and said again in `FirstFile.to_do`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from konsil.data.findings import Findings
from konsil.data.listing import Listing, list_manifest
from konsil.data.manifest import NAME, FederationFile, Manifest
from konsil.errors import DataError
from konsil.files import write_text
from konsil.prepare.guess.draft import Draft, some_of
from konsil.prepare.guess.inside import look_inside
from konsil.prepare.guess.layout import classification, loose_sites, segmentation
from konsil.prepare.guess.roles import sort_out
from konsil.prepare.guess.splits import FILE as SPLITS_FILE
from konsil.prepare.guess.splits import splits_of_folders, splits_table
from konsil.prepare.guess.tables import Table, classes_from_names, from_paths, read_tables
from konsil.prepare.guess.text import as_yaml
from konsil.prepare.guess.walk import Contents, walk

__all__ = ["FirstFile", "write_first_file"]

Report = Callable[[str, int, int], None]
TASKS = ("segmentation", "classification")


@dataclass(frozen=True)
class FirstFile:
    """What was written, what it says, and what is left to a person."""

    path: Path
    found: list[str]
    to_do: list[str]

    def in_words(self) -> str:
        """For the terminal."""
        found = [f"  {line}" for line in self.found]
        left = [f"  - {line}" for line in self.to_do]
        after = f"then: konsil data check {self.path.parent}"
        return "\n".join([f"{self.path}: written", *found, "left to you:", *left, after])


def write_first_file(
    folder: Path, task: str | None = None, overwrite: bool = False, report: Report | None = None
) -> FirstFile:
    """Write `federation.yaml` into a folder from what lies there.

    `report(what, done, total)` counts the sites whose files were looked into. Raises DataError, and
    then nothing is written.
    """
    path = folder / NAME
    if task not in (None, *TASKS):
        raise DataError(f"task = {task}: it is one of {', '.join(TASKS)}")
    contents = walk(folder)
    _refuse_to_replace(path, overwrite)
    tables = read_tables(folder, contents)
    draft = _draft(folder, contents, tables, task)
    look_inside(folder, contents, tables, draft, report)
    draft.settle()
    listing = _list(path, draft)
    splits = splits_of_folders(draft, listing.items)
    _describe(draft, contents, listing)
    try:
        if splits:
            write_text(folder / SPLITS_FILE, splits_table(splits))
        write_text(path, as_yaml(draft))
    except OSError as error:
        raise DataError(_not_writable(folder, error)) from None
    return FirstFile(path, draft.found, draft.to_do)


def _refuse_to_replace(path: Path, overwrite: bool) -> None:
    there = [p for p in (path, path.with_name(SPLITS_FILE)) if p.exists()]
    if there and not overwrite:
        raise DataError(
            f"{there[0]}: is there already; edit it, or give --overwrite to write it anew"
        )


def _not_writable(folder: Path, error: OSError) -> str:
    return (
        f"{folder}: cannot be written ({error.strerror}). Make a folder of your own with links to "
        f"the sites, and give that: mkdir federation && ln -s {folder.resolve()}/* federation/ && "
        "konsil data init federation"
    )


# --- what it is ---------------------------------------------------------------------------------


def _draft(folder: Path, contents: Contents, tables: Sequence[Table], task: str | None) -> Draft:
    """The way of reading the folder that works: a list, masks, folders of classes."""
    if not contents.units:
        raise DataError(_nothing(folder, contents))
    draft = from_paths(folder, tables, task)
    roles = sort_out(folder, contents.units)
    if draft is None and task != "classification":
        draft = segmentation(folder, roles)
    if draft is None and task != "segmentation":
        draft = classification(folder, roles.images)
    if draft is None and task != "segmentation":
        draft = classes_from_names(tables, loose_sites(folder, roles))
    if draft is None:
        raise DataError(_not_understood(folder, contents, task))
    if roles.unlabelled:
        paths = some_of([unit.path for unit in roles.unlabelled])
        draft.to_do.append(f"images without labels, not used: {paths}")
    return draft


def _nothing(folder: Path, contents: Contents) -> str:
    others = [path for paths in contents.others.values() for path in paths]
    seen = f" Found: {some_of(others)}." if others else ""
    return (
        f"{folder}: no images below this folder.{seen} Konsil reads PNG, JPEG, BMP, TIFF, NIfTI, "
        "MetaImage, NRRD and DICOM"
    )


def _not_understood(folder: Path, contents: Contents, task: str | None) -> str:
    step = max(1, len(contents.units) // 4)
    examples = "\n".join(f"    {unit.path}" for unit in contents.units[::step][:4])
    wanted = "" if task is None else f" for {task}"
    return (
        f"{folder}: how these {len(contents.units)} files are meant{wanted} was not understood, "
        f"for example\n{examples}\n  Understood are, in one folder a site: images/ and masks/; "
        "case01.png with case01_mask.png beside it; one folder a class; one folder a patient with "
        "a mask in it; or a CSV with columns of paths. Or write the file yourself: docs/data.md"
    )


# --- what it comes to ---------------------------------------------------------------------------


def _list(path: Path, draft: Draft) -> Listing:
    """What the file leads to, as `konsil data check` will see it."""
    content = FederationFile.model_validate(yaml.safe_load(as_yaml(draft)))
    found = Findings()
    listing = list_manifest(Manifest(path, content), None, found)
    try:
        found.raise_if_any(path.name)
    except DataError as error:
        draft.to_do.append(str(error))
    return listing


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _describe(draft: Draft, contents: Contents, listing: Listing) -> None:
    images = Counter(item.site for item in listing.items)
    patients = Counter(site for site, _ in {(item.site, item.patient) for item in listing.items})
    kind = "volume" if draft.sites[0].images[0].kind != "picture" else "image"
    lines = [f"{draft.task}, {_count(len(draft.sites), 'site')}"]
    for name in (site.name for site in draft.sites):
        lines.append(f"{name}: {_count(images[name], kind)}")
        if name in listing.real_patients:
            lines[-1] += f" of {_count(patients[name], 'patient')}"
        if draft.task == "classification":
            classes = Counter(item.label for item in listing.items if item.site == name)
            lines[-1] += f" ({', '.join(f'{n} {label}' for label, n in sorted(classes.items()))})"
    draft.found[:0] = lines
    if len(draft.sites) == 1:
        draft.to_do.append("one site only: if these images come from several, put each in a folder")
    for suffix, paths in contents.others.items():
        draft.to_do.append(f"files that are not read ({suffix}): {some_of(paths)}")
    if contents.broken:
        draft.to_do.append(f"links that lead nowhere: {some_of(contents.broken)}")
