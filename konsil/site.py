"""What one hospital does: its data, its private state on its own disk, the local loop."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from konsil.config import ComputeConfig
from konsil.data import Images, TrainingData, augment_light
from konsil.errors import StateError
from konsil.evaluation import batches, columns_of
from konsil.learner import Learner, recompute_statistics
from konsil.method import Context, Method, Upload, moments_of
from konsil.networks import Network, build_network
from konsil.randomness import generator
from konsil.storage import read_parts, write_parts
from konsil.tasks import Task
from konsil.weights import BoundNetwork, Parts, Weights

Batches = Iterator[tuple[Tensor, Tensor]]


class Workbench:
    """The resident networks of one process: every site it hosts takes its turn with them."""

    def __init__(self, method: Method, compute: ComputeConfig) -> None:
        self.method = method
        self.device = torch.device(compute.device)
        self.trained = method.networks()
        self._learners: dict[str, Learner] = {}
        self._frozen: dict[str, BoundNetwork] = {}

    def learner(self, name: str) -> Learner:
        """The learner of that name, made when it is first needed."""
        if name not in self._learners:
            trained = self.trained[name]
            bound = BoundNetwork(build_network(trained.spec), self.device)
            training = self.method.context.training
            self._learners[name] = Learner(bound, training, trained.lr, trained.only)
        return self._learners[name]

    def frozen(self, slot: str) -> BoundNetwork:
        """A further network of the task that is asked and never trained, one a slot."""
        if slot not in self._frozen:
            self._frozen[slot] = BoundNetwork(
                build_network(self.method.context.network), self.device
            )
        return self._frozen[slot]

    @cached_property
    def evaluator(self) -> BoundNetwork:
        """The network that answers in validation and evaluation, apart from what is trained."""
        return BoundNetwork(build_network(self.method.context.network), self.device)


@dataclass
class SiteState:
    """What a site keeps between rounds, and the reply it owes for the last one.

    The file is the only home of this state: it is read before a round and replaced after it, so
    that a killed run is simply one that reads it again.
    """

    round: int = 0  # the last round done
    private: dict[str, Weights] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    best: dict[str, Weights] = field(default_factory=dict)  # private roles, by validation
    last: dict[str, Weights] = field(default_factory=dict)
    best_scores: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)  # of the reply
    upload: dict[str, Weights] = field(default_factory=dict)

    SECTIONS = ("private", "best", "last", "upload")

    @classmethod
    def load(cls, path: Path, plan: str) -> SiteState:
        """The state on disk; a fresh one if there is none."""
        if not path.exists():
            return cls()
        header, parts = read_parts(path)
        if header.pop("plan") != plan:
            raise StateError(f"{path}: this site's state belongs to another plan; move it away")
        for section in cls.SECTIONS:
            names = header[section]
            header[section] = {name: parts[stored] for name, stored in names.items()}
        return cls(**header)

    def save(self, path: Path, plan: str, durable: bool) -> None:
        """Replace the state on disk; weights that stand in several places are written once."""
        stored: dict[tuple[int, str], str] = {}
        parts: dict[str, Weights] = {}
        header: dict[str, Any] = {
            "plan": plan,
            "round": self.round,
            "notes": self.notes,
            "best_scores": self.best_scores,
            "facts": self.facts,
        }
        for section in self.SECTIONS:
            header[section] = {}
            for name, weights in getattr(self, section).items():
                same = weights.flat.data_ptr(), weights.layout.key  # empty ones all lie at 0
                key = stored.setdefault(same, f"{section}/{name}")
                parts[key] = weights
                header[section][name] = key
        write_parts(path, header, parts, durable)


class StateFiles:
    """A site's state on its disk: after the last round it has done, and as it was before that.

    A round counts at both sides or at neither. A reply that the server did not take (too late, or
    refused) leaves its site one round ahead: the next request says after which round the server
    goes on, and the site goes back there.
    """

    NAMES = ("state.knsl", "before.knsl")

    def __init__(self, folder: Path, plan: str) -> None:
        self.folder, self._plan = folder, plan
        self._now, self._before = (folder / name for name in self.NAMES)
        self._grown_from: Path | None = self._now  # what the next state is saved beside

    def now(self) -> SiteState:
        """The state after the last round; that of the round before if it could not be saved.

        A power cut may leave the newest file damaged, and the one before it whole.
        """
        if self._now.exists():
            try:
                return self.latest()
            except StateError:
                if not self._before_is_whole():
                    raise
        self._grown_from = self._before
        return SiteState.load(self._before, self._plan)

    def _before_is_whole(self) -> bool:
        with suppress(StateError):
            SiteState.load(self._before, self._plan)
            return self._before.exists()
        return False

    def latest(self) -> SiteState:
        """The state after the very last round, for those who ask what it left."""
        return SiteState.load(self._now, self._plan)

    def was_after(self, number: int) -> bool:
        """Whether the state before the last round is the one after that round."""
        return self._before.exists() and SiteState.load(self._before, self._plan).round == number

    def after(self, number: int, state: SiteState) -> SiteState:
        """What the state is or was after a round; a round that came since is dropped by `save`.

        Until then nothing on the disk changes: the next round may fail, or be asked for by
        somebody who should not.
        """
        if state.round > number == 0:
            state, self._grown_from = SiteState(), None
        elif state.round > number and self._before.exists():
            state, self._grown_from = SiteState.load(self._before, self._plan), self._before
        if state.round != number:
            raise StateError(
                f"{self.folder}: the state is that of round {state.round}, the server goes on "
                f"after round {number}: bring back this folder as it was, or begin a new run"
            )
        return state

    def save(self, state: SiteState, durable: bool) -> None:
        """One round further; the state before it is kept until the next."""
        if self._grown_from == self._now and self._now.exists():
            os.replace(self._now, self._before)
        state.save(self._now, self._plan, durable)
        if self._grown_from is None:
            self._before.unlink(missing_ok=True)  # of rounds that no longer count

    def forget(self) -> None:
        """There will be no further round."""
        for path in (self._now, self._before):
            path.unlink(missing_ok=True)


class Site:
    """One hospital in one round, as a method sees it. No test image can be reached from here."""

    def __init__(
        self,
        name: str,
        round: int,
        bench: Workbench,
        data: TrainingData,
        state: SiteState,
        shared: Parts,
    ) -> None:
        self.name = name
        self.round = round  # 1, 2, ...
        self.private = state.private
        self.notes = state.notes
        self._bench = bench
        self._data = data
        self._shared = shared
        self._used: dict[str, Learner] = {}

    @property
    def context(self) -> Context:
        """What the method knows of the experiment."""
        return self._bench.method.context

    @property
    def task(self) -> Task:
        """What is learned."""
        return self.context.task

    @property
    def images(self) -> int:
        """n_k: the number of training images."""
        return len(self._data.train)

    @property
    def training(self) -> Images:
        """The training images, for `indexed_batches`."""
        return self._data.train

    @property
    def validation(self) -> Images:
        """The validation images, for `indexed_batches`."""
        return self._data.val

    @property
    def index(self) -> int:
        """The site's place in the roster: its label for the selector."""
        return self.context.sites.index(self.name)

    def learner(self, network: str, weights: Weights) -> Learner:
        """The learner of that name with these weights, and moments by its policy."""
        learner = self._bench.learner(network)
        policy = self._bench.trained[network].optimizer
        source = {"persist": self.private, "average": self._shared, "reset": {}}[policy]
        learner.load(self.localised(network, weights), source.get(moments_of(network)))
        self._used[network] = learner
        return learner

    def running(self, network: str) -> Learner:
        """The learner of that name that this round has begun with."""
        return self._used[network]

    def train(self, learner: Learner) -> Learner:
        """The plain local work: every batch of the round, one step each."""
        for x, y in self.batches():
            learner.step(self.task.loss(learner(x), y))
        return learner

    def batches(self, purpose: str = "", epochs: int | None = None) -> Batches:
        """This round's batches: the same for every method.

        A method that by definition looks at further batches (a second phase, an inner step,
        fine-tuning) names their purpose, and gets the images in an order of its own.
        """
        for _, x, y in self.indexed_batches(self._data.train, purpose, epochs):
            yield x, y

    def indexed_batches(
        self, images: Images, purpose: str = "", epochs: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Batches of one of the site's splits, with the places of their images in it."""
        training = self.context.training
        name = (self.context.seed, self.name, self.round, *([purpose] if purpose else []))
        noise = generator(*name, "augmentation")
        for epoch in range(training.local_epochs if epochs is None else epochs):
            order = torch.randperm(len(images), generator=generator(*name, "order", epoch))
            for index in order.split(training.batch_size):
                x, y = images.batch(index, self._bench.device)
                if training.augment == "light":
                    x, y = augment_light(x, y, noise)
                yield index, x, y

    def columns(self, weights: Weights) -> dict[str, np.ndarray]:
        """Per-image validation values of these weights."""
        return columns_of(self._bench.evaluator, weights, self._data.val, self.task)

    def score(self, weights: Weights) -> float:
        """The main metric of these weights on the site's validation split."""
        return float(self.columns(weights)[self.task.main_metric].mean())

    @torch.no_grad()
    def validation_losses(self, weights: Weights) -> Tensor:
        """The loss of these weights on each of the site's validation images, float64."""
        net = self._loaded(self._bench.evaluator, weights)
        losses = [self.task.losses(net(x), y) for x, y in self.validation_batches()]
        return torch.cat(losses).cpu().double()

    def validation_loss(self, weights: Weights) -> float:
        """The mean loss of these weights on the site's validation images."""
        return float(self.validation_losses(weights).mean())

    @property
    def validation_images(self) -> int:
        """The number of validation images."""
        return len(self._data.val)

    def judge(self, network: str, weights: Weights) -> Network:
        """The network of that name with these weights, in evaluation mode, not to be trained."""
        return self._loaded(self._bench.learner(network).bound, weights)

    def frozen(self, slot: str, weights: Weights) -> Network:
        """One more network of the task with these weights, in evaluation mode; one a slot."""
        return self._loaded(self._bench.frozen(slot), weights)

    @staticmethod
    def _loaded(bound: BoundNetwork, weights: Weights) -> Network:
        bound.load(weights)
        return bound.net.eval()  # type: ignore[return-value]  # in a workbench they all are

    def validation_batches(self) -> Batches:
        """The validation images, in order."""
        return batches(self._data.val, self._bench.device)

    def training_images(self) -> Batches:
        """The training images, in order."""
        return batches(self._data.train, self._bench.device)

    def recalibrated(self, weights: Weights) -> Weights:
        """These weights with norm statistics recomputed on the site's training images."""
        if weights.layout.statistics.start == weights.layout.statistics.stop:
            return weights
        evaluator = self._bench.evaluator
        evaluator.load(weights)
        recompute_statistics(evaluator, self.training_images())
        return evaluator.weights()

    def finish_learners(self, upload: Upload) -> None:
        """Keep or send the moments of every optimiser that ran, by its policy."""
        for name, learner in self._used.items():
            policy = self._bench.trained[name].optimizer
            if policy == "persist":
                self.private[moments_of(name)] = learner.moments()
            elif policy == "average":
                weight = upload.weights.get(name, self.images)  # as the weights have
                upload.add(moments_of(name), learner.moments(), weight)
            if self._statistics_stay:
                self.private[f"{name}.statistics"] = learner.weights()

    @property
    def _statistics_stay(self) -> bool:
        return self.context.training.running_statistics == "local"

    def localised(self, network: str, weights: Weights) -> Weights:
        """These weights as this site runs them: with its own statistics if those stay local."""
        own = self.private.get(f"{network}.statistics") if self._statistics_stay else None
        return weights if own is None else weights.with_statistics_of(own)
