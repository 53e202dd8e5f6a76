"""What the API says, as pydantic models: they are checked, and they are its documentation."""

from typing import Any, Literal

from pydantic import BaseModel, Field


class Plane(BaseModel):
    """The answer to a picture, or to one plane of a volume."""

    asked: str = Field(description="Who answered: global, a site, or several with a plus.")
    confidence: float | None = Field(description="How sure the selector is of the likeliest site.")
    novelty: float | None = Field(description="How little like any site's images it is.")
    unfamiliar: bool = Field(description="So little that the global model answered.")
    likes: dict[str, float] = Field(description="The selector's probability of every site.")
    label: str | None = Field(description="Classification: the class.")
    classes: dict[str, float] = Field(description="Classification: the probability of each class.")
    shares: dict[str, float] = Field(description="Masks: the part that each structure takes.")
    sure: float | None = Field(description="How sure the class, or the marked pixels, are.")


class MaskFile(BaseModel):
    """The mask as `konsil predict` would write it."""

    name: str
    type: str = Field(description="Its media type.")
    base64: str


class Answer(BaseModel):
    """What the super model says of a picture or volume."""

    file: str
    kind: Literal["picture", "volume"]
    rows: int = Field(description="Pixels of a plane, downwards.")
    columns: int = Field(description="Pixels of a plane, to the right.")
    spacing: list[float] | None = Field(description="Of volumes: mm between rows, and columns.")
    ask: str = Field(description="Whom you asked.")
    notes: list[str] = Field(description="What a person should know of this answer.")
    planes: list[Plane] = Field(description="In the order of the view; a picture has one.")
    mask: MaskFile | None = Field(default=None, description="If `include` has `mask`.")
    images: list[str] = Field(
        default=[], description="If `include` has `images`: each plane as a PNG in base64."
    )
    overlays: list[str] = Field(
        default=[], description="If `include` has `overlays`: each plane's mask, transparent PNG."
    )


class Structure(BaseModel):
    """A structure that is drawn, or a class."""

    name: str
    colour: str
    value: int = Field(description="In the mask's file; classes count from 0.")


class Model(BaseModel):
    """The super model that is served."""

    name: str
    task: str
    targets: Literal["masks", "classes"]
    labels: list[Structure]
    sites: list[str]
    ask: list[str] = Field(description="Who can be asked: auto is the super model's own choice.")
    withheld: list[str] = Field(description="Sites that keep their specialist.")
    selector: bool = Field(description="Whether somebody looks at an image to choose.")
    routing: str = Field(description="The rule by which is chosen whom to ask.")
    image_size: int = Field(description="Pixels a side at which the networks look.")
    channels: int
    reading: dict[str, dict[str, Any]] = Field(description="How each site's files were read.")
    scores: dict[str, Any] = Field(description="On validation and test images, by role and site.")
    provenance: dict[str, Any]
    upload_mb: int = Field(description="The largest question.")


class Models(BaseModel):
    """All models here; there is one."""

    models: list[Model]


class Health(BaseModel):
    """Whether the server works, and how much it has to do."""

    status: Literal["ok", "starting"]
    version: str
    workers: int
    questions: int = Field(description="That are answered or wait now.")
    room: int = Field(description="For so many more.")


class Problem(BaseModel):
    """Why there is no answer."""

    detail: str
