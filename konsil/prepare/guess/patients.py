"""Which part of a file's name is the patient, if names tell."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from konsil.prepare.guess.draft import Draft, SiteDraft
from konsil.prepare.guess.rules import PATIENTS
from konsil.prepare.guess.tables import Table, as_list, patients_in

FEWEST = 3  # patients of a site: one each to train, to validate and to test
IMAGES_EACH = 1.5  # on average, or a pattern says nothing
LARGEST = 0.6  # of a site's images, by one patient


def add_patients(draft: Draft, tables: Sequence[Table]) -> None:
    """A pattern for every site whose names tell, or the table that knows better."""
    agreeing: set[str] = set()  # tables
    guessed: list[str] = []  # sites
    in_vain: list[str] = []
    for site in draft.sites:
        table, truth = patients_in(tables, site)
        if "patient" not in site.settings and "list" not in site.keys:
            pattern = _pattern(site, truth)
            if pattern is not None:
                site.settings["patient"] = pattern
            elif len(set(truth.values())) < len(truth):
                _use_table(draft, site, tables, table)
        if "patient" in site.settings and truth:
            agreeing.add(table)
        elif not truth:
            (guessed if "patient" in site.settings else in_vain).append(site.name)
    _comment(draft, sorted(agreeing), guessed, in_vain)


def _use_table(draft: Draft, site: SiteDraft, tables: Sequence[Table], table: str) -> None:
    if as_list(tables, site):
        draft.found.append(f"{site.name}: the patients are in {table}, not in file names")
    else:
        draft.to_do.append(
            f"{site.name}: {table} knows the patients, but no pattern in the file names agrees "
            "with it: give a `list` with the columns image, label, patient"
        )


def _pattern(site: SiteDraft, truth: Mapping[str, str]) -> str | None:
    """The first pattern that divides the images as the table does, or else that makes sense."""
    known = [truth[unit.path] for unit in site.images if unit.path in truth]
    if known and len(set(known)) == len(known):
        return None  # every image is another patient, which needs no pattern
    for pattern, _ in PATIENTS:
        matches = [re.search(pattern, unit.stem) for unit in site.images]
        groups = [match.group(1) for match in matches if match]
        if len(groups) < len(matches):
            continue
        own = [g for g, unit in zip(groups, site.images, strict=True) if unit.path in truth]
        if _same_partition(own, known) if truth else _makes_sense(site, groups):
            return pattern
    return None


def _same_partition(one: Sequence[object], other: Sequence[object]) -> bool:
    pairs = set(zip(one, other, strict=True))
    return len(pairs) == len(set(one)) == len(set(other))


def _makes_sense(site: SiteDraft, groups: list[str]) -> bool:
    """Enough patients, none too large; and `normal/normal_01` repeats the folder."""
    sizes = Counter(groups)
    enough = len(sizes) >= FEWEST and len(groups) >= IMAGES_EACH * len(sizes)
    folders = [unit.dirs for unit in site.images]
    is_class = len(set(folders)) > 1 and _same_partition(groups, folders)
    return enough and max(sizes.values()) <= LARGEST * len(groups) and not is_class


def _comment(draft: Draft, agreeing: list[str], guessed: list[str], in_vain: list[str]) -> None:
    comments = []
    if agreeing:
        comments.append(f"Agrees with the patients in {', '.join(agreeing)}.")
        draft.found.append(f"the patients in file names agree with {', '.join(agreeing)}")
    if guessed:
        comments.append("(!) Guessed from names: group 1 of the pattern must be the patient.")
        site = next(site for site in draft.sites if site.name == guessed[0])
        pattern, unit = site.settings["patient"], site.images[0]
        match = re.search(pattern, unit.path if "/" in pattern else unit.stem)
        who = match.group(1) if match else "?"
        draft.to_do.append(
            f"patient: check the pattern; with it {unit.path} is of the patient {who}"
        )
    if comments:
        draft.comments["patient"] = comments
    if in_vain:
        where = "" if len(in_vain) == len(draft.sites) else f" at {', '.join(in_vain)}"
        draft.to_do.append(
            f"patient: no file name tells which images belong to one patient{where}, so every "
            "file counts as its own; if that is wrong, give a pattern or a list"
        )
