"""Which part of a file's name is the patient, if names tell."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from konsil.prepare.guess.draft import Draft, SiteDraft

# Tried in this order: names that say what they are before bare numbers.
CANDIDATES = (
    r"^(sub-[A-Za-z0-9]+)_",  # BIDS
    r"^(TCGA-\w{2}-\w{4})",
    r"^((?:[Pp]atient|[Pp]at|[Ss]ubject|[Ss]ubj)[-_ ]?\d+)[-_ ]",
    r"^(.+?)[-_ ](?:visit|ses|session|scan|study|exam|timepoint|tp|series)[-_ ]?\d+",
    r"^(.+?)[-_ ]?(?:OD|OS|od|os|[Ll]eft|[Rr]ight|L|R)$",  # both eyes
    r"^(.+)[-_ ](?:slice|sl|s|z|frame|f|image|img|im|view|patch|tile)[-_ ]?\d+$",
    r"^(.+)_\d+$",
    r"^(.+)-\d+$",
    r"^([A-Za-z]*\d+)[-_ ]",
)
FEWEST = 3  # patients of a site: one each to train, to validate and to test
IMAGES_EACH = 1.5  # on average, or a pattern says nothing
LARGEST = 0.6  # of a site's images, by one patient

Truth = Mapping[str, str]  # an image's path -> its patient, as a table says


def add_patients(draft: Draft, truths: Mapping[str, tuple[str, Truth]]) -> list[SiteDraft]:
    """A pattern for every site whose names tell; the sites whose table says what no name does.

    `truths` has, for a site with a table, the table's name and what it says.
    """
    beyond_names = []
    for site in draft.sites:
        if "patient" in site.settings or "list" in site.keys:
            continue
        _, truth = truths.get(site.name, ("", {}))
        pattern = _agreeing(site, truth) if truth else _plausible(site)
        if pattern is not None:
            site.settings["patient"] = pattern
        elif truth and len(set(truth.values())) < len(truth):
            beyond_names.append(site)
    _comment(draft, truths)
    return beyond_names


def _plausible(site: SiteDraft) -> str | None:
    stems = [unit.stem for unit in site.images]
    for pattern in CANDIDATES:
        groups = _groups(pattern, stems)
        if groups is not None and _makes_sense(Counter(groups)) and not _is_class(site, groups):
            return pattern
    return None


def _groups(pattern: str, stems: Sequence[str]) -> list[str] | None:
    matches = [re.search(pattern, stem) for stem in stems]
    if not all(matches):
        return None
    return [match.group(1) for match in matches if match]


def _makes_sense(sizes: Counter[str]) -> bool:
    images = sizes.total()
    enough = len(sizes) >= FEWEST and images >= IMAGES_EACH * len(sizes)
    return enough and max(sizes.values()) <= LARGEST * images


def _is_class(site: SiteDraft, groups: list[str]) -> bool:
    """`normal/normal_01`: the names repeat the folders."""
    pairs = {(group, unit.dirs) for group, unit in zip(groups, site.images, strict=True)}
    return len(pairs) == len({dirs for _, dirs in pairs}) == len({group for group, _ in pairs}) > 1


def _agreeing(site: SiteDraft, truth: Truth) -> str | None:
    """The first pattern that divides the images exactly as the table does."""
    images = [unit for unit in site.images if unit.path in truth]
    known = [truth[unit.path] for unit in images]
    if len(set(known)) == len(known):
        return None  # every image is another patient, which needs no pattern
    for pattern in CANDIDATES:
        groups = _groups(pattern, [unit.stem for unit in images])
        everywhere = _groups(pattern, [unit.stem for unit in site.images]) is not None
        if groups is not None and everywhere and _same_partition(groups, known):
            return pattern
    return None


def _same_partition(one: list[str], other: list[str]) -> bool:
    pairs = set(zip(one, other, strict=True))
    return len(pairs) == len(set(one)) == len(set(other))


def _comment(draft: Draft, truths: Mapping[str, tuple[str, Truth]]) -> None:
    patterns = {site.name: site.settings.get("patient") for site in draft.sites}
    guessed = [s for s, pattern in patterns.items() if pattern and s not in truths]
    tables = sorted({truths[s][0] for s, pattern in patterns.items() if pattern and s in truths})
    if tables:
        agrees = f"Agrees with the patients in {', '.join(tables)}."
        draft.comments["patient"] = [agrees]
        draft.found.append(f"the patients in file names agree with {', '.join(tables)}")
    if guessed:
        draft.comments.setdefault("patient", []).append(
            "(!) Guessed from names: group 1 of the pattern must be the patient."
        )
        example = next(site for site in draft.sites if site.name in guessed)
        draft.to_do.append(f"patient: check the pattern; {_example(example)}")
    none = [s for s, pattern in patterns.items() if not pattern and s not in truths]
    if none:
        where = "" if len(none) == len(patterns) else f" at {', '.join(none)}"
        draft.to_do.append(
            f"patient: no file name tells which images belong to one patient{where}, so every "
            "file counts as its own; if that is wrong, give a pattern or a list"
        )


def _example(site: SiteDraft) -> str:
    pattern = site.settings["patient"]
    unit = site.images[0]
    match = re.search(pattern, unit.path if "/" in pattern else unit.stem)
    return f"with it {unit.path} is of the patient {match.group(1) if match else '?'}"
