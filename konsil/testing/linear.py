"""Federations of a few numbers, so that a test can do the same arithmetic by hand.

They are computed by the package's own Site, Learner and methods, on linear models.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from konsil.config import PLAIN, ComputeConfig, MethodConfig, TrainingConfig
from konsil.data import Images, TrainingData
from konsil.federation.state import SiteState
from konsil.ingredients.context import Context, Means, Shared, Upload
from konsil.ingredients.method import Method, make_method
from konsil.ingredients.site import Networks, Site
from konsil.networks import NetworkSpec
from konsil.tasks import Task
from konsil.weights import Layout, Parts, WeightedMean, Weights


class Regression(Task):
    """Squared error; the score is one minus it, so that higher is better."""

    name = "regression"
    labels: list[str] = ["y"]  # noqa: RUF012  as the base class has it
    outputs = 1
    main_metric = "score"
    metrics: list[str] = ["score"]  # noqa: RUF012

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return (logits - y).square().mean()

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        return (logits - y).square().mean(1)

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits

    def columns(self, logits: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"score": 1 - self.losses(logits, y).double()}


class LinearNetworks(Networks):
    """Networks that are given instead of built from a specification."""

    def __init__(self, method: Method, given: Callable[[str], nn.Module]) -> None:
        super().__init__(method.context, method.networks(), ComputeConfig())
        self.given = given

    def build(self, name: str) -> nn.Module:
        """What was given under that name."""
        return self.given(name)


@dataclass(frozen=True)
class LinearContext(Context):
    """A context whose model begins with given weights, if any are; a selector begins as usual."""

    given: Weights | None = None

    def initial(self, spec: NetworkSpec) -> Weights:
        if self.given is not None and spec == self.network:
            return self.given
        return super().initial(spec)


class Linear:
    """A federation of linear models: inputs [n, features] of bytes, targets [n, 1] of 0 or 1.

    `data` comes from `points`, a byte b is read as b / 255. Training is plain SGD with rate
    0.1 unless `training` has other keys; `initial` are the model's first numbers; `server` has
    `momentum` and `equal` as a `Context` has them; `settings` are the method's.
    `model` and `selector` make other networks than linear ones.
    """

    def __init__(
        self,
        method: str,
        data: dict[str, TrainingData],
        *,
        rounds: int = 4,
        seed: int = 0,
        training: dict[str, Any] | None = None,
        selector: Callable[[], nn.Module] | None = None,
        model: Callable[[], nn.Module] | None = None,
        initial: Sequence[float] | None = None,
        server: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.data = data
        self.features = next(iter(data.values())).train.images.shape[1]
        self.model = model or (lambda: nn.Linear(self.features, 1))
        context = LinearContext(
            network=NetworkSpec("small", 1, 1, 32),
            task=Regression(),
            training=TrainingConfig(**PLAIN | {"optimizer": "sgd", "lr": 0.1} | (training or {})),
            sites=tuple(data),
            rounds=rounds,
            seed=seed,
            images={name: len(d.train) for name, d in data.items()},
            given=None if initial is None else self.weights(*initial),
            **(server or {}),
        )
        self.method = make_method(MethodConfig(name=method, **settings), context)
        self.selector = selector or (lambda: nn.Linear(self.features, len(data)))
        self.networks = LinearNetworks(self.method, self._build)
        self.states = {name: SiteState() for name in data}

    def _build(self, name: str) -> nn.Module:
        return self.selector() if name == "selector" else self.model()

    def weights(self, *values: float) -> Weights:
        """Weights of the model in the layout's order: coefficients, then the constant."""
        return Weights(Layout.of(self.model()), torch.tensor(values, dtype=torch.float32))

    def site(self, name: str, round: int, shared: Parts) -> Site:
        """A site in a round, with what it kept of the rounds before."""
        return Site(name, round, self.networks, self.data[name], self.states[name], shared)

    def uploads(
        self, shared: Parts, round: int = 1, sites: Sequence[str] | None = None
    ) -> dict[str, Upload]:
        """One round at these sites, as their worker does it."""
        sent, shared = {}, _shared(shared)
        for name in self.data if sites is None else sites:
            parts = self.method.sent(name, shared)
            site = self.site(name, round, parts)
            self.method.receive(site, parts)
            sent[name] = self.method.local(site, parts)
            site.finish_learners(sent[name])
        return sent

    def round(self, shared: Parts, round: int = 1, sites: Sequence[str] | None = None) -> Shared:
        """One round: the shared parts after it."""
        shared = _shared(shared)
        return self.method.merge(shared, means(self.uploads(shared, round, sites), round))


def _shared(parts: Parts) -> Shared:
    return parts if isinstance(parts, Shared) else Shared(parts)


def means(uploads: Mapping[str, Upload], round: int = 1) -> Means:
    """The server's means of these uploads."""
    sums: dict[str, WeightedMean] = {}
    for upload in uploads.values():
        for name, part in upload.parts.items():
            sums.setdefault(name, WeightedMean(part.layout)).add(part, upload.weights[name])
    individual = {site: upload.parts for site, upload in uploads.items()}
    found = {name: mean.result() for name, mean in sums.items()}
    return Means(found, round, tuple(uploads), individual)


def points(x: Sequence[Sequence[int]], y: Sequence[int]) -> TrainingData:
    """Training points that are their own validation points."""
    targets = torch.tensor(y, dtype=torch.uint8).view(-1, 1)
    images = Images(torch.tensor(x, dtype=torch.uint8), targets)
    return TrainingData(images, images)
