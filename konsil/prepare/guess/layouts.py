"""From files to sites: masks beside images, one folder a class, or as a person says."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from statistics import median

from konsil.data.listing import BY_FOLDER
from konsil.data.patterns import TOKEN, Pattern
from konsil.data.sources import Item, without_suffix
from konsil.errors import ConfigError, DataError
from konsil.prepare.guess.draft import Draft, SiteDraft, site_name
from konsil.prepare.guess.files import Unit
from konsil.prepare.guess.pairing import pair, place, suffixes
from konsil.prepare.guess.rules import called, class_order, role_of, says, words

MOST_CLASSES = 20
FEW = 6  # contrasts of one patient; fewer numbered folders of pictures are not called patients
SITE = "{site}"  # in a pattern that a person gives
Roles = dict[str, list[Unit]]  # image, mask, unlabelled (a challenge's test part) -> files


# --- images and masks --------------------------------------------------------------------------


def sort_out(units: Sequence[Unit]) -> Roles:
    """Files by the deepest folder with a meaning; their names may tell masks from images."""
    roles: Roles = {"image": [], "mask": [], "unlabelled": []}
    by_folder: dict[tuple[str, ...], list[Unit]] = defaultdict(list)
    for unit in units:
        by_folder[unit.dirs].append(unit)
    for dirs, own in by_folder.items():
        meanings = [role_of(name, depth) for depth, name in enumerate(dirs)]
        folder = next((role for role in reversed(meanings) if role in roles), "")
        named = [_is_mask(unit) for unit in own]
        if folder == "image" and all(named):
            named = [unit.segmentation for unit in own]
        for unit, is_mask in zip(own, named, strict=True):
            by_name = "mask" if is_mask else "image"
            roles[folder if folder in ("mask", "unlabelled") else by_name].append(unit)
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
    whole = root.resolve().name
    for unit in units:
        name = "" if level is None else _name_at(unit, level)
        sites[site_name(name or whole)].append(unit)
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
    numbered = len({re.sub(r"\d+", "#", name) for name in sizes}) == 1
    pictures = images[0].kind == "picture"
    small = len(sizes) >= FEW if pictures else max(sizes.values()) <= FEW
    return median(sizes.values()) == 1 or (numbered and small)


def patient_pattern(images: Sequence[Unit], site: int | None, above: int = 0) -> dict[str, str]:
    """`patient`, if a folder is one: the first below the site that varies."""
    below = [level for level in _varying(images, above) if site is None or level > site]
    depths = {image.neutral[below[0]] for image in images} if below else set()
    return {"patient": "^" + "[^/]+/" * depths.pop() + "([^/]+)/"} if len(depths) == 1 else {}


# --- segmentation -------------------------------------------------------------------------------


def segmentation(root: Path, roles: Roles, left_out: dict[str, list[str]]) -> Draft | None:
    """The sites of a segmentation; None if images and masks do not go together anywhere."""
    if not roles["image"] or not roles["mask"]:
        return None
    level = site_level(roles["image"], roles["mask"])
    masks = by_site(roles["mask"], level, root)
    draft = Draft("segmentation")
    alone = {}
    for name, images in by_site(roles["image"], level, root).items():
        own = masks.get(name, [])
        found = pair(images, own if images[0].kind == "picture" else _stacks_as_folders(own))
        if found is None:
            reason = "no mask goes with its images by name" if own else "it has no masks"
            alone[f"{name} was left out, for {reason}"] = [unit.path for unit in images]
        else:
            draft.sites.append(SiteDraft(name, found[0], patient_pattern(found[1], level)))
    if not draft.sites:
        return None
    left_out |= alone
    names = [site.name for site in draft.sites]
    if any(says("negative", name) for name in names):
        draft.to_do.append(
            f"the sites are {', '.join(names)}, as folders are called: are those classes?"
        )
    return draft


def _stacks_as_folders(masks: list[Unit]) -> list[Unit]:
    """A PNG for every slice of a DICOM series: the folder is the mask."""
    folders = {"/".join(mask.dirs) for mask in masks if mask.kind == "picture" and mask.dirs}
    whole = [mask for mask in masks if mask.kind != "picture"]
    return whole or [Unit(path, "series") for path in sorted(folders)]


# --- classification -----------------------------------------------------------------------------


def classification(root: Path, images: Sequence[Unit]) -> Draft | None:
    """One folder a class; None if the folders do not look like that."""
    inside = [unit for unit in images if unit.dirs and not role_of(unit.dirs[-1])]
    if not inside:
        return None
    level = site_level(inside, above=1)  # the last is the class
    draft = Draft("classification")
    classes = []
    for name, own in by_site(inside, level, root).items():
        depth = max(len(unit.dirs) for unit in own)
        units = [unit for unit in own if len(unit.dirs) == depth]
        keys = {"images": f"{place(units)}*{suffixes(units)}", "labels": BY_FOLDER}
        draft.sites.append(SiteDraft(name, keys, patient_pattern(units, level, above=1)))
        classes.append({unit.dirs[-1] for unit in units})
    every = set().union(*classes)
    # sites have classes in common; otherwise their folders are something else
    shared = len(classes) == 1 or all(any(a & b for b in classes if b is not a) for a in classes)
    if not 2 <= len(every) <= MOST_CLASSES or not shared:
        return None
    add_classes(draft, every)
    if not any(says("negative", name) for name in every):
        names = ", ".join(sorted(every))
        what = "sites" if len(classes) == 1 else "images and their masks (--images, --masks)"
        draft.to_do.append(f"the folders {names} are taken for classes: are they {what}?")
    return draft


def add_classes(draft: Draft, names: set[str]) -> None:
    """Folders that images lie in are their classes."""
    draft.top["classes"] = class_order(names)
    draft.comments["classes"] = ["The last is the positive one."]


def unlabelled_sites(root: Path, images: Sequence[Unit]) -> list[SiteDraft]:
    """Images by site, whatever their labels are."""
    level = site_level(images) if images else None
    sites = by_site(images, level, root)
    items = {name: [Item(name, unit.path, "", "") for unit in own] for name, own in sites.items()}
    return [SiteDraft(name, {}, items=own) for name, own in items.items()]


# --- as a person says ---------------------------------------------------------------------------


def as_given(root: Path, task: str | None, images: str | None, masks: Sequence[str]) -> Draft:
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
    draft = Draft("segmentation" if masks else "classification")
    folders: set[str] = set()
    for name in _sites(root, images):
        labels = {key: text.replace(SITE, name) for key, text in patterns.items()}
        for text in labels.values():
            _matching(root, text, "--masks")
        pattern = images.replace(SITE, name)
        folders |= {
            PurePosixPath(path).parent.name for path in _matching(root, pattern, "--images")
        }
        keys = {"images": pattern, "labels": labels.get("", labels) if masks else BY_FOLDER}
        draft.sites.append(SiteDraft(site_name(name), keys))
    if not masks:
        add_classes(draft, folders)
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


def _matching(root: Path, text: str, option: str) -> list[str]:
    found = [path for path, _ in Pattern(text, option).find(root)]
    if not any((root / path).is_dir() or path != without_suffix(path) for path in found):
        raise DataError(f"{option} {text}: matches no image below {root}")
    return found
