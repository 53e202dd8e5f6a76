"""A super model on a volume: plane by plane, and the answers put together on the same voxels.

Planes are read, windowed and resized by the functions that training uses (`konsil.data`). Beyond
those this needs what the super model itself needs, and no training code.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from konsil.data.findings import BadFile
from konsil.data.image_file import open_volume
from konsil.data.readers import Window
from konsil.data.reading import ImageReading
from konsil.data.volumes import View, Volume, write_volume
from konsil.errors import DataError
from konsil.supermodel import SuperModel
from konsil.supermodel.predict import AUTO, predict_opened


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

    The mask has the voxels and the affine of the volume; each plane's probabilities come back to
    the plane's own size by interpolation. Where structures overlap, the later one is painted over
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
    found = predict_opened(model, opened, AUTO, reading)
    mask = found.mask_volume()
    write_volume(out, mask)
    return Segmented(mask, found.asked, found.route.confidence.tolist())
