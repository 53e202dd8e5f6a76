"""What one hospital is to a method: its images, its networks, what it keeps."""

from collections.abc import Callable, Iterator, Mapping
from math import ceil
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from konsil.config import ComputeConfig
from konsil.data import Images, TrainingData, augmented
from konsil.evaluation import Columns, batches, columns_of
from konsil.ingredients.context import Context, TrainedNetwork, Upload, moments_of
from konsil.ingredients.learner import Learner, recompute_statistics
from konsil.networks import Network, arranged, build_network
from konsil.randomness import generator
from konsil.weights import BoundNetwork, Parts, Weights

Found = TypeVar("Found")
Batches = Iterator[tuple[Tensor, Tensor]]
REMEMBERED = 1000  # things that one process has found out: some kilobytes each


class Networks:
    """The resident networks of one process: every site it hosts takes its turn with them."""

    def __init__(
        self, context: Context, trained: Mapping[str, TrainedNetwork], compute: ComputeConfig
    ) -> None:
        self.context = context
        self.trained = trained
        self.compute, self.device = compute, torch.device(compute.device)
        self._learners: dict[str, Learner] = {}
        self._frozen: dict[str, BoundNetwork] = {}
        # The oldest first. As plain numbers: arrays would lie among the megabytes that come and
        # go with every batch, and keep them from being used again whole.
        self._columns: dict[tuple[str, str, str, bool], dict[str, list[float]]] = {}
        self._found: dict[tuple[str, ...], Any] = {}

    def build(self, name: str) -> nn.Module:
        """The network that is trained under this name; under any other, one of the task."""
        trained = self.trained.get(name)
        network = build_network(trained.spec if trained else self.context.network)
        return arranged(network, self.compute)

    def learner(self, name: str) -> Learner:
        """The learner of that name, made when it is first needed."""
        if name not in self._learners:
            bound, trained = BoundNetwork(self.build(name), self.device), self.trained[name]
            training = self.context.training
            self._learners[name] = Learner(
                bound, training, trained.lr, trained.only, self.compute.precision
            )
        return self._learners[name]

    def frozen(self, slot: str) -> BoundNetwork:
        """A further network of the task that is asked and never trained, one a slot."""
        if slot not in self._frozen:
            self._frozen[slot] = BoundNetwork(self.build(slot), self.device)
        return self._frozen[slot]

    def columns(
        self, of: tuple[str, str], weights: Weights, images: Images, detailed: bool = False
    ) -> Columns:
        """Per-image values of these weights on the images of a site's split (`of`).

        What has been asked before is known: the last model is validated when the rounds are over
        and evaluated afterwards, and may be the best.
        """
        asked = *of, weights.digest(), detailed
        if asked not in self._columns:
            found = columns_of(self.evaluator, weights, images, self.context.task, detailed)
            self._columns[asked] = {name: values.tolist() for name, values in found.items()}
            if len(self._columns) > REMEMBERED:
                del self._columns[next(iter(self._columns))]
        return {name: np.array(values) for name, values in self._columns[asked].items()}

    def once(self, key: tuple[str, ...], find: Callable[[], Found]) -> Found:
        """What this process has found under this key before, or finds now."""
        if key not in self._found:
            self._found[key] = find()
            if len(self._found) > REMEMBERED:
                del self._found[next(iter(self._found))]
        return cast(Found, self._found[key])

    @property
    def evaluator(self) -> BoundNetwork:
        """The network that answers in validation and evaluation, apart from what is trained."""
        return self.frozen("evaluator")


class Memory(Protocol):
    """What lasts from round to round at a site: named weights, and notes that fit JSON."""

    private: dict[str, Weights]
    notes: dict[str, Any]


class Site:
    """One hospital in one round, as a method sees it. No test image can be reached from here."""

    def __init__(
        self,
        name: str,
        round: int,
        networks: Networks,
        data: TrainingData,
        memory: Memory,
        shared: Parts,
    ) -> None:
        self.name = name
        self.round = round  # 1, 2, ...
        self.context = networks.context
        self.task = networks.context.task
        self.training, self.validation = data.train, data.val  # its images
        self.images = len(data.train)  # n_k
        self.private, self.notes = memory.private, memory.notes
        self._networks = networks
        self._shared = shared
        self._used: dict[str, Learner] = {}

    @property
    def weight(self) -> float:
        """What this site's model counts in the mean of models: n_k, or 1 (`server.weights`)."""
        return 1 if self.context.equal else self.images

    @property
    def index(self) -> int:
        """The site's place in the roster: its label for the selector."""
        return self.context.sites.index(self.name)

    def learner(self, network: str, weights: Weights) -> Learner:
        """The learner of that name with these weights, and moments by its policy."""
        learner, trained = self._networks.learner(network), self._networks.trained[network]
        source = {"persist": self.private, "average": self._shared, "reset": {}}[trained.optimizer]
        moments = source.get(moments_of(network))
        rate = trained.rate(self.context.training, self.round, self.context.rounds)
        learner.load(self.localised(network, weights), moments, rate)
        self._used[network] = learner
        return learner

    def running(self, network: str) -> Learner:
        """The learner of that name that this round has begun with."""
        return self._used[network]

    def train(self, learner: Learner, purpose: str = "", epochs: int | None = None) -> Learner:
        """The plain local work: every batch of the round, one step each (see `batches`)."""
        for x, y in self.batches(purpose, epochs):
            learner.step(self.task.loss(learner(x), y))
        return learner

    def batches(self, purpose: str = "", epochs: int | None = None) -> Batches:
        """This round's batches: the same for every method.

        A method that by definition looks at further batches (a second phase, an inner step,
        fine-tuning) names their purpose, and gets the images in an order of its own.
        """
        for _, x, y in self.indexed_batches(self.training, purpose, epochs):
            yield x, y

    def epochs(self, number: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        """The same of so many epochs, each batch with the number of its epoch: 0, 1, ..."""
        length = ceil(self.images / self.context.training.batch_size)
        for place, (x, y) in enumerate(self.batches(epochs=number)):
            yield place // length, x, y

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
                x, y = images.batch(index, self._networks.device)
                yield index, *augmented(x, y, noise, training)

    def columns(self, weights: Weights) -> Columns:
        """Per-image validation values of these weights."""
        return self._networks.columns((self.name, "val"), weights, self.validation)

    def score(self, weights: Weights) -> float:
        """The main metric of these weights on the site's validation split."""
        return float(self.columns(weights)[self.task.main_metric].mean())

    @torch.no_grad()
    def validation_losses(self, weights: Weights) -> Tensor:
        """The loss of these weights on each of the site's validation images, float64."""
        net = self.frozen("evaluator", weights)
        losses = [self.task.losses(net(x), y) for x, y in self.in_order(self.validation)]
        return torch.cat(losses).cpu().double()

    def validation_loss(self, weights: Weights) -> float:
        """The mean loss of these weights on the site's validation images."""
        return float(self.validation_losses(weights).mean())

    @property
    def validation_images(self) -> int:
        """The number of validation images."""
        return len(self.validation)

    def once(self, *key: str, find: Callable[[], Found]) -> Found:
        """What depends on the site's images and this key alone: looked for once a process."""
        return self._networks.once((self.name, *key), find)

    def eval_network(self, network: str, weights: Weights) -> Network:
        """The network of that name with these weights, in evaluation mode, not to be trained."""
        return self._loaded(self._networks.learner(network).bound, weights)

    def frozen(self, slot: str, weights: Weights) -> Network:
        """One more network of the task with these weights, in evaluation mode; one a slot."""
        return self._loaded(self._networks.frozen(slot), weights)

    @staticmethod
    def _loaded(bound: BoundNetwork, weights: Weights) -> Network:
        bound.load(weights)
        return bound.mode(training=False)  # type: ignore[return-value]  # here they all are

    def in_order(self, images: Images) -> Batches:
        """The images of one of the site's splits as they are, one after the other."""
        return batches(images, self._networks.device)

    def recalibrated(self, weights: Weights) -> Weights:
        """These weights with norm statistics recomputed on the site's training images."""
        if weights.layout.statistics.start == weights.layout.statistics.stop:
            return weights
        evaluator = self._networks.evaluator
        evaluator.load(weights)
        recompute_statistics(evaluator, self.in_order(self.training))
        return evaluator.weights()

    def finish_learners(self, upload: Upload) -> None:
        """Keep or send the moments of every optimiser that ran, by its policy."""
        for name, learner in self._used.items():
            policy = self._networks.trained[name].optimizer
            if policy == "persist":
                self.private[moments_of(name)] = learner.moments()
            elif policy == "average":
                weight = upload.weights.get(name, self.weight)  # as the weights have
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
