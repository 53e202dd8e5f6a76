"""What is in a sample of the files, and what follows: structures, window, slices, channels."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from konsil.data.findings import BadFile, Findings
from konsil.data.image_with_masks import open_with_masks
from konsil.data.notes import DARK
from konsil.data.readers import OF_VOLUMES, mask_values
from konsil.data.recipe import UNNAMED, Reading, in_threads
from konsil.data.sources import Item
from konsil.prepare.guess.draft import Draft, SiteDraft, some_of
from konsil.prepare.guess.files import Contents

MOST_PICTURES, MOST_VOLUMES = 200, 12  # of a site that are opened
MOST_VALUES = 12  # of a mask; more are grey levels
HOUNSFIELD = -500  # below this only CT goes
SLAB = 1.5  # times thicker than wide: voxels are looked at along their longest side
VIEWS = ("axial", "coronal", "sagittal")
RETRIED: dict[str, dict[str, Any]] = {
    "coloured mask": {"colours": True},
    "file of several volumes": {"channel": 0},
}
NESTED = (
    "A value may belong to several structures: a disc that includes its cup is",
    "disc: [128, 255], cup: [255].",
)


@dataclass(frozen=True)
class Seen:
    """What one image with its masks holds, and how it had to be read."""

    reading: Reading
    coloured: bool
    darkest: float
    brightest: int  # of a 16-bit picture, else 0
    view: str  # of a volume: across the thick side of its voxels, where planes were measured
    values: list[int]  # of its masks
    borders: list[int]  # the most frequent value along the edges of each picture of a mask


@dataclass(frozen=True)
class Masks:
    """What the masks of a site hold: values or colours as the federation file writes them."""

    background: int | str
    codes: list[Any]  # sorted
    opened: int
    of: int


def look_inside(root: Path, draft: Draft, site: SiteDraft) -> Masks | None:
    """Open a sample of a site's items and write down how to read them; None: all are bad."""
    count = min(MOST_PICTURES if site.pictures else MOST_VOLUMES, len(site.items))
    sample = [site.items[round(k)] for k in np.linspace(0, len(site.items) - 1, count)]
    names = tuple((name, None) for name in site.structures) or UNNAMED
    series = site.settings.get("series")
    reading = Reading(names if draft.task == "segmentation" else (), series=series)
    bad = Findings()
    found = in_threads(lambda item: _look(root, item, reading), sample, bad)
    seen = [one for one in found if one is not None]
    for what, places, cure in bad.kinds():
        draft.to_do.append(f"{site.name}: {what}: {some_of(places)}; {cure}")
    if not seen:
        return None
    if not site.pictures:
        _add_slices(draft, site, seen[0])
    elif 0 < (brightest := max(one.brightest for one in seen)) < DARK:
        site.settings["window"] = [0, 2 ** brightest.bit_length() - 1]
        draft.comments["window"] = ["16-bit pictures that use fewer bits. (!) Check the range."]
    if any(one.coloured for one in seen):
        draft.top["channels"] = 3
    return _masks(seen, len(site.items))


def _look(root: Path, item: Item, reading: Reading) -> Seen:
    try:
        opened = open_with_masks(root, item, reading)
    except BadFile as bad:
        other = replace(reading, **RETRIED.get(bad.what, {}))
        if other == reading or (other.colours and item.masks):
            raise
        return _look(root, item, other)
    raw, planes = opened.raw, [mask.values[0] for mask in opened.masks]
    spacing = opened.spacing or (1, 1, 1)  # between axial, coronal and sagittal planes
    thick = int(np.argmax(spacing)) if max(spacing) >= SLAB * np.median(spacing) else 0
    return Seen(
        reading=reading,
        coloured=raw.ndim == 4 and any((raw[..., 0] != raw[..., k]).any() for k in (1, 2)),
        darkest=float(raw.min()),
        brightest=int(raw.max()) if opened.sixteen_bit else 0,
        view=VIEWS[thick],
        values=[value for mask in opened.masks for value in mask_values(mask.values)],
        borders=[_border(plane) for plane in planes] if opened.spacing is None else [],
    )


def _border(plane: NDArray[Any]) -> int:
    edges = np.concatenate([plane[0], plane[-1], plane[:, 0], plane[:, -1]])
    return Counter(edges.tolist()).most_common(1)[0][0]


def _add_slices(draft: Draft, site: SiteDraft, seen: Seen) -> None:
    site.settings["window"] = {"percentiles": [OF_VOLUMES.low, OF_VOLUMES.high]}
    site.settings["slices"] = {"view": seen.view, "which": "labelled", "every": 1}
    draft.comments["window"] = ["Of every volume; or darkest and brightest, as in [0, 2048]."]
    draft.comments["slices"] = ["Planes that become images: axial, coronal or sagittal."]
    if seen.reading.channel is not None:
        site.settings["channel"] = 0
        draft.comments["channel"] = ["(!) The files hold several volumes; this is the first."]
        draft.to_do.append(f"{site.name}: files of several volumes: check `channel`")
    if "series" in site.settings:
        draft.comments["series"] = ["(!) Folders with several series: chosen by description."]
        draft.to_do.append(f"{site.name}: folders hold several series: check `series`")
    if seen.darkest < HOUNSFIELD:
        draft.to_do.append(
            f"{site.name}: looks like CT: a window in Hounsfield units, such as [-160, 240] for "
            "soft tissue, keeps more than percentiles"
        )


# --- what the values of masks may mean ------------------------------------------------------------


def _masks(seen: Sequence[Seen], of: int) -> Masks:
    """0 is background unless most masks have another value around."""
    coloured = any(one.reading.colours for one in seen)
    values: set[int] = set()
    borders: Counter[int] = Counter()
    for one in seen:
        # a mask of black alone is grey, also among coloured ones
        grey = 0x010101 if coloured and not one.reading.colours else 1
        values |= {value * grey for value in one.values}
        borders.update(value * grey for value in one.borders)
    usual, times = borders.most_common(1)[0] if borders else (0, 0)
    ground = usual if 2 * times > borders.total() else 0
    codes = [f"#{v:06x}" if coloured else v for v in (ground, *sorted(values - {ground}))]
    return Masks(codes[0], codes[1:], len(seen), of)


def names_of_values(root: Path, contents: Contents) -> dict[Any, str]:
    """What the dataset.json of nnU-Net or the Decathlon, or a DICOM SEG, calls the values."""
    for path in contents.datalists:
        try:
            labels = json.loads((root / path).read_text(encoding="utf-8"))["labels"]
            pairs = [(k, v) if str(k).isdigit() else (v, k) for k, v in labels.items()]
            return {int(value): str(name) for value, name in pairs if int(value)}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    segmented = [root / unit.path for unit in contents.units if unit.segmentation][:1]
    return _segments(segmented[0]) if segmented else {}


def _segments(path: Path) -> dict[Any, str]:
    from pydicom import dcmread

    from konsil.data.volumes.headers import files_of

    file = files_of(path)[0] if path.is_dir() else path
    sequence = dcmread(file, specific_tags=["SegmentSequence"]).get("SegmentSequence") or []
    return {int(one.SegmentNumber): str(one.get("SegmentLabel") or "") for one in sequence}


def add_structures(draft: Draft, masks: Mapping[str, Masks], known: Mapping[Any, str]) -> None:
    """A mapping for every site, with names to be edited; `known` are names of values."""
    for site in draft.sites:
        if site.name in masks:
            _report(draft, site, masks[site.name])
    if any(site.structures for site in draft.sites):
        _one_file_each(draft)
        return
    clear = {site: own for site, own in masks.items() if 0 < len(own.codes) <= MOST_VALUES}
    if not clear:
        draft.top["structures"] = {"foreground": [255]}
        draft.comments["structures"] = ["(!) No mask could be understood: this is a placeholder."]
        return
    most = max(len(own.codes) for own in clear.values())
    if _apart([own.codes for own in clear.values()], most):
        _by_rank(draft, clear, most)
    else:
        every = sorted({code for own in clear.values() for code in own.codes})
        for site in draft.sites:
            site.settings["structures"] = _mapping(every, most, known)
    _ask_for_names(draft, clear, most)


def _report(draft: Draft, site: SiteDraft, own: Masks) -> None:
    if own.background not in (0, "#000000"):
        site.settings["background"] = own.background
    if len(own.codes) > MOST_VALUES:
        draft.to_do.append(
            f"{site.name}: the masks hold {len(own.codes)} values, such as "
            f"{_listed(own.codes[:4])}. If they were saved as JPEG or resampled smoothly, they "
            "cannot be used: save masks as PNG, one value a structure"
        )
    elif not own.codes:
        draft.to_do.append(f"{site.name}: nothing is marked in {own.opened} masks")


def _one_file_each(draft: Draft) -> None:
    for site in draft.sites:
        site.settings["structures"] = site.structures
    names = dict.fromkeys(name for site in draft.sites for name in site.structures)
    draft.comments["structures"] = ["One mask file each. (!) Check the names."]
    draft.to_do.append(
        f"structures: check the names {', '.join(names)}, which come from the files; if those are "
        "people who drew the same structure, keep the pattern of one"
    )


def _apart(codes: Sequence[Sequence[Any]], most: int) -> bool:
    """Whether each site needs a mapping of its own: some are coloured, or all values differ."""
    if len({isinstance(own[0], str) for own in codes}) > 1:
        return True
    alike = most > 1 and all(len(own) == most for own in codes)
    return alike and any(not {*one} & {*other} for one in codes for other in codes)


def _mapping(codes: list[Any], most: int, known: Mapping[Any, str]) -> dict[str, list[Any]]:
    """Names for values in their order; what masks hold only one of is one structure."""
    if most == 1:
        return {known.get(codes[0], "foreground") if len(codes) == 1 else "foreground": codes}
    mapping: dict[str, list[Any]] = {}
    for k, code in enumerate(codes, 1):  # two values may have one name
        mapping.setdefault(known.get(code) or f"structure_{k}", []).append(code)
    return mapping


def _by_rank(draft: Draft, clear: Mapping[str, Masks], most: int) -> None:
    """Each site's own values in their order; a site with fewer than others is left out."""
    for site in list(draft.sites):
        codes = clear[site.name].codes if site.name in clear else []
        if len(codes) == most:
            site.settings["structures"] = _mapping(codes, most, {})
        else:
            draft.sites.remove(site)
            draft.to_do.append(
                f"{site.name} was left out, for its masks hold {_listed(codes) or 'nothing'} and "
                f"those of other sites {most} values or colours: say what stands for what"
            )


def _ask_for_names(draft: Draft, clear: Mapping[str, Masks], most: int) -> None:
    names = draft.sites[0].settings["structures"]
    new = [name for name in names if name == "foreground" or name.startswith("structure_")]
    texts = {site: _listed(own.codes) for site, own in clear.items()}
    what = "; ".join(f"{text} at {site}" for site, text in texts.items())
    if len(set(texts.values())) == 1:
        what = next(iter(texts.values()))
    opened, of = sum(own.opened for own in clear.values()), sum(own.of for own in clear.values())
    seen = f"{what} in {opened} of {of} masks"
    if most == 1:
        draft.comments["structures"] = ["(!) Give it its name.", f"Found {seen}."]
        draft.to_do += [f"structures: give {name} its name; found {seen}" for name in new]
    else:
        edit = "(!) Edit the names and what belongs to them."
        draft.comments["structures"] = [edit, f"Found {seen}.", *NESTED]
        draft.to_do.append(f"structures: {'give' if new else 'check'} their names; found {seen}")


def _listed(codes: Sequence[int | str]) -> str:
    return ", ".join(map(str, codes))
