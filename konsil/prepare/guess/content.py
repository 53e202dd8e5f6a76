"""What is in a sample of the files: mask values, colours, several volumes in one, depth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from konsil.data.findings import BadFile
from konsil.data.readers import SIXTEEN_BIT, mask_values, read_mask, read_picture
from konsil.data.recipe import THREADS, View
from konsil.prepare.guess.walk import Unit

MOST_VALUES = 12  # of a mask; more are grey levels
PICTURES, VOLUMES = 200, 12  # of a site that are opened
SLAB = 1.5  # times thicker than wide: voxels are looked at along their longest side
FULL = 65535


def sample(units: Sequence[Unit]) -> list[Unit]:
    """So many units, spread over all of them."""
    most = PICTURES if units and units[0].kind == "picture" else VOLUMES
    if len(units) <= most:
        return list(units)
    return [units[round(k * (len(units) - 1) / (most - 1))] for k in range(most)]


def few_valued(path: Path) -> bool:
    """Whether a picture has so few grey levels or colours that it may be a mask."""
    try:
        values, _ = _mask_of_picture(path)
    except (BadFile, OSError):
        return False
    return len(mask_values(values)) <= MOST_VALUES


# --- masks --------------------------------------------------------------------------------------


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


def look_at_masks(root: Path, masks: Sequence[Unit]) -> MaskFacts:
    """The values of a sample of masks."""
    chosen = sample(masks)
    with ThreadPool(THREADS) as pool:
        results = pool.map(lambda unit: _values_or_none(root, unit), chosen)
    read = [result for result in results if result is not None]
    facts = MaskFacts(of=len(masks), opened=len(read), coloured=any(r.coloured for r in read))
    facts.unreadable = [u.path for u, r in zip(chosen, results, strict=True) if r is None]
    for result in read:
        as_colours = facts.coloured and not result.coloured  # a mask of black alone is grey
        facts.values.update(_grey(v) if as_colours else v for v in result.values)
        if result.border is not None:
            facts.borders[_grey(result.border) if as_colours else result.border] += 1
        facts.names |= result.names
    return facts


def _grey(value: int) -> int:
    return value * 0x010101


@dataclass(frozen=True)
class _Values:
    values: frozenset[int]
    border: int | None = None
    names: dict[int, str] = field(default_factory=dict)
    coloured: bool = False


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
class ImageFacts:
    """What a sample of a site's images holds."""

    coloured: bool = False
    brightest: int | None = None  # of 16-bit pictures
    volumes: bool = False
    channel: int | None = None  # of files with several volumes
    view: View = "axial"
    darkest: float = 0.0  # of a volume
    unreadable: list[str] = field(default_factory=list)


def look_at_images(root: Path, images: Sequence[Unit], series: str | None) -> ImageFacts:
    """Colours and depth of a sample of pictures; one volume."""
    facts = ImageFacts(volumes=images[0].kind != "picture")
    if facts.volumes:
        _look_at_volume(root / images[0].path, series, facts)
        return facts
    for unit in sample(images)[:: max(1, PICTURES // 20)]:
        try:
            _look_at_picture(root / unit.path, facts)
        except (BadFile, OSError):
            facts.unreadable.append(unit.path)
    return facts


def _look_at_picture(path: Path, facts: ImageFacts) -> None:
    image = read_picture(path.read_bytes())
    if image.mode in SIXTEEN_BIT:
        facts.brightest = max(facts.brightest or 0, int(np.asarray(image).max()))
    elif image.mode not in ("1", "L", "LA", "F"):
        pixels = np.asarray(image.convert("RGB"))
        facts.coloured |= bool(np.ptp(pixels, axis=2).any())


def _look_at_volume(path: Path, series: str | None, facts: ImageFacts) -> None:
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
