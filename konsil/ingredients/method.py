"""What a method is: sites compute, the server averages named parts, sites use the averages.

A method is a list of pieces (`konsil/ingredients/piece.py`), or one loop of its own. The latter
in whole, federated averaging without anything else:

    >>> from konsil.ingredients.method import METHODS, Method, Upload, method
    >>> @method("doctest-mean", paper="McMahan et al., AISTATS 2017")
    ... class Mean(Method):
    ...     '''The mean of the models, weighted by images.'''
    ...     def local(self, site, shared):
    ...         model = site.learner("global", shared["global"])
    ...         for x, y in site.batches():
    ...             model.step(site.task.loss(model(x), y))
    ...         return Upload().add("global", model.weights(), weight=site.weight)
    >>> METHODS.remove("doctest-mean")

Nothing here or in `methods/` knows how messages travel.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeVar

from konsil.config import MethodConfig, checked
from konsil.errors import ConfigError
from konsil.ingredients.context import (
    Context,
    Means,
    MethodSettings,
    Shared,
    TrainedNetwork,
    Upload,
    moments_of,
)
from konsil.ingredients.piece import Averaged, Piece, merged, together, train
from konsil.ingredients.server_optimizer import ServerOptimizer
from konsil.ingredients.site import Site
from konsil.networks import NetworkSpec
from konsil.registry import Registry
from konsil.supermodel.rules import NAMES_MODELS
from konsil.weights import Layout, Weights


class SelectorPiece(Protocol):
    """The part of a method that tells sites, or models, apart."""

    solved_after: ClassVar[bool]  # not trained, but solved from means when the models are there

    @property
    def spec(self) -> NetworkSpec:
        """How its network is built."""
        ...

    def weights(self, shared: Shared) -> Weights:
        """The selector as it goes into the super model."""
        ...


class Method:
    """The interface: `pieces` for a method that is composed, `local` for one that is one loop.

    One round at one site is `receive` (finish what the means began), validation of `answers`,
    then `local`. After the last round `receive` and validation run once more. By default each hook
    asks the pieces, in their order; a method that overrides `local` alone has FedAvg's parts.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    Settings: ClassVar[type[MethodSettings]] = MethodSettings

    needs: ClassVar[str] = "means"  # or "individual": the server must see single models
    pooled: ClassVar[bool] = False  # all images in one place: no federation at all
    super_model: ClassVar[bool] = False  # specialists and a selector are put together at the end
    selector: SelectorPiece  # of that super model
    travels: ClassVar[str] = ""  # a remark, if other rounds' traffic is not round 1's

    def __init__(self, settings: MethodSettings, context: Context) -> None:
        self.settings: Any = settings
        self.context = context
        self.composition = self.pieces()
        for piece in self.composition:
            piece.bind(context)
        self.check()

    # --- what it is -----------------------------------------------------------------------------

    def pieces(self) -> list[Piece]:
        """What it is put together from, in the order in which they see a batch."""
        return [Averaged("global")]

    def personal(self) -> list[Piece]:
        """The pieces that make a site's own model, for FedSM to take in SoftPull's place."""
        raise ConfigError(f"{self.name} has no model of a site's own")

    def server(self) -> ServerOptimizer:
        """The server's optimiser, for other methods to put under their means."""
        raise ConfigError(f"{self.name} has no optimiser at the server")

    def check(self) -> None:
        """Refuse settings that do not fit the federation, before round 1.

        The ConfigError begins with the setting: "lambda = 2: ...".
        """

    def warnings(self) -> list[str]:
        """What a person should know before round 1."""
        return [line for piece in self.composition for line in piece.warnings()]

    @property
    def routing(self) -> str:
        """How that super model decides: a name of `konsil/supermodel/rules.py`, or `auto`."""
        return "threshold"

    @property
    def names_models(self) -> bool:
        """Whether the selector has an output for the global model: then it decides alone."""
        return self.routing in NAMES_MODELS

    @property
    def calibrates(self) -> bool:
        """Whether probabilities get a temperature and images a limit: Algorithm 2 has neither."""
        return self.super_model and not self.names_models and self.routing != "threshold"

    @property
    def describes(self) -> bool:
        """Whether sites describe their images at the end, for a selector to be solved or judged."""
        return self.calibrates or (self.super_model and self.selector.solved_after)

    @property
    def shared_roles(self) -> tuple[str, ...]:
        """The roles that a shared part of that name answers."""
        return tuple(role for piece in self.composition for role in piece.shared_roles)

    @property
    def private_roles(self) -> tuple[str, ...]:
        """The roles that are answered by what a site keeps."""
        roles = (role for piece in self.composition for role in piece.private_roles)
        return tuple(dict.fromkeys(roles))

    @property
    def best_by(self) -> tuple[tuple[str, str], ...]:
        """The shared parts of which the best is kept, each with the measure that chooses it."""
        return tuple(pair for piece in self.composition for pair in piece.best_by)

    def networks(self) -> dict[str, TrainedNetwork]:
        """The networks that a site trains side by side, by the name `site.learner` takes."""
        return together(piece.networks() for piece in self.composition)

    def work(self) -> float:
        """Local work by definition, in units of FedAvg's: forward and backward once a batch.

        Validation is not in it, unless the method itself asks for it (`validation_work`).
        """
        return sum(piece.work() for piece in self.composition)

    # --- what travels ---------------------------------------------------------------------------

    def start(self) -> dict[str, Weights]:
        """The shared parts before round 1."""
        return together(piece.start() for piece in self.composition)

    def initial_parts(self) -> Shared:
        """`start`, and zero moments for each optimiser whose state is averaged."""
        parts = self.start()
        for name, trained in self.networks().items():
            if trained.optimizer == "average":
                layout = trained.moments_layout(self.context.training)
                parts[moments_of(name)] = Weights.zeros(layout)
        return Shared(parts)

    def sent(self, site: str, shared: Shared) -> Shared:
        """What of the shared parts and notes travels to this site: all but the server's own."""
        return shared.sent()

    def uploads(self, shared: Shared) -> dict[str, Layout]:
        """What every upload must hold: by default each part that was sent."""
        layouts = {name: part.layout for name, part in shared.sent().items()}
        for piece in self.composition:
            piece.uploads(layouts)
        return layouts

    def keeps_uploads(self, shared: Shared) -> bool:
        """Whether the server keeps the next round's uploads for `merge`, one by one."""
        return self.needs == "individual"

    def wrong_upload(self, site: str, upload: Upload) -> str:
        """Why no honest site sends this, whose form is right already; empty if one can.

        What is refused here has touched no mean.
        """
        found = (piece.wrong_upload(site, upload) for piece in self.composition)
        return next((why for why in found if why), "")

    # --- a round --------------------------------------------------------------------------------

    def receive(self, site: Site, shared: Shared) -> None:
        """What a site does with the means before anything else."""
        for piece in self.composition:
            piece.receive(site, shared)

    def local(self, site: Site, shared: Shared) -> Upload:
        """One round at one site."""
        return train(self.composition, site, shared)

    def merge(self, shared: Shared, means: Means) -> Shared:
        """The shared parts of the next round, from the means of what the sites sent."""
        return merged(self.composition, shared, means)

    def answers(self, site: Site, shared: Shared) -> dict[str, Weights]:
        """The weights that answer for this site, by role."""
        return together(piece.answers(site, shared) for piece in self.composition)

    def measures(self, site: Site, shared: Shared) -> dict[str, float]:
        """Further validation measures of this site (means over its validation images)."""
        return together(piece.measures(site, shared) for piece in self.composition)

    def eligible(self, round: int) -> bool:
        """Whether what is validated in this round may become the best checkpoint."""
        return True


def _check(name: str, cls: type[Method]) -> None:
    """What would otherwise be found in the middle of a plan."""
    if not issubclass(cls, Method):
        raise ConfigError(f"method {name}: {cls.__name__} is not a subclass of Method")
    if cls.pieces is Method.pieces and cls.local is Method.local:  # it would silently be FedAvg
        raise ConfigError(f"method {name}: {cls.__name__} has neither pieces nor local")


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
    return checked(method_class(config).Settings, config.settings, f"methods.{config.title}")


def make_method(config: MethodConfig, context: Context) -> Method:
    """A method with its settings checked, for one federation."""
    return _made(method_class(config), config.settings, context, f"methods.{config.title}")


def borrowed(given: dict[str, Any], hook: str, context: Context, where: str) -> Method:
    """The method of a block {name: ..., its settings ...}, for what its `hook` gives to others."""
    usual = getattr(Method, hook)
    lenders = {n: cls for n, cls in METHODS.all().items() if getattr(cls, hook) != usual}
    name = str(given.get("name"))
    if name not in lenders:
        raise ConfigError(f"{where} = {given}: give name, one of {', '.join(lenders)}")
    settings = {key: value for key, value in given.items() if key != "name"}
    return _made(lenders[name], settings, context, where)


def _made(cls: type[Method], given: dict[str, Any], context: Context, where: str) -> Method:
    settings = checked(cls.Settings, given, where)
    try:
        return cls(settings, context)
    except ConfigError as error:  # which begins with the setting's name
        raise ConfigError(f"{where}.{error}") from None
