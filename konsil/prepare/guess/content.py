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
from konsil.data.intensity import OF_VOLUMES
from konsil.data.notes import DARK
from konsil.data.readers import SIXTEEN_BIT, mask_values, read_mask, read_picture
from konsil.data.recipe import THREADS, View
from konsil.prepare.guess.draft import Draft, SiteDraft, some_of
from konsil.prepare.guess.files import Unit

MOST_VALUES = 12  # of a mask; more are grey levels
PICTURES, VOLUMES = 200, 12  # of a site that are opened
SLAB = 1.5  # times thicker than wide: voxels are looked at along their longest side
HOUNSFIELD = -500  # below this only CT goes


def sample(units: Sequence[Unit]) -> list[Unit]:
    """So many units, spread over all of them."""
    most = PICTURES if units and units[0].kind == "picture" else VOLUMES
    if len(units) <= most:
        return list(units)
    return [units[round(k * (len(units) - 1) / (most - 1))] for k in range(most)]


def few_valued(path: Path) -> bool:
    """Whether a picture has so few grey levels or colours that it may be a mask."""
    try:
        return len(mask_values(_mask_of_picture(path)[0])) <= MOST_VALUES
    except (BadFile, OSError):
        return False


# --- masks --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Values:
    """What one mask holds."""

    values: frozenset[int]
    border: int | None = None
    names: dict[int, str] = field(default_factory=dict)
    coloured: bool = False

    def in_colour(self) -> _Values:
        """A mask of black alone is grey, also among coloured ones."""
        if self.coloured:
            return self
        border = None if self.border is None else self.border * 0x010101
        return _Values(frozenset(value * 0x010101 for value in self.values), border, self.names)


@dataclass
class MaskFacts:
    """What a sample of a site's masks holds."""

    opened: int = 0
    of: int = 0
    values: Counter[int] = field(default_factory=Counter)  # value -> masks it occurs in
    borders: Counter[int] = field(default_factory=Counter)  # value -> masks along whose border
    names: dict[int, str] = field(default_factory=dict)  # DICOM SEG: what a segment is called
    coloured: bool = False
    unreadable: list[str] = field(default_factory=list)

    @property
    def background(self) -> int:
        """0, unless it is hardly ever at the border and another value is."""
        if not self.borders or 2 * self.borders[0] >= self.opened:
            return 0
        value, times = self.borders.most_common(1)[0]
        return value if 2 * times > self.opened else 0

    @property
    def labels(self) -> list[int]:
        """The values beside background, sorted."""
        return sorted(value for value in self.values if value != self.background)

    def code(self, value: int) -> int | str:
        """A value as the federation file writes it."""
        return f"#{value:06x}" if self.coloured else value


def look_at_masks(root: Path, masks: Sequence[Unit]) -> MaskFacts:
    """The values of a sample of masks."""
    chosen = sample(masks)
    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(lambda unit: _values_or_none(root, unit), chosen))
    read = [result for result in results if result is not None]
    facts = MaskFacts(of=len(masks), opened=len(read), coloured=any(r.coloured for r in read))
    facts.unreadable = [u.path for u, r in zip(chosen, results, strict=True) if r is None]
    for result in (r.in_colour() for r in read) if facts.coloured else read:
        facts.values.update(result.values)
        facts.borders.update([] if result.border is None else [result.border])
        facts.names |= result.names
    return facts


def _values_or_none(root: Path, unit: Unit) -> _Values | None:
    try:
        if unit.segmentation:
            return _segments(root / unit.path)
        if unit.kind == "picture":
            array, coloured = _mask_of_picture(root / unit.path)
            return _Values(frozenset(mask_values(array)), _border(array), coloured=coloured)
        return _Values(frozenset(mask_values(_mask_of_volume(root, unit))))
    except (BadFile, OSError):  # `konsil data check` says what is wrong with it
        return None


def _mask_of_picture(path: Path) -> tuple[NDArray[Any], bool]:
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


def _mask_of_volume(root: Path, unit: Unit) -> NDArray[Any]:
    from konsil.data.volumes import read_volume

    pictures = sorted((root / unit.path).glob("*.png")) if unit.kind == "series" else []
    if pictures:  # one for every slice of a DICOM series
        return np.concatenate([_mask_of_picture(path)[0].ravel() for path in pictures])
    array = read_volume(root / unit.path).array
    if not np.array_equal(array, np.rint(array)):
        raise BadFile("mask with fractional values", "save masks with whole numbers")
    return array.astype(np.int64)


def _segments(path: Path) -> _Values:
    """The segments of a DICOM SEG, by number and name."""
    from pydicom import dcmread

    from konsil.data.volumes.headers import files_of

    file = files_of(path)[0] if path.is_dir() else path
    sequence = dcmread(file, specific_tags=["SegmentSequence"]).get("SegmentSequence") or []
    names = {int(one.SegmentNumber): str(one.get("SegmentLabel") or "") for one in sequence}
    return _Values(frozenset({0, *names}), names=names)


# --- images -------------------------------------------------------------------------------------


@dataclass
class _ImageFacts:
    """What a sample of a site's images holds."""

    coloured: bool = False
    brightest: int | None = None  # of 16-bit pictures
    channel: int | None = None  # of files with several volumes
    view: View | None = None  # of volumes
    darkest: float = 0.0  # of a volume
    unreadable: list[str] = field(default_factory=list)


def look_at_images(root: Path, draft: Draft, site: SiteDraft) -> bool:
    """What a site's images need to be read: windows, slices; whether they are coloured."""
    facts = _ImageFacts()
    if site.images[0].kind != "picture":
        facts.view = "axial"
        _look_at_volume(root / site.images[0].path, site.settings.get("series"), facts)
    else:
        for unit in sample(site.images)[:: max(1, PICTURES // 20)]:
            try:
                _look_at_picture(root / unit.path, facts)
            except (BadFile, OSError):
                facts.unreadable.append(unit.path)
    _add_reading(draft, site, facts)
    return facts.coloured


def _look_at_picture(path: Path, facts: _ImageFacts) -> None:
    image = read_picture(path.read_bytes())
    if image.mode in SIXTEEN_BIT:
        facts.brightest = max(facts.brightest or 0, int(np.asarray(image).max()))
    elif image.mode not in ("1", "L", "LA", "F"):
        pixels = np.asarray(image.convert("RGB"))
        facts.coloured |= bool(np.ptp(pixels, axis=2).any())


def _look_at_volume(path: Path, series: str | None, facts: _ImageFacts) -> None:
    from konsil.data.volumes import read_volume

    try:
        try:
            volume = read_volume(path, None, series)
        except BadFile as bad:
            if bad.what != "file of several volumes":
                raise
            facts.channel = 0
            volume = read_volume(path, 0, series)
    except BadFile:
        facts.unreadable.append(path.name)
        return
    facts.coloured = volume.array.ndim == 4
    facts.darkest = float(volume.array.min())
    facts.view = _view(volume.affine)


def _view(affine: NDArray[np.float64]) -> View:
    """Across the thick side of the voxels, where the planes were measured; else axial."""
    spacing = np.linalg.norm(affine[:3, :3], axis=0)
    thick = int(spacing.argmax())
    if spacing[thick] < SLAB * np.median(spacing):
        return "axial"
    views: tuple[View, ...] = ("sagittal", "coronal", "axial")  # across right, front, head
    return views[int(np.abs(affine[:3, thick]).argmax())]


def _add_reading(draft: Draft, site: SiteDraft, facts: _ImageFacts) -> None:
    """Windows, slices and which volume of several."""
    settings, comments = site.settings, draft.comments

    def say(text: str) -> None:
        draft.to_do.append(f"{site.name}: {text}")

    if facts.unreadable:
        say(f"images that cannot be read: {some_of(facts.unreadable)}")
    if facts.brightest is not None and facts.brightest < DARK:
        settings["window"] = [0, 2 ** facts.brightest.bit_length() - 1]
        comments["window"] = ["16-bit pictures that use fewer bits. (!) Check the range."]
    if facts.view is not None:
        settings["window"] = {"percentiles": [OF_VOLUMES.low, OF_VOLUMES.high]}
        settings["slices"] = {"view": facts.view, "which": "labelled", "every": 1}
        comments["window"] = ["Of every volume; or darkest and brightest, as in [0, 2048]."]
        comments["slices"] = ["Planes that become images: axial, coronal or sagittal."]
    if facts.darkest < HOUNSFIELD:
        say(
            "looks like CT: a window in Hounsfield units, such as [-160, 240] for soft tissue, "
            "keeps more than percentiles"
        )
    if facts.channel is not None:
        settings["channel"] = facts.channel
        comments["channel"] = ["(!) The files hold several volumes; this is the first."]
        say("files of several volumes: check `channel`")
    if "series" in settings:
        comments["series"] = ["(!) Folders with several series: chosen by description."]
        say("folders hold several series: check `series`")
