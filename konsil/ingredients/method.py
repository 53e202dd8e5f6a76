"""What a method is: sites compute, the server averages named parts, sites use the averages.

A whole method, federated averaging without anything else:

    >>> from konsil.ingredients.method import METHODS, Method, Upload, method
    >>> @method("doctest-mean", paper="McMahan et al., AISTATS 2017")
    ... class Mean(Method):
    ...     '''The mean of the models, weighted by images.'''
    ...     def local(self, site, shared):
    ...         model = site.learner("global", shared["global"])
    ...         for x, y in site.batches():
    ...             model.step(site.task.loss(model(x), y))
    ...         return Upload().add("global", model.weights(), weight=site.images)
    >>> METHODS.remove("doctest-mean")

Nothing here or in `methods/` knows how messages travel.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from pydantic import ValidationError

from konsil.config import MethodConfig, explain
from konsil.errors import ConfigError
from konsil.ingredients.context import (
    Context,
    Means,
    MethodSettings,
    TrainedNetwork,
    Upload,
    broadcast,
    moments_of,
)
from konsil.ingredients.site import Site
from konsil.registry import Registry
from konsil.weights import Layout, Parts, Weights


class Method(ABC):
    """The interface. Most methods override `local`, and little else.

    One round at one site is `receive` (finish what the means began), validation of `answers`,
    then `local`. After the last round `receive` and validation run once more.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    Settings: ClassVar[type[MethodSettings]] = MethodSettings

    needs: ClassVar[str] = "means"  # or "individual": the server must see single models
    pooled: ClassVar[bool] = False  # all images in one place: no federation at all
    shared_roles: ClassVar[tuple[str, ...]] = ("global",)  # answered by a shared part
    private_roles: ClassVar[tuple[str, ...]] = ()  # answered by what a site keeps
    best_by: ClassVar[tuple[tuple[str, str], ...]] = (("global", "global"),)  # part, its measure
    super_model: ClassVar[bool] = False  # specialists and a selector are put together at the end
    routing: ClassVar[str] = "threshold"  # how that super model decides: supermodel.Facts
    travels: ClassVar[str] = ""  # a remark, if other rounds' traffic is not round 1's

    def __init__(self, settings: MethodSettings, context: Context) -> None:
        self.settings: Any = settings
        self.context = context
        self.check()

    def check(self) -> None:  # noqa: B027
        """Refuse settings that do not fit the federation, before round 1.

        The ConfigError begins with the setting: "lambda = 2: ...".
        """

    def warnings(self) -> list[str]:
        """What a person should know before round 1."""
        return []

    def networks(self) -> dict[str, TrainedNetwork]:
        """The networks that a site trains side by side, by the name `site.learner` takes."""
        return {"global": TrainedNetwork(self.context.network)}

    def start(self) -> dict[str, Weights]:
        """The shared parts before round 1."""
        return {"global": self.context.initial(self.context.network)}

    def uploads(self, shared: Parts) -> dict[str, Layout]:
        """What every upload must hold: by default each part that was sent."""
        return {name: part.layout for name, part in broadcast(shared).items()}

    def initial_parts(self) -> dict[str, Weights]:
        """`start`, and zero moments for each optimiser whose state is averaged."""
        parts = self.start()
        for name, trained in self.networks().items():
            if trained.optimizer == "average":
                parts[moments_of(name)] = Weights.zeros(
                    trained.moments_layout(self.context.training)
                )
        return parts

    def sent(self, site: str, shared: Parts) -> dict[str, Weights]:
        """What of the shared parts travels to this site: by default all but the server's own."""
        return broadcast(shared)

    def keeps_uploads(self, shared: Parts) -> bool:
        """Whether the server keeps the next round's uploads for `merge`, one by one."""
        return self.needs == "individual"

    def work(self) -> float:
        """Local work by definition, in units of FedAvg's: forward and backward once a batch.

        Validation is not in it, unless the method itself asks for it (`validation_work`).
        """
        return 1.0

    def eligible(self, round: int) -> bool:
        """Whether what is validated in this round may become the best checkpoint."""
        return True

    def receive(self, site: Site, shared: Parts) -> None:  # noqa: B027
        """What a site does with the means before anything else."""

    @abstractmethod
    def local(self, site: Site, shared: Parts) -> Upload:
        """One round at one site."""

    def wrong_upload(self, site: str, upload: Upload) -> str:
        """Why no honest site sends this, whose form is right already; empty if one can.

        What is refused here has touched no mean.
        """
        return ""

    def merge(self, shared: dict[str, Weights], means: Means) -> dict[str, Weights]:
        """The shared parts of the next round, from the means of what the sites sent."""
        return {**shared, **means}

    def answers(self, site: Site, shared: Parts) -> dict[str, Weights]:
        """The weights that answer for this site, by role."""
        return {"global": shared["global"]}

    def measures(self, site: Site, shared: Parts) -> dict[str, float]:
        """Further validation measures of this site (means over its validation images)."""
        return {}


def _check(name: str, cls: type[Method]) -> None:
    """What would otherwise be found in the middle of a plan."""
    if not issubclass(cls, Method):
        raise ConfigError(f"method {name}: {cls.__name__} is not a subclass of Method")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise ConfigError(f"method {name}: {cls.__name__} has no {missing}")


METHODS: Registry[type[Method]] = Registry("method", "konsil.methods", _check)
M = TypeVar("M", bound=type[Method])


def method(name: str, paper: str) -> Callable[[M], M]:
    """Register a method under a name that no other has."""

    def register(cls: M) -> M:
        METHODS.add(name, cls, cls)
        cls.name, cls.paper = name, paper
        return cls

    return register


def method_class(config: MethodConfig) -> type[Method]:
    """The class of a method by its name."""
    return METHODS.find(config.name, "methods")


def method_settings(config: MethodConfig) -> MethodSettings:
    """The checked settings of a method."""
    cls = method_class(config).Settings
    try:
        return cls.model_validate(config.settings)
    except ValidationError as error:
        raise ConfigError(explain(error, f"methods.{config.title}", cls)) from None


def make_method(config: MethodConfig, context: Context) -> Method:
    """A method with its settings checked, for one federation."""
    settings = method_settings(config)
    try:
        return method_class(config)(settings, context)
    except ConfigError as error:  # which begins with the setting's name
        raise ConfigError(f"methods.{config.title}.{error}") from None
