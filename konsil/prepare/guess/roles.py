"""Which of the files are images, which are masks, and which folders are sites or patients."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from re import sub
from statistics import median

from konsil.prepare.guess.draft import site_name
from konsil.prepare.guess.files import Unit
from konsil.prepare.guess.rules import called, role_of, says, words

FEW = 6  # contrasts of one patient; fewer numbered folders of pictures are not called patients


@dataclass
class Roles:
    """The files by what they are for."""

    image: list[Unit] = field(default_factory=list)
    mask: list[Unit] = field(default_factory=list)
    unlabelled: list[Unit] = field(default_factory=list)  # a challenge's test part


def sort_out(units: Sequence[Unit]) -> Roles:
    """Files by the deepest folder with a meaning; their names may tell masks from images."""
    roles = Roles()
    by_folder: dict[tuple[str, ...], list[Unit]] = defaultdict(list)
    for unit in units:
        by_folder[unit.dirs].append(unit)
    for dirs, own in by_folder.items():
        meanings = [role_of(name, depth) for depth, name in enumerate(dirs)]
        folder = next((role for role in reversed(meanings) if role not in ("", "split")), "")
        named = [_is_mask(unit) for unit in own]
        if folder == "image" and all(named):
            named = [unit.segmentation for unit in own]
        for unit, is_mask in zip(own, named, strict=True):
            role = folder if folder in ("mask", "unlabelled") else "mask" if is_mask else "image"
            getattr(roles, role).append(unit)
    return roles


def _is_mask(unit: Unit) -> bool:
    ending = words(unit.stem)[-1:]
    by_name = says("mask", unit.stem) or {*ending} & called("mask at the end of a file")
    return unit.segmentation or bool(by_name)


# --- sites and patients: a level counts the folders whose names mean nothing by themselves --------


def _name_at(unit: Unit, level: int) -> str:
    return unit.dirs[unit.neutral[level]] if level < len(unit.neutral) else ""


def _varying(units: Sequence[Unit], above: int = 0) -> list[int]:
    """Which levels vary, so many at the end left out."""
    depth = min(len(unit.neutral) for unit in units) - above
    return [level for level in range(depth) if len({_name_at(u, level) for u in units}) > 1]


def by_site(units: Sequence[Unit], level: int | None, root: Path) -> dict[str, list[Unit]]:
    """The units of each site, by the folder of this level; None: all are of one."""
    sites: dict[str, list[Unit]] = defaultdict(list)
    for unit in units:
        name = "" if level is None else _name_at(unit, level)
        sites[site_name(name or root.resolve().name)].append(unit)
    return dict(sorted(sites.items()))


def site_level(
    images: Sequence[Unit], masks: Sequence[Unit] | None = None, above: int = 0
) -> int | None:
    """Which level is the site; None if all of it is one site."""
    mask_folders = {mask.dirs[depth] for mask in masks or () for depth in mask.neutral}
    varying = _varying(images, above)
    around = None  # a folder around everything
    for level in range(min(len(image.neutral) for image in images) - above):
        names = {_name_at(image, level) for image in images}
        if masks is not None and not names & mask_folders:
            continue  # the name that a site gives to its images
        if len(names) == 1 and any(deeper > level for deeper in varying):
            around = level
            continue
        return around if _are_patients(images, level) else level
    return around


def _are_patients(images: Sequence[Unit], level: int) -> bool:
    """Whether folders are patients rather than sites: of one image, or numbered and small."""
    sizes = Counter(_name_at(image, level) for image in images)
    if len(sizes) < 3 or any(says("site", name) for name in sizes):
        return False
    numbered = len({sub(r"\d+", "#", name) for name in sizes}) == 1
    pictures = images[0].kind == "picture"
    small = len(sizes) >= FEW if pictures else max(sizes.values()) <= FEW
    return median(sizes.values()) == 1 or (numbered and small)


def patient_pattern(images: Sequence[Unit], site: int | None, above: int = 0) -> dict[str, str]:
    """`patient`, if a folder is one: the first below the site that varies."""
    below = [level for level in _varying(images, above) if site is None or level > site]
    depths = {image.neutral[below[0]] for image in images} if below else set()
    return {"patient": "^" + "[^/]+/" * depths.pop() + "([^/]+)/"} if len(depths) == 1 else {}
