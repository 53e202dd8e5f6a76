"""What is allowed in a federation but should be known before round 1.

Training shows these notes, and `konsil data check` shows them among others.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from konsil.data.listing import Listing
from konsil.data.recipe import Digests, Recipe
from konsil.data.sources import SPLITS, Item

FEW_IMAGES = 5  # a score over fewer is mostly chance
COARSE = 0.9  # Dice; below that a structure is lost on its way to the network's size, and back
DARK = 65535 // 4  # a 16-bit image that uses less than this loses its greys at 8 bit

Pair = tuple[Item, Item]


@dataclass(frozen=True)
class Note:
    """Something that is legal but unlikely to be meant, and what to do."""

    kind: str  # a few words, for machines
    text: str  # one or two sentences, for people
    site: str | None = None  # None: it concerns several


def warnings_about(
    items: Sequence[Item],
    recipe: Recipe,
    facts: Mapping[str, Any],
    digests: Digests,
    listing: Listing,
) -> list[Note]:
    """Everything that training warns of."""
    copies = between_splits(exact_copies(items, digests), "the same, byte for byte, as")
    return [*site_notes(items, recipe, facts), *copies, *shared_patients(items, listing)]


def site_notes(items: Sequence[Item], recipe: Recipe, facts: Mapping[str, Any]) -> Iterator[Note]:
    """What is odd about a single site, given its images and what decoding them showed."""
    for site in dict.fromkeys(item.site for item in items):
        own = [item for item in items if item.site == site]
        yield from _small_splits(site, own)
        yield from _missing_classes(site, own, recipe.classes) if recipe.classes else ()
        yield from _from_pixels(site, facts[site], recipe)


def _small_splits(site: str, items: Sequence[Item]) -> Iterator[Note]:
    counts = Counter(item.split for item in items)
    for split in ("val", "test"):
        if counts[split] < FEW_IMAGES:
            text = (
                f"site {site}: {counts[split]} image(s) in {split}; a score over so few is mostly "
                "chance: add patients, or give it a larger part of the split"
            )
            yield Note("few images", text, site)


def _missing_classes(site: str, items: Sequence[Item], classes: Sequence[str]) -> Iterator[Note]:
    present = {split: {i.label for i in items if i.split == split} for split in SPLITS}
    anywhere = set[str]().union(*present.values())
    if len(anywhere) == 1:
        text = (
            f"site {site}: only the class {min(anywhere)}; AUC is left out for it. A model cannot "
            "learn the difference there: add images of the other class or leave the site out"
        )
        yield Note("one class", text, site)
        return
    for name in classes:
        if name not in anywhere:
            text = (
                f"site {site}: no image of the class {name}; a model learns it from other sites "
                "alone: add images of it, or keep this in mind"
            )
            yield Note("missing class", text, site)
    for split in SPLITS:
        if len(present[split]) == 1:
            text = (
                f"site {site}: only the class {min(present[split])} in {split}; AUC is left out "
                "there: add images of the other class, or try another seed of the split"
            )
            yield Note("one class in a split", text, site)


def _from_pixels(site: str, facts: Mapping[str, Any], recipe: Recipe) -> Iterator[Note]:
    empty, brightest = facts["empty_structures"], facts["brightest_16_bit"]
    cure = "mend the masks or what their values mean, or leave the site out"
    if empty and len(empty) == len(recipe.structures):
        yield Note("empty masks", f"site {site}: every mask is empty: {cure}", site)
    elif empty:
        text = f"site {site}: {', '.join(empty)} in no mask: {cure}"
        yield Note("missing structure", text, site)
    for name, dice in facts.get("best_dice", {}).items():  # older caches have none
        if dice < COARSE:
            text = (
                f"site {site}: {name} is too fine for image_size {recipe.size}: a perfect model "
                f"would have a Dice of {dice:.2f} on the masks as they are; choose a larger "
                "federation.image_size, or crop the images to what matters"
            )
            yield Note("structure too fine", text, site)
    if brightest is not None and brightest < DARK:
        text = (
            f"site {site}: the 16-bit images reach {brightest} of 65535; scaled to 8 bit they "
            f"keep few greys: give a window in a federation file, such as window: [0, {brightest}]"
        )
        yield Note("dark images", text, site)


# --- copies -------------------------------------------------------------------------------------


def exact_copies(items: Sequence[Item], digests: Digests) -> list[Pair]:
    """Images whose file is, byte for byte, that of an earlier one, each with the earlier one."""
    first: dict[tuple[str, int | None], Item] = {}
    pairs = [(first.setdefault((digests[i.image], i.plane), i), i) for i in items]
    return [(a, b) for a, b in pairs if a is not b]


def between_splits(pairs: Sequence[Pair], how: str) -> list[Note]:
    """The same picture on two sides of a split would let a model learn its test by heart."""
    across = [(a, b) for a, b in pairs if a.split != b.split]
    if not across:
        return []
    a, b = across[0]
    text = (
        f"{how_many(across)} {how} one in another split, such as {a.name} ({a.split}) and {b.name} "
        f"({b.split}); the score would measure memory: take the copies away or, if they are of one "
        "patient of a site, say so by the patient"
    )
    return [Note("copies in different splits", text)]


def how_many(pairs: Sequence[Pair]) -> str:
    """Subject and verb of a sentence about copies."""
    return "1 image is" if len(pairs) == 1 else f"{len(pairs)} images are"


# --- patients -----------------------------------------------------------------------------------


def shared_patients(items: Sequence[Item], listing: Listing) -> list[Note]:
    """One id at two sites: perhaps one person, of whom a model would know more than it should."""
    sites: dict[str, dict[str, str]] = {}  # patient -> site -> an image
    for item in items:
        if item.site in listing.real_patients:
            sites.setdefault(item.patient, {}).setdefault(item.site, item.image)
    twice = [(patient, at) for patient, at in sites.items() if len(at) > 1]
    if not twice:
        return []
    patient, at = twice[0]
    where = " and ".join(f"{site} ({image})" for site, image in list(at.items())[:2])
    count = f"{len(twice)} patient ids occur" if len(twice) > 1 else "1 patient id occurs"
    text = (
        f"{count} at several sites, such as {patient} at {where}; if that is one person, keep them "
        "at one site; if the sites only number alike, nothing is wrong"
    )
    return [Note("patient ids at several sites", text)]
