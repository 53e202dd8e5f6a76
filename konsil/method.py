"""What a method is: sites compute, the server averages named parts, sites use the averages.

A whole method, federated averaging without anything else:

    >>> from konsil.method import Method, Upload, method
    >>> @method("doctest-mean", paper="McMahan et al., AISTATS 2017")
    ... class Mean(Method):
    ...     '''The mean of the models, weighted by images.'''
    ...     def local(self, site, shared):
    ...         model = site.learner("global", shared["global"])
    ...         for x, y in site.batches():
    ...             model.step(site.task.loss(model(x), y))
    ...         return Upload().add("global", model.weights(), weight=site.images)
    >>> _ = REGISTRY.pop("doctest-mean")

Nothing here or in `methods/` knows how messages travel.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from pydantic import ValidationError

from konsil.config import Block, MethodConfig, TrainingConfig, explain
from konsil.errors import ConfigError
from konsil.learner import OptimizerPolicy, moments_layout
from konsil.networks import NetworkSpec, build_network
from konsil.randomness import global_stream
from konsil.weights import Layout, Parts, Weights

if TYPE_CHECKING:
    from konsil.site import Site
    from konsil.tasks import Task

# Parts under this prefix are the server's own (a server optimiser's moments): never sent.
SERVER_ONLY = "server."


class MethodSettings(Block):
    """A method's settings: frozen, checked, with sane defaults."""


@dataclass(frozen=True)
class Context:
    """What a method knows of the experiment, at the server and at every site alike."""

    network: NetworkSpec
    task: Task
    training: TrainingConfig
    sites: tuple[str, ...]  # the roster; a site's place is its label for the selector
    rounds: int
    seed: int
    images: Mapping[str, int] = field(default_factory=dict)  # n_k: training images a site
    validation: Mapping[str, int] = field(default_factory=dict)  # validation images a site

    def share(self, site: str) -> float:
        """p_k = n_k / n."""
        return self.images[site] / sum(self.images.values())

    def validation_passes(self, models: int) -> float:
        """The work of so many models' forward passes over the validation images, a round.

        In units of FedAvg's work, of which a forward pass is a third; 0 if no site is known.
        """
        batches = self.training.local_epochs * sum(self.images.values())
        return models / 3 * sum(self.validation.values()) / batches if batches else 0.0

    def initial(self, spec: NetworkSpec) -> Weights:
        """Initial weights: the same for every model of a kind, whatever the method."""
        with global_stream(self.seed, "initial weights", spec):
            return Weights.of(build_network(spec))


@dataclass(frozen=True)
class Trained:
    """A network that sites train, and what becomes of its optimiser's state between rounds."""

    spec: NetworkSpec
    optimizer: OptimizerPolicy = "persist"  # at the site; or reset, or average with the weights
    lr: float | None = None  # default: the experiment's
    only: frozenset[str] | None = None  # the entries that are trained; default: all

    def moments_layout(self, training: TrainingConfig) -> Layout:
        """How its optimiser's state is laid out."""
        layout = Layout.of(build_network(self.spec))
        return moments_layout(
            layout if self.only is None else layout.only(self.only), training.optimizer
        )


@dataclass
class Upload:
    """What a site sends: parts, and the weight of each in its mean."""

    parts: dict[str, Weights] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, part: Weights, weight: float) -> Self:
        """One more part."""
        self.parts[name] = part
        self.weights[name] = float(weight)
        return self


class Means(dict[str, Weights]):
    """What the server has after a round: the mean of every part, and who is in it."""

    def __init__(
        self,
        means: Parts,
        round: int,
        sites: tuple[str, ...],
        individual: Mapping[str, Parts] | None = None,
    ) -> None:
        super().__init__(means)
        self.round = round
        self.sites = sites  # those that answered, in roster order
        self.individual = individual or {}  # site -> its upload, for methods that need them


class Method(ABC):
    """The interface. Most methods override `local`, and little else.

    One round at one site is `receive` (finish what the means began), validation of `opinions`,
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

    def networks(self) -> dict[str, Trained]:
        """The networks that a site trains side by side, by the name `site.learner` takes."""
        return {"global": Trained(self.context.network)}

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

    def passes(self) -> float:
        """Local work by definition, in units of FedAvg's: forward and backward once a batch.

        Validation is not in it, unless the method itself asks for it (`validation_passes`).
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

    def merge(self, shared: dict[str, Weights], means: Means) -> dict[str, Weights]:
        """The shared parts of the next round, from the means of what the sites sent."""
        return {**shared, **means}

    def opinions(self, site: Site, shared: Parts) -> dict[str, Weights]:
        """The weights that answer for this site, by role."""
        return {"global": shared["global"]}

    def measures(self, site: Site, shared: Parts) -> dict[str, float]:
        """Further validation measures of this site (means over its validation images)."""
        return {}


def moments_of(network: str) -> str:
    """The name of the part that holds a network's optimiser state."""
    return f"{network}.moments"


def broadcast(shared: Parts) -> dict[str, Weights]:
    """What of the shared parts is sent to the sites."""
    return {name: part for name, part in shared.items() if not name.startswith(SERVER_ONLY)}


REGISTRY: dict[str, type[Method]] = {}
M = TypeVar("M", bound=type[Method])


def method(name: str, paper: str) -> Callable[[M], M]:
    """Register a method under a name that no other has."""

    def register(cls: M) -> M:
        known = REGISTRY.get(name)
        if known is not None and _identity(known) != _identity(cls):
            raise ConfigError(f"method {name}: {_home(known)} has it already; choose another name")
        cls.name, cls.paper = name, paper
        REGISTRY[name] = cls
        return cls

    return register


def _identity(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def _home(cls: type) -> str:
    """Where a method is defined: a module of the package, or a user's file."""
    own = cls.__module__.startswith("konsil.")
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return cls.__module__ if own or not file else str(file)


def all_methods() -> dict[str, type[Method]]:
    """Every method of the package and of loaded plugins, found without a list of them."""
    import konsil.methods

    for module in pkgutil.iter_modules(konsil.methods.__path__):
        importlib.import_module(f"konsil.methods.{module.name}")
    return dict(sorted(REGISTRY.items()))


def method_class(config: MethodConfig) -> type[Method]:
    """The class of a method by its name."""
    known = all_methods()
    if config.name not in known:
        raise ConfigError(f"methods: unknown method {config.name!r}; there are {', '.join(known)}")
    return known[config.name]


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
