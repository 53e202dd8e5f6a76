"""A super model's answer to a question's files: JSON with pictures, or the mask itself."""

from __future__ import annotations

import base64
import io
from pathlib import Path

from PIL import Image

from konsil.colours import structure_colour
from konsil.errors import DataError
from konsil.prepare.inputs import find_inputs
from konsil.serve.messages import Question, Reply
from konsil.serve.schema import Answer, MaskFile, Model, Plane, Structure
from konsil.supermodel import SuperModel
from konsil.supermodel.asking import check_known, everybody, plane_answers, reading_as
from konsil.supermodel.predict import (
    Prediction,
    coloured,
    mask_name,
    painted,
    predict_file,
    write_mask,
)

SHOWN = 1024  # pixels of the longer side of a picture for the page
TYPES = {".png": "image/png", ".bmp": "image/bmp", ".tif": "image/tiff", ".tiff": "image/tiff",
         ".gz": "application/gzip", ".dcm": "application/dicom"}  # fmt: skip
PLAIN = "application/octet-stream"


def reply_to(model: SuperModel, question: Question) -> Reply:
    """What a client is sent; DataError if there is nothing to say."""
    path = _the_one(Path(question.folder))
    check_known(model, question.ask)
    reading = reading_as(model, question.site, question.reading)
    found = predict_file(model, path, question.ask, reading)
    if question.form == "mask":
        data, name = _mask(found, path, question)
        return Reply(200, data, _type(name), name)
    return Reply(200, _answer(found, path, question).model_dump_json().encode())


def describe(model: SuperModel, name: str, upload_mb: int) -> Model:
    """What everybody may know of the model."""
    facts = model.facts
    first = 1 if facts.targets == "masks" else 0
    labels = [
        Structure(name=label, colour=structure_colour(number), value=number + first)
        for number, label in enumerate(facts.labels)
    ]
    return Model(
        name=name,
        task=facts.task,
        targets="masks" if facts.targets == "masks" else "classes",
        labels=labels,
        sites=facts.sites,
        ask=everybody(model),
        withheld=facts.withheld,
        selector=bool(facts.selector),
        routing=model.rule.name,
        image_size=facts.network["image_size"],
        channels=facts.network["in_channels"],
        reading=facts.reading,
        scores=facts.scores,
        provenance=facts.provenance,
        upload_mb=upload_mb,
    )


def _the_one(folder: Path) -> Path:
    """The picture, volume or series of a question."""
    names = sorted(path.name for path in folder.iterdir())
    try:
        found = find_inputs([folder])
    except DataError:
        known = "a picture (PNG, JPEG, BMP, TIFF), a volume (NIfTI, MetaImage, NRRD) or DICOM"
        raise DataError(f"{', '.join(names[:3])}: not {known}") from None
    if len(found) > 1:
        listing = ", ".join(one.name for one in found[:3])
        raise DataError(f"{len(found)} images at once ({listing}): ask about one at a time")
    return found[0].path


def _answer(found: Prediction, path: Path, question: Question) -> Answer:
    rows, columns = found.size
    masks = found.facts.targets == "masks"
    answer = Answer(
        file=path.name,
        kind="picture" if found.opened.volume is None else "volume",
        rows=rows,
        columns=columns,
        spacing=list(found.opened.spacing[1:]) if found.opened.spacing else None,
        ask=question.ask,
        notes=list(found.notes),
        planes=_planes(found),
    )
    if "mask" in question.include and masks:
        data, name = _mask(found, path, question)
        answer.mask = MaskFile(name=name, type=_type(name), base64=_base64(data))
    if "images" in question.include:
        answer.images = [_base64(_png(_small(one))) for one in found.opened.pictures]
    if "overlays" in question.include and masks:
        numbers = range(len(found.opened.pictures))
        answer.overlays = [_base64(_overlay(found, number)) for number in numbers]
    return answer


def _planes(found: Prediction) -> list[Plane]:
    kept = ("asked", "confidence", "novelty", "unfamiliar", "likes", "classes", "shares", "sure")
    planes = []
    for one in plane_answers(found):
        label = max(one.classes, key=one.classes.__getitem__) if one.classes else None
        planes.append(Plane(label=label, **{name: _known(getattr(one, name)) for name in kept}))
    return planes


def _known(value: object) -> object:
    """A number that is none becomes null."""
    return None if value != value else value


def _mask(found: Prediction, path: Path, question: Question) -> tuple[bytes, str]:
    """The mask's file and its name; what is written for it goes with the question's files."""
    written = Path(question.folder).parent / "mask" / mask_name(path)
    write_mask(found, written, path)
    return written.read_bytes(), written.name


def _small(picture: Image.Image) -> Image.Image:
    """A copy that a page can hold."""
    picture = picture.convert("RGB") if picture.mode not in ("L", "RGB") else picture.copy()
    picture.thumbnail((SHOWN, SHOWN), Image.Resampling.LANCZOS)
    return picture


def _overlay(found: Prediction, plane: int) -> bytes:
    """A plane's mask in the colours of its structures, the background transparent."""
    picture = coloured(painted(found.at_own_size(plane) > 0.5), len(found.facts.labels))
    picture.thumbnail((SHOWN, SHOWN), Image.Resampling.NEAREST)
    return _png(picture, transparency=0)


def _png(picture: Image.Image, **options: int) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=1, **options)
    return file.getvalue()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _type(name: str) -> str:
    return TYPES.get(Path(name).suffix.lower(), PLAIN)
