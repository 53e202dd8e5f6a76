"""Small things to run methods with: linear sites, engines that misbehave, whole tiny runs.

`Linear` federations are computed by the package's own Site, Learner and methods, but on networks
of a few numbers, so that a test can do the same arithmetic by hand.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from konsil.config import ComputeConfig, MethodConfig, TrainingConfig, check_experiment
from konsil.data import Images, TrainingData, open_federation
from konsil.federation.engines.inprocess import InProcessEngine
from konsil.federation.messages import Failure, Reply, Request
from konsil.federation.plan import Plan
from konsil.federation.runner import Run
from konsil.federation.server import Record, Server
from konsil.federation.site_worker import site_folder
from konsil.federation.state import SiteState, StateFiles
from konsil.ingredients.context import Context, Means, Upload
from konsil.ingredients.learner import Learner
from konsil.ingredients.method import Method, make_method
from konsil.ingredients.site import Networks, Site
from konsil.networks import NetworkSpec
from konsil.tasks import Task
from konsil.weights import BoundNetwork, Layout, WeightedMean, Weights

# --- linear federations -------------------------------------------------------------------------


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
        return {"score": 1 - (logits - y).square().mean(1).double()}


class LinearNetworks(Networks):
    """Networks that are given instead of built from a specification."""

    def __init__(self, method: Method, build: Callable[[str], nn.Module]) -> None:
        super().__init__(method.context, method.networks(), ComputeConfig())
        self.build = build

    def learner(self, name: str) -> Learner:
        if name not in self._learners:
            bound, trained = BoundNetwork(self.build(name)), self.trained[name]
            training = self.context.training
            self._learners[name] = Learner(bound, training, trained.lr, trained.only)
        return self._learners[name]

    def frozen(self, slot: str) -> BoundNetwork:
        if slot not in self._frozen:
            self._frozen[slot] = BoundNetwork(self.build("global"))
        return self._frozen[slot]

    @cached_property
    def evaluator(self) -> BoundNetwork:
        return BoundNetwork(self.build("global"))


@dataclass(frozen=True)
class LinearContext(Context):
    """A context whose network begins with given weights instead of built ones, if any are given."""

    given: Weights | None = None

    def initial(self, spec: NetworkSpec) -> Weights:
        if self.given is not None and spec == self.network:
            return self.given
        return super().initial(spec)


class Linear:
    """A federation of linear models: inputs [n, features] of bytes, targets [n, 1] of 0 or 1."""

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
        **settings: Any,
    ) -> None:
        self.data = data
        self.features = next(iter(data.values())).train.images.shape[1]
        self.model = model or (lambda: nn.Linear(self.features, 1))
        context = LinearContext(
            network=NetworkSpec("small", 1, 1, 32),
            task=Regression(),
            training=TrainingConfig(**{"optimizer": "sgd", "lr": 0.1, **(training or {})}),
            sites=tuple(data),
            rounds=rounds,
            seed=seed,
            images={name: len(d.train) for name, d in data.items()},
            given=None if initial is None else self.weights(*initial),
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

    def site(self, name: str, round: int, shared: dict[str, Weights]) -> Site:
        return Site(name, round, self.networks, self.data[name], self.states[name], shared)

    def uploads(
        self, shared: dict[str, Weights], round: int = 1, sites: Sequence[str] | None = None
    ) -> dict[str, Upload]:
        """One round at these sites, as the host does it."""
        sent = {}
        for name in self.data if sites is None else sites:
            parts = self.method.sent(name, shared)
            site = self.site(name, round, parts)
            self.method.receive(site, parts)
            sent[name] = self.method.local(site, parts)
            site.finish_learners(sent[name])
        return sent

    def round(
        self, shared: dict[str, Weights], round: int = 1, sites: Sequence[str] | None = None
    ) -> dict[str, Weights]:
        """One round: the shared parts after it."""
        return self.method.merge(shared, means(self.uploads(shared, round, sites), round))


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
    images = Images(
        torch.tensor(x, dtype=torch.uint8), torch.tensor(y, dtype=torch.uint8).view(-1, 1)
    )
    return TrainingData(images, images)


# --- whole runs ---------------------------------------------------------------------------------


def plan_of(folder: Path, **blocks: Any) -> Plan:
    """The plan of a tiny experiment on a folder of sites."""
    raw: dict[str, Any] = {
        "name": "tiny",
        "federation": {"folder": str(folder), "image_size": 32},
        "network": {"name": "unet", "width": 2},
        "training": {"batch_size": 3},
        "methods": ["fedavg"],
        "rounds": 2,
    }
    experiment = check_experiment(raw | blocks, "test")
    return Plan.of(experiment, open_federation(experiment.federation, experiment.task))


def silent(event: str, **facts: Any) -> None:
    """Nobody listens."""


def server(
    plan: Plan, folder: Path, title: str = "", engine: Any = None, notify: Any = silent
) -> Server:
    """The server of a plan's job (the first one unless a title is given), in process."""
    job = plan.job(f"{title}/seed0") if title else plan.jobs[0]
    return Server(plan, job, engine or InProcessEngine(plan, folder), folder, notify)


def train(plan: Plan, folder: Path, title: str = "", engine: Any = None) -> Record:
    """All rounds of a job, without the evaluation at the end."""
    return server(plan, folder, title, engine).train()


def state_of(plan: Plan, folder: Path, site: str, title: str = "") -> SiteState:
    """What a site has on its disk."""
    job = plan.job(f"{title}/seed0") if title else plan.jobs[0]
    return SiteState.load(site_folder(folder / job.name, site) / StateFiles.NAMES[0], plan.hash)


def whole_run(plan: Plan, folder: Path, resume: bool = False) -> list[Any]:
    """Training and evaluation of every job, as `konsil run` does them."""
    run = Run(plan, folder)
    run.prepare(resume, lambda path: None)
    return run.go()


def what_remains(folder: Path) -> dict[str, bytes]:
    """Every file of a finished run whose bytes must not depend on how it went."""
    may_differ = ("events.jsonl", "plan.yaml", "splits.csv", ".lock")
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in may_differ and path.suffix != ".png"
    }


def same_parts(a: dict[str, Weights], b: dict[str, Weights]) -> bool:
    """Same names and same bits."""
    return a.keys() == b.keys() and all(a[name].equals(b[name]) for name in a)


def same_record(a: Record, b: Record) -> bool:
    """Same bits, same scores, same history."""
    return (
        same_parts(a.shared, b.shared)
        and same_parts(a.best, b.best)
        and a.best_scores == b.best_scores
        and a.history == b.history
    )


def copy_sites(source: Path, folder: Path, sites: dict[str, tuple[str, int]]) -> Path:
    """A federation: new site -> (site of `source`, how many images of each of its folders).

    Every site is turned by another angle, so that copies of one site differ.
    """
    for place, (site, (origin, count)) in enumerate(sites.items()):
        for kind in sorted((source / origin).iterdir()):
            (folder / site / kind.name).mkdir(parents=True)
            for path in sorted(kind.iterdir())[:count]:
                with Image.open(path) as picture:
                    picture.rotate(90 * place).save(folder / site / kind.name / path.name)
    return folder


def private_cache(plan: Plan, folder: Path) -> Plan:
    """The plan on its own copy of the decoded images, for tests that damage them."""
    from dataclasses import replace

    shutil.copytree(plan.data_folder, folder)
    return replace(plan, data_folder=folder)


# --- engines that misbehave ---------------------------------------------------------------------


class Shuffled:
    """Replies arrive in another order in every round."""

    def __init__(self, engine: Any, seed: int) -> None:
        self.engine, self.random = engine, random.Random(seed)

    def exchange(
        self, requests: Sequence[Request], deadline: float | None = None
    ) -> Iterator[Reply | Failure]:
        mixed = list(requests)
        self.random.shuffle(mixed)
        yield from self.engine.exchange(mixed, deadline)

    def close(self) -> None:
        self.engine.close()


class Tampered:
    """Replies of one site and round go through `change`, which gives what arrives instead."""

    def __init__(
        self, engine: Any, site: str, round: int, change: Callable[[Reply], Sequence[Any]]
    ) -> None:
        self.engine, self.site, self.round, self.change = engine, site, round, change

    def exchange(
        self, requests: Sequence[Request], deadline: float | None = None
    ) -> Iterator[Reply | Failure]:
        for answer in self.engine.exchange(requests, deadline):
            hit = isinstance(answer, Reply) and (answer.site, answer.round) == (
                self.site,
                self.round,
            )
            yield from self.change(answer) if hit else [answer]

    def close(self) -> None:
        self.engine.close()
