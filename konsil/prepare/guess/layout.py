"""From files to sites: masks beside images, or one folder a class."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from konsil.data.listing import BY_FOLDER
from konsil.prepare.guess.draft import Draft, SiteDraft, site_name, some_of
from konsil.prepare.guess.pairing import Pairing, pair
from konsil.prepare.guess.roles import Roles, names_at, neutral, patient_depth, site_level
from konsil.prepare.guess.walk import Unit
from konsil.prepare.guess.words import NEGATIVE, RATERS, class_order, role_of, words

MOST_CLASSES = 20


# --- segmentation -------------------------------------------------------------------------------


def segmentation(root: Path, roles: Roles) -> Draft | None:
    """The sites of a segmentation; None if images and masks do not go together anywhere."""
    if not roles.images or not roles.masks:
        return None
    level = site_level(roles.images, roles.masks)
    masks = _by_site(roles.masks, level, root)
    draft = Draft("segmentation", [])
    for name, images in _by_site(roles.images, level, root).items():
        _add_pairs(draft, name, images, masks.pop(name, []), level)
    for left in masks.values():
        paths = [unit.path for unit in left]
        draft.to_do.append(f"masks without images, not used: {some_of(paths)}")
    if not draft.sites:
        return None
    _say_what_names_suggest(draft)
    return draft


def _by_site(units: Sequence[Unit], level: int | None, root: Path) -> dict[str, list[Unit]]:
    sites: dict[str, list[Unit]] = defaultdict(list)
    whole = root.resolve().name
    names = [whole] * len(units) if level is None else names_at(units, level)
    for unit, name in zip(units, names, strict=True):
        sites[site_name(name or whole)].append(unit)
    return dict(sorted(sites.items()))


def _add_pairs(
    draft: Draft, name: str, images: list[Unit], masks: list[Unit], level: int | None
) -> None:
    if images[0].kind != "picture":
        masks = _stacks_as_folders(masks)
    pairing = pair(images, masks) if masks else None
    if pairing is None:
        reason = "no mask goes with its images by name" if masks else "it has no masks"
        paths = some_of([unit.path for unit in images])
        draft.to_do.append(f"{name} was left out, for {reason}: {paths}")
        return
    site = _paired_site(name, pairing)
    depth = patient_depth(pairing.used, level)
    if depth is not None:
        site.settings["patient"] = "^" + "[^/]+/" * depth + "([^/]+)/"
    draft.sites.append(site)
    if pairing.unused:
        paths = some_of([unit.path for unit in pairing.unused])
        draft.to_do.append(f"{name}: not used, because nothing goes with it: {paths}")


def _stacks_as_folders(masks: list[Unit]) -> list[Unit]:
    """A PNG for every slice of a DICOM series: the folder is the mask."""
    folders = {"/".join(mask.dirs): mask for mask in masks if mask.kind == "picture" and mask.dirs}
    whole = [mask for mask in masks if mask.kind != "picture"]
    return whole or [Unit(path, "series") for path in folders]


def _paired_site(name: str, pairing: Pairing) -> SiteDraft:
    alone = list(pairing.labels) == [""]
    labels = pairing.labels[""] if alone else pairing.labels
    keys = {"images": pairing.images, "labels": labels}
    site = SiteDraft(name, keys, pairing.used, pairing.masks)
    pattern = _series(pairing.used)
    if pattern is not None:
        site.settings["series"] = pattern
    return site


def _series(images: Sequence[Unit]) -> str | None:
    """The description that chooses one series in every folder that holds several."""
    import re

    several = [set(unit.descriptions) for unit in images if unit.descriptions]
    if not several:
        return None
    common = sorted(set.intersection(*several) - {""})
    t2 = [text for text in common if "t2" in words(text) or "t2" in text.lower()]
    chosen = (t2 or common or [""])[0]
    return f"^{re.escape(chosen)}$" if chosen else None


def _say_what_names_suggest(draft: Draft) -> None:
    for site in draft.sites:
        if any(RATERS & set(words(name)) for name in site.masks):
            draft.to_do.append(
                f"{site.name}: the masks are called {', '.join(site.masks)}: if those are people "
                "who drew the same structure, keep the pattern of one"
            )
    if any(NEGATIVE & set(words(site.name)) for site in draft.sites):
        names = ", ".join(site.name for site in draft.sites)
        draft.to_do.append(f"the sites are {names}, as folders are called: are those classes?")


# --- classification -----------------------------------------------------------------------------


def classification(root: Path, images: Sequence[Unit]) -> Draft | None:
    """One folder a class; None if the folders do not look like that."""
    inside = [unit for unit in images if unit.dirs and not role_of(unit.dirs[-1])]
    if not inside:
        return None
    level = _level_that_varies(inside, above=1)  # the last is the class
    by_site = _by_site(inside, level, root)
    classes = {site: {unit.dirs[-1] for unit in units} for site, units in by_site.items()}
    every = set().union(*classes.values())
    if not 2 <= len(every) <= MOST_CLASSES or not _shared(list(classes.values())):
        return None
    draft = Draft("classification", [])
    draft.top["classes"] = class_order(every)
    draft.comments["classes"] = ["The last is the positive one."]
    for site, units in by_site.items():
        draft.sites.append(_class_site(site, units, level))
    if len(by_site) == 1 and not any(NEGATIVE & set(words(name)) for name in every):
        names = ", ".join(sorted(every))
        draft.to_do.append(f"the folders {names} are taken for classes: are they sites?")
    loose = [unit.path for unit in images if unit not in set(inside)]
    if loose:
        draft.to_do.append(f"images outside the folders of classes, not used: {some_of(loose)}")
    return draft


def loose_sites(root: Path, roles: Roles) -> list[SiteDraft]:
    """Images by site, whatever their labels are."""
    if not roles.images:
        return []
    level = _level_that_varies(roles.images, above=0)
    return [SiteDraft(n, {}, units) for n, units in _by_site(roles.images, level, root).items()]


def _level_that_varies(images: Sequence[Unit], above: int) -> int | None:
    """The first neutral folder that varies, this many at the end left out."""
    depth = min(len(neutral(unit)) for unit in images) - above
    varying = [level for level in range(depth) if len(set(names_at(images, level))) > 1]
    return varying[0] if varying else None


def _shared(classes: list[set[str]]) -> bool:
    """Whether sites have classes in common; otherwise their folders are something else."""
    if len(classes) == 1:
        return True
    return all(any(own & other for other in classes if other is not own) for own in classes)


def _class_site(name: str, units: list[Unit], level: int | None) -> SiteDraft:
    depth = max(len(unit.dirs) for unit in units)
    even = [unit for unit in units if len(unit.dirs) == depth]
    folders = zip(*(unit.dirs for unit in even), strict=True)
    parts = [names[0] if len(set(names)) == 1 else "*" for names in folders]
    parts[-1] = "*"
    suffixes = sorted({unit.suffix for unit in even})
    ending = suffixes[0] if len(suffixes) == 1 else "{" + ",".join(suffixes) + "}"
    keys = {"images": "/".join([*parts, "*" + ending]), "labels": BY_FOLDER}
    site = SiteDraft(name, keys, even)
    patient = patient_depth(even, level)
    if patient is not None and patient < depth - 1:
        site.settings["patient"] = "^" + "[^/]+/" * patient + "([^/]+)/"
    return site
