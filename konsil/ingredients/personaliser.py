"""How a site gets a model of its own: beside FedAvg's model, or inside FedSM's super model.

A personaliser is the same object in both places (Table 6 of FedSM): `begin`, `see` every batch,
`end`, and `opinion`, the weights that answer for the site.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from pydantic import ValidationError
from torch import Tensor

from konsil.config import explain
from konsil.errors import ConfigError
from konsil.ingredients.context import Context, Means, MethodSettings, TrainedNetwork, Upload
from konsil.ingredients.method import Method
from konsil.ingredients.site import Site
from konsil.weights import Parts, Weights


class Personaliser(ABC):
    """One site's own model. Serves one site at a time, from `begin` to `end`."""

    Settings: ClassVar[type[MethodSettings]] = MethodSettings

    def __init__(self, settings: MethodSettings, context: Context, part: str = "personal") -> None:
        """`part`: the name of the shared part that it averages, if it averages one."""
        self.settings: Any = settings
        self.context = context
        self.part = part
        self.check()

    def check(self) -> None:  # noqa: B027
        """Refuse settings that do not fit the federation."""

    def warnings(self) -> list[str]:
        """What a person should know before round 1."""
        return []

    @abstractmethod
    def networks(self) -> dict[str, TrainedNetwork]:
        """The networks that it trains, beside `global`."""

    @abstractmethod
    def work(self) -> float:
        """Its local work in units of FedAvg's."""

    def start(self) -> dict[str, Weights]:
        """The shared parts that it averages, before round 1."""
        return {}

    def uploads(self, layouts: dict[str, Any]) -> None:  # noqa: B027
        """Change in place what every upload must hold."""

    def receive(self, site: Site, shared: Parts) -> None:  # noqa: B027
        """What a site does with the means before anything else."""

    @abstractmethod
    def begin(self, site: Site, shared: Parts) -> None:
        """Before the first batch of a round; `site.running("global")` is FedAvg's learner."""

    @abstractmethod
    def see(self, x: Tensor, y: Tensor) -> None:
        """One batch, before the global model's own step on it."""

    @abstractmethod
    def end(self, upload: Upload) -> None:
        """After the last batch: keep what is private, add what is shared."""

    def merge(self, shared: Parts, means: Means, new: dict[str, Weights]) -> None:  # noqa: B027
        """Change in place what the shared parts become."""

    def measures(self, site: Site) -> dict[str, float]:
        """Further numbers of this site worth a curve."""
        return {}

    @abstractmethod
    def opinion(self, site: Site, shared: Parts) -> Weights | None:
        """The weights that answer for this site; None while there are none."""


class OwnModel(Personaliser):
    """One model that a site begins as the global one, trains beside it, and keeps."""

    def networks(self) -> dict[str, TrainedNetwork]:
        """One."""
        return {"personal": TrainedNetwork(self.context.network)}

    def work(self) -> float:
        """One more forward and backward a batch."""
        return 1.0

    def receive(self, site: Site, shared: Parts) -> None:
        """A newcomer's begins as the global model."""
        site.private.setdefault("personal", shared["global"])


PERSONALISERS: dict[str, type[Personaliser]] = {}
P = TypeVar("P", bound=type[Personaliser])


def personaliser(name: str) -> Callable[[P], P]:
    """Make a personaliser known to FedSM by this name."""

    def register(cls: P) -> P:
        PERSONALISERS[name] = cls
        return cls

    return register


def make_personaliser(config: dict[str, Any], context: Context, where: str) -> Personaliser:
    """The personaliser of a block {name: ..., its settings ...}."""
    settings = {key: value for key, value in config.items() if key != "name"}
    cls = PERSONALISERS.get(str(config.get("name")))
    if cls is None:
        raise ConfigError(
            f"{where} = {config}: give name, one of softpull, {', '.join(PERSONALISERS)}"
        )
    try:
        return cls(cls.Settings.model_validate(settings), context)
    except ValidationError as error:
        raise ConfigError(explain(error, where, cls.Settings)) from None
    except ConfigError as error:
        raise ConfigError(f"{where}.{error}") from None


def train_beside_fedavg(personal: Personaliser, site: Site, shared: Parts) -> Upload:
    """One round of FedAvg's model and the site's own on the same batches; no gradient crosses."""
    w_g = site.learner("global", shared["global"])
    personal.begin(site, shared)
    for x, y in site.batches():
        personal.see(x, y)
        w_g.step(site.task.loss(w_g(x), y))
    upload = Upload().add("global", w_g.weights(), weight=site.images)
    personal.end(upload)
    return upload


class Personalised(Method):
    """FedAvg's model for all, and beside it one model a site by a personaliser."""

    private_roles = ("personal",)
    Personaliser: ClassVar[type[Personaliser]]

    def check(self) -> None:
        """The personaliser looks at its settings."""
        self.personaliser = self.Personaliser(self.settings, self.context)

    def warnings(self) -> list[str]:
        """The personaliser's."""
        return self.personaliser.warnings()

    def work(self) -> float:
        """FedAvg's, and the personaliser's."""
        return 1 + self.personaliser.work()

    def networks(self) -> dict[str, TrainedNetwork]:
        """FedAvg's, and the personaliser's."""
        return super().networks() | self.personaliser.networks()

    def start(self) -> dict[str, Weights]:
        """The global model, and what the personaliser averages."""
        return super().start() | self.personaliser.start()

    def receive(self, site: Site, shared: Parts) -> None:
        """The personaliser's."""
        self.personaliser.receive(site, shared)

    def local(self, site: Site, shared: Parts) -> Upload:
        """Two models on the same batches."""
        return train_beside_fedavg(self.personaliser, site, shared)

    def merge(self, shared: dict[str, Weights], means: Means) -> dict[str, Weights]:
        """The means, and what the personaliser makes of them."""
        new = super().merge(shared, means)
        self.personaliser.merge(shared, means, new)
        return new

    def answers(self, site: Site, shared: Parts) -> dict[str, Weights]:
        """The mean, and the site's own model once it has one."""
        personal = self.personaliser.opinion(site, shared)
        return {"global": shared["global"]} | ({"personal": personal} if personal else {})


class PersonalisedGlobal(Personalised):
    """The same for personalisers whose shared part *is* the global model (pFedMe, Per-FedAvg)."""

    def check(self) -> None:
        """The personaliser's shared part is the global model."""
        self.personaliser = self.Personaliser(self.settings, self.context, part="global")

    def work(self) -> float:
        """The personaliser's alone."""
        return self.personaliser.work()

    def networks(self) -> dict[str, TrainedNetwork]:
        """The personaliser's alone."""
        return self.personaliser.networks()

    def start(self) -> dict[str, Weights]:
        """What the personaliser averages: the global model."""
        return self.personaliser.start()

    def local(self, site: Site, shared: Parts) -> Upload:
        """The personaliser's steps alone."""
        self.personaliser.begin(site, shared)
        for x, y in site.batches():
            self.personaliser.see(x, y)
        upload = Upload()
        self.personaliser.end(upload)
        return upload
