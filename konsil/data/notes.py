"""What is allowed in a federation but should be known before round 1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from konsil.data.listing import Listing
from konsil.data.recipe import Digests, Recipe
from konsil.data.sources import SPLITS, Item

FEW_IMAGES = 5  # a score over fewer is mostly chance
DARK = 65535 // 4  # a 16-bit image that uses less than this loses its greys at 8 bit


def warnings_about(
    items: Sequence[Item],
    recipe: Recipe,
    facts: Mapping[str, Any],
    digests: Digests,
    listing: Listing,
) -> list[str]:
    """One sentence for each thing that is legal but unlikely to be meant."""
    notes = []
    for site in dict.fromkeys(item.site for item in items):
        own = [item for item in items if item.site == site]
        notes += _small_splits(site, own)
        notes += _missing_classes(site, own, recipe.classes) if recipe.classes else []
        notes += _from_pixels(site, facts[site], recipe)
    return notes + _copies(items, digests) + shared_patients(items, listing)


def _small_splits(site: str, items: Sequence[Item]) -> list[str]:
    counts = Counter(item.split for item in items)
    return [
        f"site {site}: {counts[split]} image(s) in {split}; a score over so few is mostly chance"
        for split in ("val", "test")
        if counts[split] < FEW_IMAGES
    ]


def _missing_classes(site: str, items: Sequence[Item], classes: Sequence[str]) -> list[str]:
    present = {split: {i.label for i in items if i.split == split} for split in SPLITS}
    anywhere = set[str]().union(*present.values())
    if len(anywhere) == 1:
        return [
            f"site {site}: only the class {min(anywhere)}; AUC is left out for it. A model cannot "
            "learn the difference there: add images of the other class or leave the site out"
        ]
    notes = [
        f"site {site}: no image of the class {name}" for name in classes if name not in anywhere
    ]
    for split in SPLITS:
        if len(present[split]) == 1:
            only = min(present[split])
            notes.append(f"site {site}: only the class {only} in {split}; AUC is left out there")
    return notes


def _from_pixels(site: str, facts: Mapping[str, Any], recipe: Recipe) -> list[str]:
    notes = []
    empty = facts["empty_structures"]
    if empty and len(empty) == len(recipe.structures):
        notes.append(f"site {site}: every mask is empty")
    elif empty:
        notes.append(f"site {site}: {', '.join(empty)} in no mask")
    brightest = facts["brightest_16_bit"]
    if brightest is not None and brightest < DARK:
        notes.append(
            f"site {site}: the 16-bit images reach {brightest} of 65535; scaled to 8 bit they "
            "keep few greys, so stretch them to the full range before"
        )
    return notes


def _copies(items: Sequence[Item], digests: Digests) -> list[str]:
    """The same picture on two sides of a split would let a model learn its test by heart."""
    first: dict[str, Item] = {}
    pairs = []
    for item in items:
        other = first.setdefault(digests[item.image], item)
        if other.split != item.split:
            pairs.append((other, item))
    if not pairs:
        return []
    a, b = pairs[0]
    return [
        f"{len(pairs)} image(s) occur again in another split, such as {a.image} ({a.split}) and "
        f"{b.image} ({b.split}); take the copies away or give both the same patient"
    ]


def shared_patients(items: Sequence[Item], listing: Listing) -> list[str]:
    """One id at two sites: perhaps one person, of whom a model would know more than it should."""
    sites: dict[str, dict[str, Item]] = {}
    for item in items:
        if item.site in listing.real_patients:
            sites.setdefault(item.patient, {}).setdefault(item.site, item)
    twice = [(patient, at) for patient, at in sites.items() if len(at) > 1]
    if not twice:
        return []
    patient, at = twice[0]
    where = " and ".join(f"{site} ({item.image})" for site, item in at.items())
    count = f"{len(twice)} patient ids occur" if len(twice) > 1 else "1 patient id occurs"
    return [
        f"{count} at several sites, such as {patient} at {where}; if that is one person, keep them "
        "at one site; if the sites only number alike, nothing is wrong"
    ]
