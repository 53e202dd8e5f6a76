"""A super model on a volume: plane by plane, and the answers put together on the same voxels.

Planes are read, windowed and resized by the functions that training uses (`konsil.data`). Beyond
those this needs what the super model itself needs, and no training code.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from konsil.data.findings import BadFile
from konsil.data.image_file import ImageFile, open_volume
from konsil.data.readers import Window
from konsil.data.reading import ImageReading
from konsil.data.volumes import View, Volume, from_planes, write_volume
from konsil.errors import DataError
from konsil.supermodel import Answer, SuperModel

BATCH = 16  # planes


@dataclass(frozen=True, eq=False)
class Segmented:
    """What a super model says of a volume."""

    volume: Volume  # 0 is background, 1 the first structure of the model's labels, and so on
    asked: list[str]  # for each plane who answered, as `SuperModel.asked` says it
    confidence: list[float]  # for each plane how sure the selector is of its choice


def segment_volume(
    model: SuperModel,
    path: Path,
    out: Path,
    *,
    view: View | None = None,
    window: Window | None = None,
    channel: int | None = None,
    series: str | None = None,
    site: str | None = None,
) -> Segmented:
    """Segment a volume file or a DICOM series' folder, and write the mask to `out`.

    The mask has the voxels and the affine of the volume; each plane's answer comes back to the
    plane's own size by nearest neighbour. Where structures overlap, the later one is painted over
    the earlier (the cup over the disc).

    It is read as the volumes of training were, or of this `site` where sites differ; what `view`,
    `window`, `channel` and `series` say instead wins. Folders of older versions do not know how
    that was: then it is the words of the federation file that the model was trained with.
    """
    if model.facts.targets != "masks":
        raise DataError(f"{path}: this super model is for {model.facts.task}, it draws no masks")
    said = {"view": view, "window": window, "channel": channel, "series": series}
    given: dict[str, Any] = {key: value for key, value in said.items() if value is not None}
    reading: ImageReading = replace(model.reading(site), **given)
    try:
        opened = open_volume(path, reading)
    except BadFile as bad:
        raise DataError(f"{path}: {bad}") from None
    assert opened.volume is not None
    affine, (_, height, width) = opened.volume.affine, opened.raw.shape[:3]
    painted: list[NDArray[np.uint8]] = []
    asked: list[str] = []
    confidence: list[float] = []
    for answer in _answers(model, opened):
        painted += [_painted(logits, (height, width)) for logits in answer.logits.cpu().numpy()]
        asked += model.asked(answer.route)
        confidence += answer.route.confidence.tolist()
    mask = Volume(from_planes(np.stack(painted), affine, reading.view), affine)
    write_volume(out, mask)
    return Segmented(mask, asked, confidence)


def _answers(model: SuperModel, opened: ImageFile) -> Iterator[Answer]:
    channels, size = model.facts.network["in_channels"], model.facts.network["image_size"]
    for start in range(0, len(opened.pictures), BATCH):
        numbers = range(len(opened.pictures))[start : start + BATCH]
        images = np.stack([opened.plane(number, channels, size) for number in numbers])
        yield model.answer(torch.from_numpy(images).float().div_(255))


def _painted(logits: NDArray[Any], shape: tuple[int, int]) -> NDArray[np.uint8]:
    """Structures as values 1, 2, ... at the plane's own size."""
    values = np.zeros(logits.shape[1:], np.uint8)
    for number, structure in enumerate(logits, 1):
        values[structure > 0] = number  # a sigmoid above one half
    picture = Image.fromarray(values).resize(shape[::-1], Image.Resampling.NEAREST)
    return np.asarray(picture)
