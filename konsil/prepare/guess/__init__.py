"""`konsil data init`: a first federation file from a folder as people have it.

It looks at names (`rules.py` is the table of what they may mean), at headers and at a sample of the
files. Whatever it had to guess is marked in the file; what is left to a person, and what was left
out, stands at its head and is said again in `FirstFile.to_do`.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from konsil.data.findings import Findings
from konsil.data.listing import PARTS, Listing, check_splits_given, list_manifest
from konsil.data.manifest import NAME, FederationFile, Manifest
from konsil.data.recipe import mask_files
from konsil.data.sources import Item
from konsil.errors import DataError
from konsil.files import write_text
from konsil.prepare.guess import layouts, tables
from konsil.prepare.guess.content import Masks, add_structures, look_inside, names_of_values
from konsil.prepare.guess.draft import Draft, some_of
from konsil.prepare.guess.files import Contents, look_around
from konsil.prepare.guess.rules import joined

__all__ = ["FirstFile", "write_first_file"]

Report = Callable[[str, int, int], None]
TASKS = ("segmentation", "classification")
SPLIT = {"train": 0.5, "val": 0.25, "test": 0.25, "seed": 0}
SPLITS_FILE = "federation-splits.csv"


@dataclass(frozen=True)
class FirstFile:
    """What was written, what it says, and what is left to a person."""

    path: Path
    found: list[str]
    to_do: list[str]

    def in_words(self) -> str:
        """What was found and what is left to do, for the terminal."""
        found = [f"  {line}" for line in self.found]
        left = [f"  - {line}" for line in self.to_do]
        after = f"then: konsil data check {self.path.parent}"
        return "\n".join([f"{self.path}: written", *found, "left to you:", *left, after])


def write_first_file(
    folder: Path,
    task: str | None = None,
    overwrite: bool = False,
    report: Report | None = None,
    images: str | None = None,
    masks: Sequence[str] = (),
) -> FirstFile:
    """Write `federation.yaml` into a folder from what lies there.

    `images` and `masks` are patterns that say which files are meant, {site} in them standing for
    the site; nothing is guessed of that then. `report(what, done, total)` counts the sites whose
    files were looked into. Raises DataError or ConfigError, and then nothing is written.
    """
    path = folder / NAME
    if task not in (None, *TASKS):
        raise DataError(f"task = {task}: it is one of {', '.join(TASKS)}")
    contents = look_around(folder)
    there = [p for p in (path, path.with_name(SPLITS_FILE)) if p.exists()]
    if there and not overwrite:
        raise DataError(
            f"{there[0]}: is there already; edit it, or give --overwrite to write it anew"
        )
    lists = tables.read_tables(folder, contents.tables)
    if images is None and not masks:
        draft = _guessed(folder, contents, lists, task)
    else:
        draft = layouts.as_given(folder, task, images, masks)
    _list(path, draft, Findings())
    _look_inside(folder, contents, draft, report)
    tables.add_patients(draft, lists)
    found = Findings()
    listing = _list(path, draft, found)
    draft.to_do += _problems(found, path.name)
    splits = _splits_of_folders(draft, listing.items)
    _describe(draft, contents, listing)
    _write(path, draft, splits)
    return FirstFile(path, draft.found, draft.to_do)


def _list(path: Path, draft: Draft, found: Findings) -> Listing:
    """What the file leads to, as `konsil data check` will see it."""
    content = FederationFile.model_validate(draft.content())
    listing = list_manifest(Manifest(path, content), None, found)
    for site in draft.sites:
        site.items = [item for item in listing.items if item.site == site.name]
    return listing


def _problems(found: Findings, where: str) -> list[str]:
    try:
        found.raise_if_any(where)
    except DataError as error:
        return [str(error)]
    return []


def _write(path: Path, draft: Draft, splits: Sequence[Item]) -> None:
    table = io.StringIO(newline="")
    rows = csv.writer(table)
    rows.writerow(["site", "image", "split"])
    rows.writerows([item.site, item.image, item.split] for item in splits)
    try:
        if splits:
            write_text(path.with_name(SPLITS_FILE), table.getvalue())
        write_text(path, draft.as_yaml())
    except OSError as error:
        folder = path.parent
        raise DataError(
            f"{folder}: cannot be written ({error.strerror}). Make a folder of your own with links "
            f"to the sites, and give that: mkdir federation && ln -s {folder.resolve()}/* "
            "federation/ && konsil data init federation"
        ) from None


# --- what it is ---------------------------------------------------------------------------------


def _guessed(
    folder: Path, contents: Contents, lists: Sequence[tables.Table], task: str | None
) -> Draft:
    """The way of reading the folder that works: a list, masks, folders of classes."""
    if not contents.units:
        others = [path for paths in contents.left_out.values() for path in paths]
        seen = f" Found: {some_of(others)}." if others else ""
        raise DataError(
            f"{folder}: no images below this folder.{seen} Konsil reads PNG, JPEG, BMP, TIFF, "
            "NIfTI, MetaImage, NRRD and DICOM"
        )
    draft = tables.from_paths(folder, lists, task)
    roles = layouts.sort_out(contents.units)
    images = roles["image"]
    if draft is None and task != "classification":
        draft = layouts.segmentation(folder, roles, contents.left_out)
    if draft is None and task != "segmentation":
        draft = layouts.classification(folder, images) or tables.classes_from_names(
            lists, layouts.unlabelled_sites(folder, images)
        )
    if draft is None:
        raise DataError(_not_understood(folder, contents, task))
    for unit in roles["unlabelled"]:
        contents.left_out["images without labels, not used"].append(unit.path)
    return draft


def _not_understood(folder: Path, contents: Contents, task: str | None) -> str:
    step = max(1, len(contents.units) // 4)
    examples = "\n".join(f"    {unit.path}" for unit in contents.units[::step][:4])
    wanted = "" if task is None else f" for {task}"
    return (
        f"{folder}: how these {len(contents.units)} files are meant{wanted} was not understood, "
        f"for example\n{examples}\n  Understood are, in one folder a site: images/ and masks/; "
        "case01.png with case01_mask.png beside it; one folder a class; one folder a patient with "
        "a mask in it; or a CSV with columns of paths. Or say which files are meant, as in\n"
        f"    konsil data init {folder} --images '{{site}}/photos/*.png' "
        "--masks '{site}/drawn/*_m.png'\n  or write the file yourself: docs/data.md"
    )


# --- what is in it ------------------------------------------------------------------------------


def _look_inside(root: Path, contents: Contents, draft: Draft, report: Report | None) -> None:
    """Open a sample of every site's files and write down what follows from it."""
    draft.top |= {"channels": 1, "split": SPLIT}
    draft.comments["split"] = ["Drawn by patient within each site."]
    descriptions = {unit.path: unit.descriptions for unit in contents.units}
    masks: dict[str, Masks] = {}
    for done, site in enumerate(draft.sites, 1):
        site.settings |= _series([descriptions.get(item.image, ()) for item in site.items])
        seen = look_inside(root, draft, site)
        masks |= {} if seen is None else {site.name: seen}
        if report is not None:
            report("sites looked into", done, len(draft.sites))
    if draft.task == "segmentation":
        add_structures(draft, masks, names_of_values(root, contents))


def _series(descriptions: Sequence[Sequence[str]]) -> dict[str, str]:
    """The description that chooses one series in every folder that holds several."""
    several = [set(own) for own in descriptions if own]
    common = sorted(set.intersection(*several) - {""}) if several else []
    chosen = [text for text in common if "t2" in text.lower()] or common
    return {"series": f"^{re.escape(chosen[0])}$"} if chosen else {}


def _splits_of_folders(draft: Draft, items: Sequence[Item]) -> list[Item]:
    """The items with the splits that folders called train, val and test say, if all do."""
    divided = [replace(item, split=_split(item)) for item in items]
    without = [item.image for item in divided if not item.split]
    if len(without) == len(items) or any(item.split for item in items):
        return []  # nothing is said, or a list says it
    found = Findings()
    check_splits_given(divided, found)
    problems = _problems(found, "folders called train, val and test")
    if without:
        problems = [f"They say nothing of {without[0]}, for example"]
    if problems:
        draft.to_do.append(f"splits are drawn, not taken from folders. {problems[0]}")
        return []
    draft.top["split"] = {"file": SPLITS_FILE}
    draft.comments["split"] = ["From the folders; what they leave out is cut from train."]
    draft.found.append(f"folders say which images train, validate and test: {SPLITS_FILE}")
    return divided


def _split(item: Item) -> str:
    names = [PARTS[joined(name)] for name in item.image.split("/")[:-1] if joined(name) in PARTS]
    return names[-1] if names else ""


# --- what it comes to ---------------------------------------------------------------------------


def _describe(draft: Draft, contents: Contents, listing: Listing) -> None:
    lines = [f"{draft.task}, {_count(len(draft.sites), 'site')}"]
    for site in draft.sites:
        kind = "image" if site.pictures else "volume"
        lines.append(f"{site.name}: {_count(len(site.items), kind)}")
        if site.name in listing.real_patients:
            lines[-1] += f" of {_count(len({item.patient for item in site.items}), 'patient')}"
        if draft.task == "classification":
            classes = Counter(item.label for item in site.items)
            lines[-1] += f" ({', '.join(f'{n} {label}' for label, n in sorted(classes.items()))})"
    draft.found[:0] = lines
    if len(draft.sites) == 1:
        draft.to_do.append("one site only: if these images come from several, put each in a folder")
    said = {path for paths in contents.left_out.values() for path in paths}
    for item in listing.items:
        said |= {item.image, *mask_files(item)}
    for unit in contents.units:
        if unit.path not in said and "/".join(unit.dirs) not in said:
            contents.left_out["not used, because nothing goes with it"].append(unit.path)
    draft.to_do += [f"{why}: {some_of(paths)}" for why, paths in contents.left_out.items()]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
