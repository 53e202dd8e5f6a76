"""Which of the files are images, which are masks, and where the sites begin."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from konsil.prepare.guess.content import few_valued
from konsil.prepare.guess.draft import site_name
from konsil.prepare.guess.files import Unit
from konsil.prepare.guess.rules import called, discs_and_cups, joined, role_of, says, skeleton

ALIKE = 0.9  # of two folders' names, for one to hold the masks of the other
LOOKED_AT = 3  # files of a folder, to tell masks from images
FEW = 6  # contrasts of one patient; fewer numbered folders than this are not called patients


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
        if any(joined(name) in called("unlabelled") for name in dirs):
            roles.unlabelled += own
            continue
        for unit, is_mask in zip(own, _masks_in(dirs, own), strict=True):
            (roles.masks if is_mask else roles.images).append(unit)
    if not roles.masks:
        masks = _by_content(root, roles.images)
        roles.masks = [unit for unit in roles.images if unit in masks]
        roles.images = [unit for unit in roles.images if unit not in masks]
    return roles


def _masks_in(dirs: tuple[str, ...], units: Sequence[Unit]) -> list[bool]:
    """The deepest folder with a meaning decides; names in it may tell masks from images."""
    meanings = [role_of(name, depth) for depth, name in enumerate(dirs)]
    deepest = next((m for m in reversed(meanings) if m in ("image", "mask")), "")
    optic = discs_and_cups(unit.stem for unit in units)
    named = [u.segmentation or says("mask", u.stem) or u.stem in optic for u in units]
    if deepest == "mask":
        return [True] * len(units)
    if all(named) and deepest == "image":
        return [unit.segmentation for unit in units]
    return named


def _by_content(root: Path, units: Sequence[Unit]) -> set[Unit]:
    """Folders side by side with files of the same names, of which one holds few values; or files
    of the same names and two suffixes in one folder.
    """
    beside: dict[object, dict[str, list[Unit]]] = defaultdict(lambda: defaultdict(list))
    for unit in units:
        if unit.kind == "picture":
            beside[unit.dirs][unit.suffix].append(unit)
            if unit.dirs:
                beside["folders", unit.dirs[:-1]][unit.dirs[-1]].append(unit)
    masks: set[Unit] = set()
    for groups in beside.values():
        flat = {name for name, own in groups.items() if len(groups) > 1 and _is_flat(root, own)}
        stems = {name: {unit.stem for unit in own} for name, own in groups.items()}
        twins = [
            any(
                len(stems[name] & stems[o]) >= ALIKE * len(stems[name]) for o in stems.keys() - flat
            )
            for name in flat
        ]
        if all(twins):
            masks |= {unit for name in flat for unit in groups[name]}
    return masks


def _is_flat(root: Path, units: Sequence[Unit]) -> bool:
    step = max(1, len(units) // LOOKED_AT)
    return all(few_valued(root / unit.path) for unit in units[::step][:LOOKED_AT])


# --- sites and patients -------------------------------------------------------------------------


def neutral(unit: Unit) -> list[tuple[int, str]]:
    """The folders of a unit whose names mean nothing by themselves, with their depth."""
    return [(depth, name) for depth, name in enumerate(unit.dirs) if not role_of(name, depth)]


def names_at(units: Sequence[Unit], level: int) -> list[str]:
    """The name of each unit's neutral folder of this level, "" where it has none."""
    return [folders[level][1] if level < len(folders) else "" for folders in map(neutral, units)]


def varying_levels(units: Sequence[Unit], above: int = 0) -> list[int]:
    """Which neutral folders vary, so many at the end left out."""
    depth = min(len(neutral(unit)) for unit in units) - above
    return [level for level in range(depth) if len(set(names_at(units, level))) > 1]


def by_site(units: Sequence[Unit], level: int | None, root: Path) -> dict[str, list[Unit]]:
    """The units of each site, by the neutral folder of this level; None: all are of one."""
    sites: dict[str, list[Unit]] = defaultdict(list)
    whole = root.resolve().name
    names = [whole] * len(units) if level is None else names_at(units, level)
    for unit, name in zip(units, names, strict=True):
        sites[site_name(name or whole)].append(unit)
    return dict(sorted(sites.items()))


def site_level(images: Sequence[Unit], masks: Sequence[Unit]) -> int | None:
    """Which neutral folder is the site; None if all of it is one site."""
    mask_folders = {name for mask in masks for _, name in neutral(mask)}
    varying = varying_levels(images)
    around = None  # a folder around everything
    for level in range(min(len(neutral(image)) for image in images)):
        names = set(names_at(images, level))
        if not names & mask_folders:
            continue  # the name that a site gives to its images
        if len(names) == 1 and any(deeper > level for deeper in varying):
            around = level
            continue
        return around if _are_patients(images, level) else level
    return around


def _are_patients(images: Sequence[Unit], level: int) -> bool:
    """Whether folders are patients rather than sites, from what is in each of them."""
    stems: dict[str, set[str]] = defaultdict(set)
    for image, name in zip(images, names_at(images, level), strict=True):
        stems[name].add("/".join([*image.dirs[neutral(image)[level][0] + 1 :], image.stem]))
    if len(stems) < 3 or any(says("site", name) for name in stems):
        return False
    sizes = [len(own) for own in stems.values()]
    if median(sizes) == 1:
        return True
    if images[0].kind == "picture":
        return len(stems) >= FEW and len(set(map(skeleton, stems))) == 1
    return max(sizes) <= FEW and _same_contrasts(list(stems.values()))


def _same_contrasts(stems: list[set[str]]) -> bool:
    """Every folder holds the same few names, T2 and ADC say, and not just the same numbering."""
    common = Counter(name for own in stems for name in own)
    usual = [name for name, times in common.items() if times >= 0.8 * len(stems)]
    numbered = len(set(map(skeleton, usual))) == 1 < len(usual)
    files = [name.split("/")[-1] for name in usual]  # a folder `images` is no contrast
    return bool(usual) and (not numbered or any(role_of(name) == "image" for name in files))


def patient_folder(images: Sequence[Unit], site: int | None) -> int | None:
    """The depth of the folder that names the patient: the first below the site that varies."""
    below = [level for level in varying_levels(images) if site is None or level > site]
    depths = {neutral(image)[below[0]][0] for image in images} if below else set()
    return depths.pop() if len(depths) == 1 else None
