"""Which part of a file's name is the patient, if names tell."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from konsil.data.sources import without_suffix
from konsil.prepare.guess.draft import Draft, SiteDraft
from konsil.prepare.guess.rules import PATIENTS
from konsil.prepare.guess.tables import Table

FEWEST = 3  # patients of a site: one each to train, to validate and to test
IMAGES_EACH = 1.5  # on average, or a pattern says nothing
LARGEST = 0.6  # of a site's images, by one patient


def add_patients(draft: Draft, tables: Sequence[Table]) -> None:
    """A pattern for every site whose names tell, or the table that knows better."""
    agreeing: set[str] = set()  # tables
    guessed: list[SiteDraft] = []
    in_vain: list[str] = []
    for site in draft.sites:
        named = [(t, t.naming(site)[1]) for t in tables if "patient" in t.roles]
        table, rows = next(((t, rows) for t, rows in named if rows), (None, {}))
        truth = {path: row[table.roles["patient"]] for path, row in rows.items()} if table else {}
        if "patient" not in site.settings and "list" not in site.keys:
            site.settings |= _pattern(site, truth)
            if table and "patient" not in site.settings and len({*truth.values()}) < len(truth):
                _use_table(draft, site, table)
        if "patient" not in site.settings:
            in_vain += [] if table else [site.name]
        elif table:
            agreeing.add(table.path)
        else:
            guessed.append(site)
    _comment(draft, ", ".join(sorted(agreeing)), guessed, in_vain)


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
    paths = [item.image for item in site.items]
    if truth and len(set(truth.values())) == len(truth):
        return {}  # every image is another patient, which needs no pattern
    for pattern, _ in PATIENTS:
        matches = {path: re.search(pattern, _stem(path)) for path in paths}
        groups = {path: match.group(1) for path, match in matches.items() if match}
        if len(groups) < len(paths):
            continue
        known = {path: groups[path] for path in truth}
        if _alike(known, truth) if truth else _makes_sense(groups):
            return {"patient": pattern}
    return {}


def _stem(path: str) -> str:
    return PurePosixPath(without_suffix(path)).name


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


def _comment(
    draft: Draft, agreeing: str, guessed: Sequence[SiteDraft], in_vain: Sequence[str]
) -> None:
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
