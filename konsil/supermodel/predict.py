"""What a super model says of one picture or volume, and the mask of it in the file's own format.

The file is opened, windowed and resized by the functions that training uses (`konsil.data`); the
answer comes back to the file's own size. Every file is asked about alone, so that an answer never
depends on what else was asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from konsil.colours import structure_colour
from konsil.data.findings import BadFile
from konsil.data.image_file import ImageFile, open_image, picture_of
from konsil.data.reading import ImageReading
from konsil.data.volumes import View, Volume, from_planes, write_volume
from konsil.data.volumes.formats import suffix_of
from konsil.errors import DataError
from konsil.files import replacing
from konsil.networks.outputs import at_size, to_probabilities
from konsil.supermodel import GLOBAL, Answer, Facts, Route, SuperModel
from konsil.supermodel.rules import chosen

AUTO = "auto"  # whom the super model's own rule asks
BATCH = 16  # planes of a volume at once
FEW = 0.02  # of the intensities: a window that holds no more of them does not fit
PICTURES = {".png": "PNG", ".bmp": "BMP", ".tif": "TIFF", ".tiff": "TIFF"}  # that keep values
VOLUMES = {".mhd": ".mha", ".nhdr": ".nrrd"}  # of two files: the same format in one


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a super model says of a picture, or plane by plane of a volume."""

    facts: Facts  # of the model
    opened: ImageFile
    view: View  # volumes: how they were sliced
    asked: list[str]  # plane by plane who answered: `global`, a site's name, several with a plus
    route: Route  # plane by plane what the selector says, whoever was asked
    logits: Tensor  # [planes, outputs, ...] at the network's size
    notes: tuple[str, ...] = ()  # what a person should know of this answer

    @cached_property
    def probabilities(self) -> Tensor:
        """The same as probabilities: a structure's at each pixel, or the classes' of each plane."""
        return to_probabilities(self.facts.targets, self.logits)

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of a plane of the file."""
        width, height = self.opened.pictures[0].size
        return height, width

    def at_own_size(self, plane: int) -> NDArray[np.float32]:
        """A plane's probabilities, [structures, rows, columns] of the file, by interpolation."""
        maps = at_size(self.probabilities[plane : plane + 1], self.size)
        return np.asarray(maps[0].numpy())

    def masks(self) -> NDArray[np.bool_]:
        """Where each structure is, [planes, structures, rows, columns] of the file."""
        return np.stack([self.at_own_size(plane) > 0.5 for plane in range(len(self.logits))])

    def values(self) -> NDArray[np.uint8]:
        """Background 0, the first structure 1 and so on; the later is painted over the earlier."""
        return np.stack([painted(self.at_own_size(n) > 0.5) for n in range(len(self.logits))])

    def confidence(self) -> NDArray[np.float32]:
        """How sure each pixel is of its structures, from one half to 1: the least sure of them."""
        sure = (self.at_own_size(plane) for plane in range(len(self.logits)))
        return np.stack([np.maximum(p, 1 - p).min(axis=0) for p in sure])

    def classes(self) -> list[str]:
        """The class of each plane."""
        return [self.facts.labels[k] for k in self.probabilities.argmax(dim=1).tolist()]

    def mask_volume(self) -> Volume:
        """The mask of a volume on its very voxels."""
        affine = self._volume.affine
        return Volume(from_planes(self.values(), affine, self.view), affine)

    def structure_volumes(self) -> NDArray[np.bool_]:
        """Where each structure is on a volume's very voxels, [structures, i, j, k]."""
        masks, affine = self.masks(), self._volume.affine
        whole = [from_planes(masks[:, n], affine, self.view) for n in range(masks.shape[1])]
        return np.stack(whole)

    @property
    def _volume(self) -> Volume:
        if self.opened.volume is None:
            raise DataError("a picture has no voxels")
        return self.opened.volume


def predict_file(
    model: SuperModel, path: Path, ask: str = AUTO, reading: ImageReading | None = None
) -> Prediction:
    """Ask about a picture, a volume's file or a DICOM series' folder.

    `ask`: whom; by default the super model chooses, plane by plane. `reading`: how the file is
    read; by default as training read its files.
    """
    reading = reading or model.reading()
    try:
        opened = open_image(path, reading)
    except BadFile as bad:
        raise DataError(f"{path}: {bad}") from None
    return _named(path, lambda: predict_opened(model, opened, ask, reading))


def predict_array(
    model: SuperModel, array: Any, ask: str = AUTO, reading: ImageReading | None = None
) -> Prediction:
    """Ask about the pixels of a picture: [rows, columns] or [rows, columns, 3]."""
    reading = reading or model.reading()
    pixels = np.asarray(array)
    if pixels.ndim not in (2, 3) or pixels.shape[2:] not in ((), (3,)) or not pixels.size:
        shape = " x ".join(map(str, pixels.shape))
        raise DataError(f"an array of {shape}: a picture is rows x columns, or rows x columns x 3")
    try:
        opened = picture_of(pixels, reading)
    except BadFile as bad:
        raise DataError(f"an array: {bad}") from None
    return predict_opened(model, opened, ask, reading)


def predict_opened(
    model: SuperModel, opened: ImageFile, ask: str, reading: ImageReading
) -> Prediction:
    """Ask about what is open already, which was read like this."""
    return prediction_of(model, opened, ask, reading, _answers(model, opened, ask))


def prediction_of(
    model: SuperModel, opened: ImageFile, ask: str, reading: ImageReading, said: Iterable[Answer]
) -> Prediction:
    """What was said of the planes, some at once; nothing is asked if the window does not fit."""
    notes = [note for note in (_unlike(model, reading), _misfit(opened, reading)) if note]
    answers = list(said)
    route = Route(*(torch.cat(parts).cpu() for parts in zip(*map(_parts, answers), strict=True)))
    asked = model.asked(route) if ask == AUTO else [ask] * len(opened.pictures)
    logits = torch.cat([answer.logits for answer in answers]).cpu()
    return Prediction(model.facts, opened, reading.view, asked, route, logits, tuple(notes))


def _answers(model: SuperModel, opened: ImageFile, ask: str) -> Iterator[Answer]:
    """The answers to all planes, some at once."""
    channels, size = model.facts.network["in_channels"], model.facts.network["image_size"]
    for start in range(0, len(opened.pictures), BATCH):
        numbers = range(len(opened.pictures))[start : start + BATCH]
        images = np.stack([opened.plane(number, channels, size) for number in numbers])
        x = torch.from_numpy(images).float().div_(255)
        yield model.answer(x) if ask == AUTO else _answer_of(model, ask, x)


def _answer_of(model: SuperModel, who: str, images: Tensor) -> Answer:
    """The answer of one model, and what the selector would have said."""
    logits, route = model.logits_of(who, images), model.route(images)
    place = (GLOBAL, *model.facts.sites).index(who)
    all_his = chosen(torch.full((len(images),), place), len(model.facts.sites))
    return Answer(logits, replace(route, shares=all_his.to(route.shares)))


def _parts(answer: Answer) -> Sequence[Tensor]:
    return tuple(vars(answer.route).values())


def _named(path: Path, ask: Any) -> Prediction:
    """Errors of asking say of which file."""
    try:
        return cast(Prediction, ask())
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def painted(masks: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """One value a pixel of masks [structures, rows, columns]: the later over the earlier."""
    values = np.zeros(masks.shape[1:], np.uint8)
    for number, mask in enumerate(masks, 1):
        values[mask] = number
    return values


# --- does the window fit? -----------------------------------------------------------------------


def _unlike(model: SuperModel, reading: ImageReading) -> str:
    """What is read in another way than every site's images were."""
    trained = {str(ImageReading.from_json(words)): None for words in model.facts.reading.values()}
    if not trained or str(reading) in trained:
        return ""
    return f"read with {reading}; training read its images with {' or '.join(trained)}"


def _misfit(opened: ImageFile, reading: ImageReading) -> str:
    """What to say of a window that hardly fits; DataError if it does not at all."""
    if not isinstance(reading.window, tuple):
        return ""
    low, high = reading.window
    least, most = float(opened.raw.min()), float(opened.raw.max())
    values = f"its intensities go from {least:g} to {most:g}, the window from {low:g} to {high:g}"
    if most <= low or least >= high:
        raise DataError(
            f"the window does not fit: {values}, so that nothing of the image is seen; give the "
            "intensities that training had, or another window"
        )
    inside = float(np.mean((opened.raw > low) & (opened.raw < high)))
    return "" if inside > FEW else f"the window hardly fits: {values}"


# --- masks as files -----------------------------------------------------------------------------


def mask_name(source: Path) -> str:
    """What the mask of an input is called: its own name, in a format that keeps values."""
    if source.is_dir():
        return f"{source.name}.dcm"
    suffix = suffix_of(source)
    if suffix in PICTURES or suffix in (".nii", ".nii.gz", ".mha", ".nrrd"):
        return source.name
    stem = source.name[: -len(suffix)] if suffix in (*VOLUMES, ".jpg", ".jpeg", ".ima") else None
    if stem is None:
        return source.name if suffix == ".dcm" else f"{source.name}.dcm"
    if suffix in VOLUMES:
        return stem + VOLUMES[suffix]
    return stem + (".dcm" if suffix == ".ima" else ".png")


def write_mask(prediction: Prediction, path: Path, source: Path) -> None:
    """Write the mask as `mask_name` says: of DICOM a DICOM SEG, else values 1, 2, ... a structure.

    It has the voxels and the place of its volume; a picture's has its size and a palette.
    """
    if prediction.facts.targets != "masks":
        raise DataError(f"{source}: this model is for {prediction.facts.task}, it draws no masks")
    if prediction.opened.volume is None:
        _write_picture(prediction.values()[0], path)
    elif suffix_of(path) == ".dcm":
        from konsil.supermodel.dicom_seg import write_dicom_seg

        write_dicom_seg(prediction, path, source)
    else:
        write_volume(path, prediction.mask_volume())


def coloured(values: NDArray[np.uint8], structures: int) -> Image.Image:
    """Values as the indices of a palette: programs read the values, people see colours."""
    picture = Image.frombytes("P", values.shape[::-1], values.tobytes())
    colours = [structure_colour(number)[1:] for number in range(structures)]
    picture.putpalette(bytes.fromhex("000000" + "".join(colours)))
    return picture


def _write_picture(values: NDArray[np.uint8], path: Path) -> None:
    picture = coloured(values, int(values.max()))
    with replacing(path) as file:
        picture.save(file, PICTURES[path.suffix.lower()])
