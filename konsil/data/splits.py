"""Train, validation and test, drawn by patient within each site."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from konsil.data.sources import SPLITS, Item
from konsil.errors import DataError
from konsil.randomness import digest

Fractions = tuple[float, float, float]
Wanted = dict[str, float]  # split -> its fraction of the images that are divided
DRAWS = 32  # at most, until one hits the fractions


def draw_splits(
    items: Sequence[Item], fractions: Fractions, seed: int, by_class: bool
) -> list[Item]:
    """Every item with its split; with `by_class` each class is divided alike.

    A site's splits follow from the seed, its name and its patients alone: neither the order of
    the files nor the other sites matter. Splits that the items already have stay.
    """
    by_site = defaultdict[str, list[Item]](list)
    for item in items:
        by_site[item.site].append(item)
    drawn: dict[tuple[str, str], str] = {}
    for site, own in by_site.items():
        pool, wanted = _to_draw(own, dict(zip(SPLITS, fractions, strict=True)))
        images: dict[str, Counter[str]] = {}
        for item in pool:
            images.setdefault(item.patient, Counter())[item.label if by_class else ""] += 1
        if images:
            splits = split_patients(site, images, wanted, seed)
            drawn |= {(site, patient): split for patient, split in splits.items()}
    return [replace(i, split=drawn.get((i.site, i.patient), i.split)) for i in items]


def check_none_empty(items: Sequence[Item]) -> None:
    """Given splits may leave nothing to cut the missing one from."""
    filled = {(item.site, item.split) for item in items}
    for site in dict.fromkeys(item.site for item in items):
        empty = [split for split in SPLITS if (site, split) not in filled]
        if empty:
            raise DataError(
                f"site {site}: no image in {', '.join(empty)}; every site needs images to train, "
                "to validate and to test: change the splits that its list gives"
            )


def _to_draw(items: Sequence[Item], fractions: Wanted) -> tuple[list[Item], Wanted]:
    """The items to divide, and among which splits. A split that is not given is cut from train."""
    given = {item.split for item in items} - {""}
    missing = [split for split in SPLITS if split not in given]
    if not missing:
        return [], {}
    open_to = {split: fractions[split] for split in SPLITS if split in ("train", *missing)}
    if len(open_to) < len(SPLITS):
        total = sum(open_to.values())
        open_to = {split: fraction / total for split, fraction in open_to.items()}
    return [item for item in items if item.split in ("", "train")], open_to


def split_patients(
    site: str, images: dict[str, Counter[str]], fractions: Wanted, seed: int
) -> dict[str, str]:
    """The split of each patient, given how many images of which class the patient has.

    Patients come in different sizes, so one draw may miss the fractions by a whole patient: of
    several draws the first that hits them to the image is taken, or else the nearest.
    """
    if len(images) < len(fractions):
        count = sum(kinds.total() for kinds in images.values())
        raise DataError(
            f"site {site}: {len(images)} patient(s) with {count} image(s); a site needs at least "
            "three patients, one each to train, to validate and to test. Add patients, merge the "
            "site with another, leave it out by federation.sites, or, if every image is another "
            "patient, mend the pattern of the patients"
        )
    nearest, smallest_miss = dict[str, str](), float("inf")
    for attempt in range(DRAWS):
        # a hash rather than a random generator: the same on every machine and version
        place = {p: digest(seed, site, attempt, p, between="\0") for p in images}
        order = sorted(images, key=place.__getitem__)
        splits, miss = _assign(order, images, fractions)
        if miss < smallest_miss:
            nearest, smallest_miss = splits, miss
        if smallest_miss < 1:
            break
    return nearest


def _assign(
    order: Sequence[str], images: dict[str, Counter[str]], fractions: Wanted
) -> tuple[dict[str, str], float]:
    """Every patient goes where images of their classes are lacking most; the greatest miss.

    The last patients are kept for splits that are still empty, so that none stays so.
    """
    total = sum(images.values(), Counter[str]())
    lacking = {
        split: {kind: fraction * count for kind, count in total.items()}
        for split, fraction in fractions.items()
    }
    splits: dict[str, str] = {}
    empty = list(fractions)
    for patient in order:
        allowed = empty if len(order) - len(splits) <= len(empty) else list(fractions)
        needs = {  # images of their classes first, then images of any class
            split: (
                sum(count * lacking[split][kind] for kind, count in images[patient].items()),
                sum(lacking[split].values()),
            )
            for split in allowed
        }
        choice = max(needs, key=needs.__getitem__)
        splits[patient] = choice
        empty = [split for split in empty if split != choice]
        for kind, count in images[patient].items():
            lacking[choice][kind] -= count
    return splits, max(abs(lack) for kinds in lacking.values() for lack in kinds.values())
