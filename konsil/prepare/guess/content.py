"""What is in a sample of the files: mask values, colours, several volumes in one, depth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from konsil.data.findings import BadFile
from konsil.data.notes import DARK
from konsil.data.readers import OF_VOLUMES, SIXTEEN_BIT, mask_values, read_mask, read_picture
from konsil.data.recipe import THREADS
from konsil.prepare.guess.draft import Draft, SiteDraft, some_of
from konsil.prepare.guess.files import Unit

MOST_VALUES = 12  # of a mask; more are grey levels
MOST = {"picture": 200, "volume": 12, "series": 12}  # of a site's masks that are opened
IMAGES = 20  # of a site that are opened, if they are pictures; of volumes one
HOUNSFIELD = -500  # below this only CT goes
SLAB = 1.5  # times thicker than wide: voxels are looked at along their longest side


def sample(units: Sequence[Unit], most: int) -> list[Unit]:
    """So many units, spread over all of them."""
    if len(units) <= most:
        return list(units)
    return [units[round(k * (len(units) - 1) / (most - 1))] for k in range(most)]


def few_valued(path: Path) -> bool:
    """Whether a picture has so few grey levels or colours that it may be a mask."""
    try:
        return len(mask_values(_mask_picture(path)[0])) <= MOST_VALUES
    except (BadFile, OSError):
        return False


# --- masks --------------------------------------------------------------------------------------


@dataclass
class MaskFacts:
    """What one mask holds, or a sample of a site's."""

    values: Counter[int] = field(default_factory=Counter)  # value -> masks it occurs in
    borders: Counter[int] = field(default_factory=Counter)  # value -> masks along whose border
    names: dict[int, str] = field(default_factory=dict)  # DICOM SEG: what a segment is called
    coloured: bool = False
    opened: int = 0
    of: int = 0
    unreadable: list[str] = field(default_factory=list)

    @property
    def background(self) -> int:
        """0, unless it is hardly ever at the border and another value is."""
        value, times = self.borders.most_common(1)[0] if self.borders else (0, 0)
        rare = 2 * self.borders[0] < self.opened
        return value if rare and 2 * times > self.opened else 0

    @property
    def labels(self) -> list[int]:
        """The values beside background, sorted."""
        return sorted(value for value in self.values if value != self.background)

    def code(self, value: int) -> int | str:
        """A value as the federation file writes it."""
        return f"#{value:06x}" if self.coloured else value


def look_at_masks(root: Path, masks: Sequence[Unit]) -> MaskFacts:
    """The values of a sample of masks."""
    chosen = sample(masks, MOST[masks[0].kind])
    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(lambda unit: _values(root, unit), chosen))
    read = [result for result in results if result is not None]
    facts = MaskFacts(of=len(masks), opened=len(read), coloured=any(r.coloured for r in read))
    facts.unreadable = [u.path for u, r in zip(chosen, results, strict=True) if r is None]
    for one in read:
        # a mask of black alone is grey, also among coloured ones
        grey = 0x010101 if facts.coloured and not one.coloured else 1
        facts.values.update(value * grey for value in one.values)
        facts.borders.update(value * grey for value in one.borders)
        facts.names |= one.names
    return facts


def _values(root: Path, unit: Unit) -> MaskFacts | None:
    path = root / unit.path
    pictures = [path] if unit.kind == "picture" else sorted(path.glob("*.png"))
    try:
        if unit.segmentation:
            names = _segments(path)
            return MaskFacts(Counter([0, *names]), names=names)
        if not pictures:
            return MaskFacts(Counter(mask_values(_mask_volume(path))))
        read = [_mask_picture(picture) for picture in pictures]  # one, or one for every slice
    except (BadFile, OSError):  # `konsil data check` says what is wrong with it
        return None
    values = Counter({value for array, _ in read for value in mask_values(array)})
    borders = Counter([_border(read[0][0])] if unit.kind == "picture" else [])
    return MaskFacts(values, borders, coloured=any(coloured for _, coloured in read))


def _mask_picture(path: Path) -> tuple[NDArray[Any], bool]:
    data = path.read_bytes()
    try:
        return read_mask(data), False
    except BadFile as bad:
        if bad.what != "coloured mask":
            raise
        return read_mask(data, colours=True), True


def _border(array: NDArray[Any]) -> int:
    """The most frequent value along the four edges."""
    edges = np.concatenate([array[0], array[-1], array[:, 0], array[:, -1]])
    values, counts = np.unique(edges, return_counts=True)
    return int(values[counts.argmax()])


def _mask_volume(path: Path) -> NDArray[Any]:
    from konsil.data.volumes import read_volume

    array = read_volume(path).array
    if not np.array_equal(array, np.rint(array)):
        raise BadFile("mask with fractional values", "save masks with whole numbers")
    return array.astype(np.int64)


def _segments(path: Path) -> dict[int, str]:
    """The segments of a DICOM SEG, by number and name."""
    from pydicom import dcmread

    from konsil.data.volumes.headers import files_of

    file = files_of(path)[0] if path.is_dir() else path
    sequence = dcmread(file, specific_tags=["SegmentSequence"]).get("SegmentSequence") or []
    return {int(one.SegmentNumber): str(one.get("SegmentLabel") or "") for one in sequence}


# --- images -------------------------------------------------------------------------------------


def look_at_images(root: Path, draft: Draft, site: SiteDraft) -> bool:
    """Write down what a site's images need to be read; whether they are coloured."""
    look = _pictures if site.images[0].kind == "picture" else _volume
    coloured, unreadable = look(root, draft, site)
    if unreadable:
        draft.to_do.append(f"{site.name}: images that cannot be read: {some_of(unreadable)}")
    if "series" in site.settings:
        draft.comments["series"] = ["(!) Folders with several series: chosen by description."]
        draft.to_do.append(f"{site.name}: folders hold several series: check `series`")
    return coloured


def _pictures(root: Path, draft: Draft, site: SiteDraft) -> tuple[bool, list[str]]:
    coloured, brightest = False, 0
    unreadable = []
    for unit in sample(site.images, IMAGES):
        try:
            image = read_picture((root / unit.path).read_bytes())
        except (BadFile, OSError):
            unreadable.append(unit.path)
            continue
        if image.mode in SIXTEEN_BIT:
            brightest = max(brightest, int(np.asarray(image).max()))
        elif image.mode not in ("1", "L", "LA", "F"):
            coloured |= bool(np.ptp(np.asarray(image.convert("RGB")), axis=2).any())
    if 0 < brightest < DARK:
        site.settings["window"] = [0, 2 ** brightest.bit_length() - 1]
        draft.comments["window"] = ["16-bit pictures that use fewer bits. (!) Check the range."]
    return coloured, unreadable


def _volume(root: Path, draft: Draft, site: SiteDraft) -> tuple[bool, list[str]]:
    from konsil.data.volumes import read_volume

    path, series, settings = root / site.images[0].path, site.settings.get("series"), site.settings
    settings["window"] = {"percentiles": [OF_VOLUMES.low, OF_VOLUMES.high]}
    settings["slices"] = {"view": "axial", "which": "labelled", "every": 1}
    draft.comments["window"] = ["Of every volume; or darkest and brightest, as in [0, 2048]."]
    draft.comments["slices"] = ["Planes that become images: axial, coronal or sagittal."]
    try:
        try:
            volume = read_volume(path, None, series)
        except BadFile as bad:
            if bad.what != "file of several volumes":
                raise
            volume = read_volume(path, 0, series)
            settings["channel"] = 0
            draft.comments["channel"] = ["(!) The files hold several volumes; this is the first."]
            draft.to_do.append(f"{site.name}: files of several volumes: check `channel`")
    except BadFile:
        return False, [path.name]
    settings["slices"]["view"] = _view(volume.affine)
    if volume.array.min() < HOUNSFIELD:
        draft.to_do.append(
            f"{site.name}: looks like CT: a window in Hounsfield units, such as [-160, 240] for "
            "soft tissue, keeps more than percentiles"
        )
    return volume.array.ndim == 4, []


def _view(affine: NDArray[np.float64]) -> str:
    """Across the thick side of the voxels, where the planes were measured; else axial."""
    spacing = np.linalg.norm(affine[:3, :3], axis=0)
    thick = int(spacing.argmax())
    if spacing[thick] < SLAB * np.median(spacing):
        return "axial"
    return ("sagittal", "coronal", "axial")[int(np.abs(affine[:3, thick]).argmax())]
