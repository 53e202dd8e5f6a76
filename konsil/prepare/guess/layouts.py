"""From files to sites: masks beside images, one folder a class, or as a person says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from konsil.data.listing import BY_FOLDER
from konsil.data.patterns import TOKEN, Pattern
from konsil.errors import ConfigError, DataError
from konsil.prepare.guess.draft import Draft, SiteDraft, site_name, some_of
from konsil.prepare.guess.files import Contents, Unit
from konsil.prepare.guess.pairing import Pairing, either, pair
from konsil.prepare.guess.roles import (
    Roles,
    by_site,
    patient_folder,
    site_level,
    varying_levels,
)
from konsil.prepare.guess.rules import class_order, role_of, says

MOST_CLASSES = 20
SITE = "{site}"  # in a pattern that a person gives


# --- segmentation -------------------------------------------------------------------------------


def segmentation(root: Path, roles: Roles) -> Draft | None:
    """The sites of a segmentation; None if images and masks do not go together anywhere."""
    if not roles.images or not roles.masks:
        return None
    level = site_level(roles.images, roles.masks)
    masks = by_site(roles.masks, level, root)
    draft = Draft("segmentation")
    for name, images in by_site(roles.images, level, root).items():
        _add_pairs(draft, name, images, masks.pop(name, []), level)
    for left in masks.values():
        draft.to_do.append(f"masks without images, not used: {some_of(left)}")
    _say_what_names_suggest(draft)
    return draft if draft.sites else None


def _add_pairs(
    draft: Draft, name: str, images: list[Unit], masks: list[Unit], level: int | None
) -> None:
    if images[0].kind != "picture":
        masks = _stacks_as_folders(masks)
    pairing = pair(images, masks) if masks else None
    if pairing is None:
        reason = "no mask goes with its images by name" if masks else "it has no masks"
        draft.to_do.append(f"{name} was left out, for {reason}: {some_of(images)}")
        return
    draft.sites.append(_paired_site(name, pairing, level))
    if pairing.unused:
        unused = some_of(pairing.unused)
        draft.to_do.append(f"{name}: not used, because nothing goes with it: {unused}")


def _stacks_as_folders(masks: list[Unit]) -> list[Unit]:
    """A PNG for every slice of a DICOM series: the folder is the mask."""
    folders = {"/".join(mask.dirs): mask for mask in masks if mask.kind == "picture" and mask.dirs}
    whole = [mask for mask in masks if mask.kind != "picture"]
    return whole or [Unit(path, "series") for path in folders]


def _paired_site(name: str, pairing: Pairing, level: int | None) -> SiteDraft:
    keys = {"images": pairing.images, "labels": pairing.labels.get("", pairing.labels)}
    site = SiteDraft(name, keys, pairing.used, pairing.masks)
    _add_patient_folder(site, level)
    _add_series(site)
    return site


def _add_patient_folder(site: SiteDraft, level: int | None, most: int | None = None) -> None:
    depth = patient_folder(site.images, level)
    if depth is not None and (most is None or depth < most):
        site.settings["patient"] = "^" + "[^/]+/" * depth + "([^/]+)/"


def _add_series(site: SiteDraft) -> None:
    """The description that chooses one series in every folder that holds several."""
    several = [set(unit.descriptions) for unit in site.images if unit.descriptions]
    common = sorted(set.intersection(*several) - {""}) if several else []
    chosen = [text for text in common if "t2" in text.lower()] or common
    if chosen:
        site.settings["series"] = f"^{re.escape(chosen[0])}$"


def _say_what_names_suggest(draft: Draft) -> None:
    for site in draft.sites:
        if any(says("rater", name) for name in site.masks):
            draft.to_do.append(
                f"{site.name}: the masks are called {', '.join(site.masks)}: if those are people "
                "who drew the same structure, keep the pattern of one"
            )
    if any(says("negative", site.name) for site in draft.sites):
        names = ", ".join(site.name for site in draft.sites)
        draft.to_do.append(f"the sites are {names}, as folders are called: are those classes?")


# --- classification -----------------------------------------------------------------------------


def classification(root: Path, images: Sequence[Unit]) -> Draft | None:
    """One folder a class; None if the folders do not look like that."""
    inside = [unit for unit in images if unit.dirs and not role_of(unit.dirs[-1])]
    if not inside:
        return None
    level = next(iter(varying_levels(inside, above=1)), None)  # the last is the class
    sites = by_site(inside, level, root)
    classes = {site: {unit.dirs[-1] for unit in units} for site, units in sites.items()}
    every = set().union(*classes.values())
    if not 2 <= len(every) <= MOST_CLASSES or not _shared(list(classes.values())):
        return None
    draft = Draft("classification", top={"classes": class_order(every)})
    draft.comments["classes"] = ["The last is the positive one."]
    draft.sites = [_class_site(site, units, level) for site, units in sites.items()]
    if len(sites) == 1 and not any(says("negative", name) for name in every):
        names = ", ".join(sorted(every))
        draft.to_do.append(f"the folders {names} are taken for classes: are they sites?")
    loose = [unit for unit in images if unit not in set(inside)]
    if loose:
        draft.to_do.append(f"images outside the folders of classes, not used: {some_of(loose)}")
    return draft


def _shared(classes: list[set[str]]) -> bool:
    """Whether sites have classes in common; otherwise their folders are something else."""
    if len(classes) == 1:
        return True
    return all(any(own & other for other in classes if other is not own) for own in classes)


def _class_site(name: str, units: list[Unit], level: int | None) -> SiteDraft:
    depth = max(len(unit.dirs) for unit in units)
    even = [unit for unit in units if len(unit.dirs) == depth]
    columns = list(zip(*(unit.dirs for unit in even), strict=True))[:-1]
    folders = [names[0] if len(set(names)) == 1 else "*" for names in columns]
    pattern = "/".join([*folders, "*", "*" + either({unit.suffix for unit in even})])
    site = SiteDraft(name, {"images": pattern, "labels": BY_FOLDER}, even)
    _add_patient_folder(site, level, most=depth - 1)
    return site


def loose_sites(root: Path, roles: Roles) -> list[SiteDraft]:
    """Images by site, whatever their labels are."""
    if not roles.images:
        return []
    level = next(iter(varying_levels(roles.images)), None)
    return [SiteDraft(n, {}, units) for n, units in by_site(roles.images, level, root).items()]


# --- as a person says ---------------------------------------------------------------------------


def as_given(
    root: Path, contents: Contents, task: str | None, images: str | None, masks: Sequence[str]
) -> Draft:
    """The federation of `--images` and `--masks`, {site} in them standing for the site."""
    if images is None:
        raise ConfigError("--images GLOB is missing: which files the masks belong to")
    if not masks and task != "classification":
        raise ConfigError(
            "--masks GLOB is missing: where the masks of these images are. Or give --task "
            "classification: then the folder of an image is its class"
        )
    patterns = _by_structure(masks)
    if len({SITE in text for text in (images, *patterns.values())}) > 1:
        raise ConfigError(f"{SITE} stands in all of --images and --masks, or in none")
    units = {unit.path: unit for unit in contents.units}
    draft = Draft("segmentation" if masks else "classification")
    for name in _sites(root, images):
        labels = {key: text.replace(SITE, name) for key, text in patterns.items()}
        files = {key: _matching(root, text, "--masks", units) for key, text in labels.items()}
        taken = {unit for own in files.values() for unit in own}
        pattern = images.replace(SITE, name)
        own = [u for u in _matching(root, pattern, "--images", units) if u not in taken]
        site = SiteDraft(site_name(name), {"images": pattern}, own, files)
        site.keys["labels"] = labels.get("", labels) if masks else BY_FOLDER
        _add_series(site)
        draft.sites.append(site)
    if not masks:
        classes = {unit.dirs[-1] for site in draft.sites for unit in site.images if unit.dirs}
        draft.top["classes"] = class_order(classes)
        draft.comments["classes"] = ["The last is the positive one."]
    return draft


def _by_structure(masks: Sequence[str]) -> dict[str, str]:
    """`disc=GLOB` for each structure, or one GLOB for all."""
    named = [re.fullmatch(r"(?:(\w[\w -]*)=)?(.+)", text) for text in masks]
    patterns = {match[1] or "": match[2] for match in named if match}
    if len(patterns) < len(masks) or ("" in patterns and len(patterns) > 1):
        raise ConfigError(
            f"--masks {' --masks '.join(masks)}: several need a structure each, as in "
            "--masks disc=GLOB --masks cup=GLOB"
        )
    return patterns


def _sites(root: Path, images: str) -> list[str]:
    """What stands in the place of {site}; the folder's own name if it is nowhere."""
    if SITE not in images:
        return [root.resolve().name]
    if images.count(SITE) > 1 or "/" not in images[images.index(SITE) :]:
        raise ConfigError(f"--images {images}: {SITE} stands once, for (a part of) a folder's name")
    before = TOKEN.findall(images[: images.index(SITE)])
    star = sum(token[0] in "*?" for token in before)
    found = Pattern(images.replace(SITE, "*"), "--images").find(root)
    sites = sorted({stars[star] for _, stars in found})
    if not sites:
        raise DataError(f"--images {images}: matches nothing below {root}")
    return sites


def _matching(root: Path, text: str, option: str, units: Mapping[str, Unit]) -> list[Unit]:
    found = [path for path, _ in Pattern(text, option).find(root)]
    known = [
        units[path] if path in units else Unit(path, "series")
        for path in found
        if path in units or (root / path).is_dir()
    ]
    if not known:
        raise DataError(f"{option} {text}: matches no image below {root}")
    return known
