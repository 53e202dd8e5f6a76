"""What a method is told, and what it gives back: plain data, the same under every engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from konsil.config import Block, TrainingConfig
from konsil.ingredients.optimizers import OptimizerPolicy, moments_layout
from konsil.ingredients.pretrained import Pretrained
from konsil.ingredients.schedule import rate_factor
from konsil.networks import NetworkSpec, build_network
from konsil.randomness import global_stream
from konsil.tasks import Task
from konsil.weights import Layout, Parts, Weights

# Parts under this prefix are the server's own (a server optimiser's moments): never sent.
SERVER_ONLY = "server."
V = TypeVar("V")


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
    momentum: float = 0.0  # beta of every averaged part that has no server optimiser of its own
    equal: bool = False  # whether sites count alike in a mean, or by their images
    pretrained: Pretrained | None = None  # what `network` begins with instead of random weights

    def weight(self, site: str) -> float:
        """What a site counts in a mean of models: n_k, or 1."""
        return 1.0 if self.equal else float(self.images[site])

    def share(self, site: str) -> float:
        """p_k = n_k / n, or 1 / K."""
        return self.weight(site) / sum(self.weight(s) for s in self.images)

    def validation_work(self, models: int) -> float:
        """The work of so many models' forward passes over the validation images, a round.

        In units of FedAvg's work, of which a forward pass is a third; 0 if no site is known.
        """
        batches = self.training.local_epochs * sum(self.images.values())
        return models / 3 * sum(self.validation.values()) / batches if batches else 0.0

    def initial(self, spec: NetworkSpec) -> Weights:
        """Initial weights: the same for every model of a kind, whatever the method."""
        drawn = self.drawn(spec)
        if self.pretrained is None or spec != self.network:
            return drawn
        return self.pretrained.fitted(drawn, spec)

    def drawn(self, spec: NetworkSpec) -> Weights:
        """Random weights from the seed, whatever the experiment's network begins with."""
        with global_stream(self.seed, "initial weights", spec):
            return Weights.of(build_network(spec))


@dataclass(frozen=True)
class TrainedNetwork:
    """A network that sites train, and what becomes of its optimiser's state between rounds."""

    spec: NetworkSpec
    optimizer: OptimizerPolicy = "persist"  # at the site; or reset, or average with the weights
    lr: float | None = None  # default: the experiment's
    only: frozenset[str] | None = None  # the entries that are trained; default: all
    # first to last: over these the learning rate follows its schedule; default: all of the run
    rounds: tuple[int, int] | None = None

    def rate(self, training: TrainingConfig, round: int, rounds: int) -> float:
        """By what its learning rate is multiplied in this round, of so many of the run.

        What is trained after its last round is fine-tuned, at the full rate.
        """
        first, last = self.rounds or (1, rounds)
        return 1.0 if round > last else rate_factor(training, round, first, last)

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
        """One more part, and what it counts in its mean."""
        self.parts[name] = part
        self.weights[name] = float(weight)
        return self


class Shared(dict[str, Weights]):
    """The parts that all sites share, and notes that fit JSON.

    What begins with `server.` is the server's own and never travels.
    """

    def __init__(self, parts: Parts, notes: Mapping[str, Any] | None = None) -> None:
        super().__init__(parts)
        self.notes = dict(notes or {})

    def updated(self, parts: Parts, notes: Mapping[str, Any] | None = None) -> Shared:
        """A copy in which these parts and notes stand in their places."""
        return Shared({**self, **parts}, {**self.notes, **(notes or {})})

    def sent(self) -> Shared:
        """What of it travels to the sites."""
        return Shared(_sent(self), _sent(self.notes))


def _sent(named: Mapping[str, V]) -> dict[str, V]:
    return {name: value for name, value in named.items() if not name.startswith(SERVER_ONLY)}


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


def moments_of(network: str) -> str:
    """The name of the part that holds a network's optimiser state."""
    return f"{network}.moments"
