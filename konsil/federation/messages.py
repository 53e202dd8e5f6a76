"""Requests and replies: plain data, the same on every engine.

A message is an envelope (what of which job it is about), named weights, and a body: one pydantic
model a kind, by which the sender writes and the receiver reads. A body that somebody made up is
refused with the field's name; what it says is held against the plan by its reader.
"""

import re
import reprlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, PositiveFloat, ValidationError

from konsil.config import must
from konsil.errors import StateError
from konsil.evaluation.routing import TEMPERATURES
from konsil.federation.storage import pack, unpack
from konsil.supermodel.novelty import LIMITS
from konsil.weights import Parts, Weights

Kind = Literal["round", "finish", "collect", "describe", "calibrate", "compare", "evaluate"]
Checkpoint = Literal["best", "last"]
Split = Literal["val", "test"]
UNPRINTABLE = re.compile(r"[\x00-\x1f\ud800-\udfff]")  # names get into logs and onto screens
MEASURE = re.compile(r"(?!images$)[\w. -]{1,100}")  # gets onto pictures, beside `images`
LARGEST_MEASURE = 1e9  # far above any score or loss: means over sites stay finite
LONGEST = 80  # characters of something that was sent, in an error's text
ROUNDING = 1e-6  # by which an area under a curve may be above 1


class BadMessage(StateError):
    """What is wrong with a message, for an error that names its site."""


def shown(value: Any) -> str:
    """What a site sent, fit for an error's text: short, and printable."""
    text = value if isinstance(value, str) else reprlib.repr(value)
    short = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return short if short.isprintable() else ascii(short)


def first_mistake(error: ValidationError) -> str:
    """The first field that is not what it must be, and what stands there."""
    mistake = error.errors(include_url=False)[0]
    where = shown(".".join(str(step) for step in mistake["loc"] if step != "[key]") or "all of it")
    if mistake["type"] in ("missing", "extra_forbidden"):
        return f"{where}: {'missing' if mistake['type'] == 'missing' else 'unknown'}"
    rule = mistake["msg"].removeprefix("Input ").removeprefix("Value error, ")
    return f"{where}: {rule}, not {shown(mistake['input'])}"


# --- bodies -------------------------------------------------------------------------------------


Name = Annotated[str, must(lambda name: not UNPRINTABLE.search(name), "should be printable")]
MeasureName = Annotated[
    str, must(lambda name: bool(MEASURE.fullmatch(name)), "should be the name of a measure")
]
Measure = Annotated[float, Field(ge=-LARGEST_MEASURE, le=LARGEST_MEASURE)]


class Body(BaseModel):
    """What travels beside the weights: nothing is converted, and every number is finite."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    @classmethod
    def read(cls, content: Any) -> Self:
        """What somebody sent as this; BadMessage if it is something else."""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise BadMessage(first_mistake(error)) from None


class Asked(Body):
    """Of a request: a site does not answer what it does not understand."""

    model_config = ConfigDict(extra="forbid")


class RoundRequest(Asked):
    """Train on what is sent; at the end of a job (`finish`) only receive it."""

    validation: bool  # whether what is sent is measured on validation images first
    after: int = Field(ge=0)  # the last round of this site that counts
    notes: dict[str, JsonValue] = {}  # what the method's server tells its sites beside the weights


class RoundReply(Body):
    """How good the site found what it received, and what its parts weigh in their means."""

    measures: dict[MeasureName, Measure]
    images: int  # on which they were measured
    weights: dict[str, PositiveFloat]

    def check(self, images: int, parts: Collection[str], largest: int) -> None:
        """Hold it against the plan's number of images and against the parts that came with it."""
        if self.images != images:
            raise BadMessage(f"{shown(self.images)} validation images, by the plan {images}")
        if set(self.weights) != set(parts):
            names = shown(sorted(self.weights))
            raise BadMessage(f"weights of {names}, and the parts are {shown(sorted(parts))}")
        for name, weight in self.weights.items():
            if weight > largest:
                most = f"with its images {largest} at most"
                raise BadMessage(f"{name}: its weight is {weight:.6g}, {most}")


class CollectRequest(Asked):
    """Hand out the specialist."""

    checkpoint: Checkpoint


class CollectReply(Body):
    """The specialist is among the parts, unless the site's policy keeps it."""

    withheld: bool = False


MEANS = "means"  # the part that describes a site's training images


def head_part(place: int) -> str:
    """The part that holds one of the linear layers to choose from."""
    return f"head{place}"


class DescribeRequest(Asked):
    """Send means of what the selector sees of the training images."""

    selector: dict[str, JsonValue]  # its network


class DescribeReply(Body):
    """The means are among the parts."""

    images: int


class CalibrateRequest(Asked):
    """Sum what is needed to trust the selector; linear layers to choose from are parts."""

    model: dict[str, JsonValue]  # the super model's facts, as model.json has them
    heads: int = Field(ge=0)


class CalibrateReply(Body):
    """Sums over the validation images: `konsil.evaluation.routing.Calibration`."""

    images: int
    surprise: list[float]
    above: list[int]
    scores: list[float]

    def check(self, heads: int, sites: int, images: int) -> None:
        """Hold it against what was asked."""
        check_images(self.images, images)
        check_values("surprise", self.surprise, max(1, heads) * len(TEMPERATURES), None)
        if min(self.surprise) < 0:
            raise BadMessage(f"surprise: {shown(min(self.surprise))} is below 0")
        check_values("above", self.above, len(LIMITS), images)
        check_values("scores", self.scores, 1 + 2 * sites, images)


class CompareRequest(Asked):
    """Sum the validation scores of the super model for each of these rules."""

    model: dict[str, JsonValue]
    rules: list[dict[str, JsonValue]]


class CompareReply(Body):
    """One sum of scores, each from 0 to 1, for every rule."""

    images: int
    sums: list[float]

    def check(self, rules: int, images: int) -> None:
        """Hold it against what was asked."""
        check_images(self.images, images)
        check_values("sums", self.sums, rules, images)


class EvaluateRequest(Asked):
    """Score one role on one split."""

    role: str
    split: Split
    checkpoint: Checkpoint
    model: dict[str, JsonValue] | None = None  # the facts of a super model

    @property
    def detailed(self) -> bool:
        """Whether all that a task can say of an image is wanted: it takes time."""
        return (self.split, self.checkpoint) == ("test", "best")


class EvaluateReply(Body):
    """Scores image by image, or only their means if the site's policy says so."""

    images: int
    columns: dict[str, list[float]] = {}
    # of each test image, numbered within the site as they come: no name; empty: not told
    patients: list[int] = []
    means: dict[str, float] | None = None


BODIES: dict[Kind, tuple[type[Asked], type[Body]]] = {
    "round": (RoundRequest, RoundReply),
    "finish": (RoundRequest, RoundReply),
    "collect": (CollectRequest, CollectReply),
    "describe": (DescribeRequest, DescribeReply),
    "calibrate": (CalibrateRequest, CalibrateReply),
    "compare": (CompareRequest, CompareReply),
    "evaluate": (EvaluateRequest, EvaluateReply),
}
B = TypeVar("B", bound=Body)


class Unread(Body):
    """In place of a body that is none: refused by name where it would be used."""

    why: str


def check_images(given: int, expected: int) -> None:
    """A site has as many images as the plan says."""
    if given != expected:
        raise BadMessage(f"{shown(given)} images, by the plan {expected}")


def check_patients(numbers: Sequence[int], images: int) -> None:
    """Whose each image is, or nothing: the first patient is 0, and the next new one 1, and so on.

    Numbers of any other kind could be a site's own, which say more.
    """
    if numbers and len(numbers) != images:
        raise BadMessage(f"patients: {len(numbers)} values, expected {images}")
    known = 0
    for number in numbers:
        if not 0 <= number <= known:
            raise BadMessage(f"patients: {shown(number)} where 0 to {known} can come")
        known += number == known


def check_values(name: str, values: Sequence[float], count: int, largest: float | None) -> None:
    """So many numbers, from 0 to the largest if there is one."""
    if len(values) != count:
        raise BadMessage(f"{name}: {len(values)} values, expected {count}")
    for value in values:
        if largest is not None and not -ROUNDING <= value <= largest + ROUNDING:
            raise BadMessage(f"{name}: {shown(value)} is not from 0 to {largest}")


# --- messages -----------------------------------------------------------------------------------


class Envelope(BaseModel):
    """The fields around a body, as they arrive."""

    model_config = ConfigDict(strict=True, extra="forbid")

    kind: Kind
    job: Name
    site: Name
    round: int
    plan: Name
    body: dict[str, Any]


@dataclass(frozen=True)
class Message:
    """What every message carries."""

    kind: Kind
    job: str  # which method and seed of the run
    site: str
    round: int
    plan: str  # the plan's hash: a site answers only for the plan it has agreed to
    body: Body
    parts: Parts = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The message as it travels."""
        return pack(self.header(), self.parts)

    def header(self) -> dict[str, Any]:
        """All but the parts."""
        address = {name: getattr(self, name) for name in ("kind", "job", "site", "round", "plan")}
        return {**address, "body": self.body.model_dump(exclude_defaults=True)}

    @classmethod
    def from_bytes(cls, message: bytes | bytearray) -> Self:
        """The message as it arrives."""
        return cls.from_parts(*unpack(message, cls.__name__.lower()))

    @classmethod
    def from_parts(cls, header: Any, parts: dict[str, Weights]) -> Self:
        """The message of a header and its weights."""
        try:
            envelope = Envelope.model_validate(header)
        except ValidationError as error:
            raise StateError(f"{cls.__name__.lower()}: {first_mistake(error)}") from None
        asked, answered = BODIES[envelope.kind]
        try:
            body: Body = (asked if issubclass(cls, Request) else answered).read(envelope.body)
        except BadMessage as mistake:
            body = Unread(why=str(mistake))
        return cls(**{**dict(envelope), "body": body}, parts=parts)

    def body_as(self, kind: type[B]) -> B:
        """The body, which must be of this kind."""
        if isinstance(self.body, kind):
            return self.body
        why = self.body.why if isinstance(self.body, Unread) else "of another kind"
        raise BadMessage(f"no {kind.__name__}: {why}")


class Request(Message):
    """What the server asks of one site."""


class Reply(Message):
    """What one site answers."""


@dataclass(frozen=True)
class Failure:
    """A site that did not answer, and why."""

    site: str
    reason: str
