"""Which of the files are images, which are masks, and where the sites begin."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from konsil.prepare.guess.content import few_valued
from konsil.prepare.guess.walk import Unit
from konsil.prepare.guess.words import (
    SITES,
    UNLABELLED,
    discs_and_cups,
    joined,
    role_of,
    says_mask,
    skeleton,
    words,
)

FEW = 6  # contrasts of one patient; fewer numbered folders than this are not called patients
ALIKE = 0.9  # of two folders' names, for one to hold the masks of the other
LOOKED_AT = 3  # files of a folder, to tell masks from images


@dataclass
class Roles:
    """The files by what they are for."""

    images: list[Unit] = field(default_factory=list)
    masks: list[Unit] = field(default_factory=list)
    unlabelled: list[Unit] = field(default_factory=list)  # a challenge's test part


def sort_out(root: Path, units: Sequence[Unit]) -> Roles:
    """Images and masks by what folders and files are called, or else by what is in them."""
    roles = Roles()
    by_folder: dict[tuple[str, ...], list[Unit]] = defaultdict(list)
    for unit in units:
        by_folder[unit.dirs].append(unit)
    for dirs, own in by_folder.items():
        if any(joined(name) in UNLABELLED for name in dirs):
            roles.unlabelled += own
            continue
        for unit, is_mask in zip(own, _masks_in(dirs, own), strict=True):
            (roles.masks if is_mask else roles.images).append(unit)
    if not roles.masks:
        _by_content(root, roles)
    return roles


def _masks_in(dirs: tuple[str, ...], units: Sequence[Unit]) -> list[bool]:
    """The deepest folder with a meaning decides; names in it may tell masks from images."""
    meanings = [role_of(name, depth) for depth, name in enumerate(dirs)]
    deepest = next((m for m in reversed(meanings) if m in ("image", "mask")), "")
    optic = discs_and_cups(unit.stem for unit in units)
    named = [u.segmentation or says_mask(u.stem) or u.stem in optic for u in units]
    if deepest == "mask":
        return [True] * len(units)
    if all(named) and deepest == "image":
        return [unit.segmentation for unit in units]
    return named


def _by_content(root: Path, roles: Roles) -> None:
    """Folders side by side with files of the same names, of which one holds few values; or files
    of the same names and two suffixes in one folder.
    """
    beside: dict[object, dict[str, list[Unit]]] = defaultdict(lambda: defaultdict(list))
    for unit in roles.images:
        if unit.kind == "picture":
            beside[unit.dirs][unit.suffix].append(unit)
            if unit.dirs:
                beside["folders", unit.dirs[:-1]][unit.dirs[-1]].append(unit)
    masks: set[Unit] = set()
    for folders in beside.values():
        if len(folders) < 2:
            continue
        flat = {name for name, units in folders.items() if _look_like_masks(root, units)}
        if flat and all(_has_twin(folders, name, flat) for name in flat):
            masks |= {unit for name in flat for unit in folders[name]}
    roles.masks = [unit for unit in roles.images if unit in masks]
    roles.images = [unit for unit in roles.images if unit not in masks]


def _look_like_masks(root: Path, units: Sequence[Unit]) -> bool:
    step = max(1, len(units) // LOOKED_AT)
    return all(few_valued(root / unit.path) for unit in units[::step][:LOOKED_AT])


def _has_twin(folders: dict[str, list[Unit]], name: str, flat: set[str]) -> bool:
    stems = {unit.stem for unit in folders[name]}
    return any(
        len(stems & {unit.stem for unit in units}) >= ALIKE * len(stems)
        for other, units in folders.items()
        if other not in flat
    )


# --- sites and patients -------------------------------------------------------------------------


def neutral(unit: Unit) -> list[tuple[int, str]]:
    """The folders of a unit whose names mean nothing by themselves, with their depth."""
    return [(depth, name) for depth, name in enumerate(unit.dirs) if not role_of(name, depth)]


def names_at(units: Sequence[Unit], level: int) -> list[str]:
    """The name of each unit's neutral folder of this level, "" where it has none."""
    return [folders[level][1] if level < len(folders) else "" for folders in map(neutral, units)]


def site_level(images: Sequence[Unit], masks: Sequence[Unit]) -> int | None:
    """Which neutral folder is the site; None if all of it is one site."""
    mask_folders = {name for mask in masks for _, name in neutral(mask)}
    depth = min(len(neutral(image)) for image in images)
    around = None  # a folder around everything
    for level in range(depth):
        names = Counter(names_at(images, level))
        if not names.keys() & mask_folders:
            continue  # the name that a site gives to its images
        deeper = any(len(set(names_at(images, k))) > 1 for k in range(level + 1, depth))
        if len(names) == 1 and deeper:
            around = level
            continue
        return around if _are_patients(images, level) else level
    return around


def _are_patients(images: Sequence[Unit], level: int) -> bool:
    """Whether folders are patients rather than sites, from what is in each of them."""
    stems: dict[str, set[str]] = defaultdict(set)
    for image, name in zip(images, names_at(images, level), strict=True):
        stems[name].add("/".join([*image.dirs[neutral(image)[level][0] + 1 :], image.stem]))
    if any(SITES & set(words(name)) for name in stems):
        return False
    sizes = [len(own) for own in stems.values()]
    if len(stems) > 2 and median(sizes) == 1:
        return True
    if images[0].kind == "picture":
        return len(stems) >= FEW and len({skeleton(name) for name in stems}) == 1
    return len(stems) > 2 and max(sizes) <= FEW and _same_contrasts(list(stems.values()))


def _same_contrasts(stems: list[set[str]]) -> bool:
    """Every folder holds the same few names, T2 and ADC say, and not just the same numbering."""
    common = Counter(name for own in stems for name in own)
    usual = [name for name, times in common.items() if times >= 0.8 * len(stems)]
    numbered = len({skeleton(name) for name in usual}) == 1 < len(usual)
    files = [name.split("/")[-1] for name in usual]  # a folder `images` is no contrast
    return bool(usual) and (not numbered or any(role_of(name) == "image" for name in files))


def patient_depth(images: Sequence[Unit], after: int | None) -> int | None:
    """The depth of the folder that names the patient: the first below the site that varies."""
    first = 0 if after is None else after + 1
    shallowest = min(len(neutral(image)) for image in images)
    for level in range(first, shallowest):
        if len(set(names_at(images, level))) > 1:
            depths = {neutral(image)[level][0] for image in images}
            return depths.pop() if len(depths) == 1 else None
    return None
