"""Ask a super model about many files: masks, pictures, and a table of who answered how surely."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from konsil.data.findings import BadFile
from konsil.data.image_file import open_image
from konsil.data.reading import ImageReading
from konsil.data.sources import without_suffix
from konsil.errors import DataError
from konsil.files import replacing, write_text
from konsil.prepare.inputs import Input
from konsil.supermodel import SuperModel
from konsil.supermodel.overlay import overlay, sheet_of_answers, sheet_of_planes
from konsil.supermodel.predict import AUTO, Prediction, mask_name, predict_opened, write_mask

TABLE = "answers.csv"
Row = dict[str, Any]
Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Wanted:
    """Whom to ask, how files are read, and which pictures to leave."""

    reading: ImageReading
    ask: str = AUTO
    compare: bool = False  # also every other answer, side by side
    overlays: bool = True


@dataclass
class Asked:
    """What came of it."""

    rows: list[Row] = field(default_factory=list)  # of answers.csv, every plane of every file
    failed: dict[str, str] = field(default_factory=dict)  # input: why
    notes: dict[str, list[str]] = field(default_factory=dict)  # what to know: the inputs

    @property
    def answered(self) -> list[str]:
        """The inputs that have an answer."""
        return list(dict.fromkeys(row["file"] for row in self.rows))


def ask_about(
    model: SuperModel,
    inputs: Sequence[Input],
    out: Path,
    wanted: Wanted,
    report: Report = lambda what, done, total: None,
) -> Asked:
    """Ask about every input, leave the answers in `out`; a bad file does not stop the others.

    answers.csv is written whatever happens, with what has been answered until then.
    """
    asked = Asked()
    check_known(model, wanted.ask)
    try:
        for done, one in enumerate(inputs):
            report("asking", done, len(inputs))
            try:
                answers = _answers(model, one, wanted)
                _leave(one, answers, out, wanted)
            except (DataError, OSError) as error:
                asked.failed[one.name] = str(error).removeprefix(f"{one.path}: ")
                continue
            for who, answer in answers:
                asked.rows += rows_of(one.name, who, answer)
            for note in answers[0][1].notes:
                asked.notes.setdefault(note, []).append(one.name)
        report("asking", len(inputs), len(inputs))
    finally:
        write_table(out / TABLE, asked.rows, model)
    return asked


def everybody(model: SuperModel) -> list[str]:
    """Whom one can ask: the rule, the global model, the specialists that are there."""
    return [AUTO, *model.answerers]


def check_known(model: SuperModel, who: str) -> None:
    """DataError if nobody of that name can be asked."""
    if who not in everybody(model):
        kept = who in model.facts.withheld
        why = "this hospital keeps its specialist" if kept else "nobody of that name can be asked"
        raise DataError(f"{who}: {why}; there are {', '.join(everybody(model))}")


def reading_as(model: SuperModel, site: str | None, said: Mapping[str, Any]) -> ImageReading:
    """How files are read: as training read this site's, but for what is `said` instead.

    `said`: window (also as the text LOW,HIGH or LOW%,HIGH% or full), view, channel, series.
    """
    words = model.reading(site).to_json() | dict(said)
    if isinstance(said.get("window"), str):
        words["window"] = _window(said["window"])
    try:
        return ImageReading.from_json(words)
    except ValueError as error:
        raise DataError(str(error).removeprefix("reading: ")) from None


def _window(text: str) -> Any:
    """The words of a federation file for LOW,HIGH or LOW%,HIGH% or full."""
    ends = text.split(",")
    percent = all(end.strip().endswith("%") for end in ends)
    try:
        numbers = [float(end.strip().removesuffix("%")) for end in ends]
    except ValueError:
        return text
    return {"percentiles": numbers} if percent else numbers


def _answers(model: SuperModel, one: Input, wanted: Wanted) -> list[tuple[str, Prediction]]:
    """The answer that is wanted first, then all others if they are to be compared."""
    try:
        opened = open_image(one.path, wanted.reading)
    except BadFile as bad:
        raise DataError(str(bad)) from None
    others = [who for who in everybody(model) if who != wanted.ask] if wanted.compare else []
    return [
        (who, predict_opened(model, opened, who, wanted.reading)) for who in (wanted.ask, *others)
    ]


def _leave(
    one: Input, answers: Sequence[tuple[str, Prediction]], out: Path, wanted: Wanted
) -> None:
    """Masks and pictures of an input."""
    below = Path(one.name).parent
    first = answers[0][1]
    if first.facts.targets == "masks":
        for number, (who, answer) in enumerate(answers):
            home = out / "masks" if number == 0 else out / "compare" / who
            write_mask(answer, home / below / mask_name(one.path), one.path)
    picture = below / f"{without_suffix(Path(one.name).name)}.png"
    if wanted.overlays and first.facts.targets == "masks":
        single = len(first.opened.pictures) == 1
        _save(overlay(first) if single else sheet_of_planes(first), out / "overlays" / picture)
    if wanted.compare:
        _save(sheet_of_answers(answers), out / "compare" / picture)


def _save(picture: Image.Image, path: Path) -> None:
    with replacing(path) as file:
        picture.save(file, "PNG")


# --- what there is to say of a plane ------------------------------------------------------------


@dataclass(frozen=True)
class PlaneAnswer:
    """What a person wants to know of the answer to a picture, or to one plane of a volume."""

    asked: str  # who answered
    confidence: float  # how sure the selector is of the likeliest site; nan: there is no selector
    novelty: float  # how little like any site's images; nan: nobody can tell
    unfamiliar: bool  # so little that the global model answered
    likes: dict[str, float]  # the selector's probability of every site; empty: no selector
    sure: float  # of the class, or in the mean of the marked pixels; nan: none is marked
    shares: dict[str, float]  # the part of the plane that each structure takes
    classes: dict[str, float]  # the probability of each class


def plane_answers(answer: Prediction) -> Iterator[PlaneAnswer]:
    """The same of every plane."""
    sites, route = answer.facts.sites, answer.route
    for plane in range(len(answer.logits)):
        likes = route.probabilities[plane][-len(sites) :].tolist()
        yield PlaneAnswer(
            asked=answer.asked[plane],
            confidence=float(route.confidence[plane]),
            novelty=float(route.novelty[plane]),
            unfamiliar=bool(route.unfamiliar[plane]),
            likes=dict(zip(sites, likes, strict=True)) if answer.facts.selector else {},
            **_said(answer, plane),
        )


def _said(answer: Prediction, plane: int) -> dict[str, Any]:
    """Classes with their probabilities, or what share of the plane each structure takes."""
    labels = answer.facts.labels
    if answer.facts.targets == "classes":
        probabilities = answer.probabilities[plane].tolist()
        classes = dict(zip(labels, probabilities, strict=True))
        return {"sure": max(probabilities), "shares": {}, "classes": classes}
    maps = answer.at_own_size(plane)
    masks = maps > 0.5
    shares = {k: float(m.mean()) for k, m in zip(labels, masks, strict=True)}
    marked = masks.any(axis=0)
    sure = abs(maps - 0.5).min(axis=0)[marked].mean() + 0.5 if marked.any() else math.nan
    return {"sure": float(sure), "shares": shares, "classes": {}}


# --- the table ----------------------------------------------------------------------------------


def columns(model: SuperModel) -> list[str]:
    """Of answers.csv; docs/supermodel.md says what they mean."""
    facts = model.facts
    likes = [f"like_{site}" for site in facts.sites] if facts.selector else []
    kind = ["share", "class"][facts.targets == "classes"]
    own = [f"{kind}_{label}" for label in facts.labels]
    said = ["class"] if kind == "class" else []
    route = ["confidence", "novelty", "unfamiliar"]
    return ["file", "plane", "ask", "asked", *route, *likes, *said, "sure", *own]


def rows_of(name: str, who: str, answer: Prediction) -> Iterator[Row]:
    """A row for each plane of an input; a picture has one, without a number."""
    several = answer.opened.volume is not None
    for number, one in enumerate(plane_answers(answer), 1):
        row: Row = {"file": name, "plane": number if several else "", "ask": who}
        row |= {"asked": one.asked, "unfamiliar": "yes" if one.unfamiliar else "no"}
        row |= {"confidence": one.confidence, "novelty": one.novelty, "sure": one.sure}
        row |= {f"like_{site}": value for site, value in one.likes.items()}
        row |= {f"share_{structure}": value for structure, value in one.shares.items()}
        if one.classes:
            row |= {"class": max(one.classes, key=one.classes.__getitem__)}
            row |= {f"class_{label}": value for label, value in one.classes.items()}
        yield {key: _cell(value) for key, value in row.items()}


def _cell(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return "" if math.isnan(value) else f"{value:.4f}"


def write_table(path: Path, rows: Sequence[Row], model: SuperModel) -> None:
    """answers.csv, whole or not at all."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns(model), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())
