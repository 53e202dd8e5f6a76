"""What is evaluated at the end of a job: every role, on its own site's images.

Validation images have selected checkpoints and gamma by then; test images are read here, and only
here, and select nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from konsil.engines import Engine
from konsil.errors import RoundFailed
from konsil.evaluation import Columns
from konsil.evaluation.results import CLIENT_AVERAGE, GLOBAL, Row
from konsil.evaluation.routing import GAMMAS, choose_gamma
from konsil.messages import Failure, Kind, Reply, Request
from konsil.method import Method
from konsil.plan import Job, Plan
from konsil.server import Record
from konsil.supermodel import SELECTOR, Facts, SuperModel
from konsil.tasks import Task
from konsil.weights import Parts, Weights

Checkpoint = Literal["best", "last"]
CHECKPOINTS: tuple[Checkpoint, ...] = ("best", "last")
SPLITS = ("val", "test")


class Examiner:
    """Asks every site how well the models of a finished job answer there."""

    def __init__(self, plan: Plan, job: Job, engine: Engine) -> None:
        self.plan, self.job, self.engine = plan, job, engine
        self.method: Method = plan.method(job)

    def shared(self, record: Record, checkpoint: Checkpoint) -> dict[str, Weights]:
        """The shared parts of a checkpoint; parts without a measure have only a last one."""
        best = record.best if checkpoint == "best" else {}
        return {name: best.get(name, part) for name, part in record.shared.items()}

    def rows(self, record: Record, checkpoint: Checkpoint, model: SuperModel | None) -> list[Row]:
        """Every role on every split."""
        rows: list[Row] = []
        shared = self.shared(record, checkpoint)
        for split in SPLITS:
            for role in (*self.method.shared_roles, *self.method.private_roles):
                parts = {role: shared[role]} if role in self.method.shared_roles else {}
                rows += self._examine(role, split, checkpoint, parts, {})
            if model is not None:
                facts = {"model": plain(model.facts)}
                rows += self._examine("super", split, checkpoint, model.models, facts)
        return rows

    def super_model(self, record: Record, checkpoint: Checkpoint) -> SuperModel | None:
        """Specialists and selector put together, with gamma chosen on validation images."""
        if not self.method.super_model:
            return None
        shared = self.shared(record, checkpoint)
        models = {GLOBAL: shared[GLOBAL], SELECTOR: shared[SELECTOR]}
        for reply in self._ask("collect", {}, {"checkpoint": checkpoint}):
            models[reply.site] = reply.parts["personal"]
        draft = SuperModel(self._facts(), models)
        threshold = self.method.routing == "threshold"
        return draft.with_gamma(self._gamma(draft)) if threshold else draft

    def _facts(self) -> Facts:
        networks = self.method.networks()
        return Facts(
            task=self.plan.experiment.task.name,
            labels=list(self.plan.labels),
            sites=list(self.plan.sites),
            network=networks["global"].spec.to_json(),
            selector=networks["selector"].spec.to_json(),
            gamma=1.0,
            plan=self.plan.hash,
            routing=self.method.routing,
        )

    def _gamma(self, model: SuperModel) -> float:
        facts = {"model": plain(model.facts), "gammas": list(GAMMAS)}
        replies = list(self._ask("calibrate", model.models, facts))
        sums = {r.site: r.facts["sums"] for r in replies}
        return choose_gamma(GAMMAS, sums, {r.site: r.facts["images"] for r in replies})

    def _examine(
        self, role: str, split: str, checkpoint: Checkpoint, parts: Parts, facts: dict[str, Any]
    ) -> list[Row]:
        facts = facts | {"role": role, "split": split, "checkpoint": checkpoint}
        replies = {r.site: r for r in self._ask("evaluate", parts, facts)}
        columns = {site: _arrays(replies[site].facts["columns"]) for site in self.plan.sites}
        numbers = summary(columns, self.method.context.task)
        return [
            Row(self.job.method, self.job.seed, role, split, site, metric, value, n)
            for site, metric, value, n in numbers
        ]

    def _ask(self, kind: Kind, parts: Parts, facts: dict[str, Any]) -> Iterator[Reply]:
        number = self.plan.experiment.rounds + 1
        for answer in self.engine.exchange(
            [
                Request(kind, self.job.name, site, number, self.plan.hash, parts, facts)
                for site in self.plan.sites
            ]
        ):
            if isinstance(answer, Failure):
                raise RoundFailed(
                    f"{self.job.name}: site {answer.site} did not answer in {kind} "
                    f"({answer.reason}); --resume asks again"
                )
            yield answer


def summary(columns: dict[str, Columns], task: Task) -> list[tuple[str, str, float, int]]:
    """(site, metric, value, images): every site, the plain mean of sites, and all images."""
    values = {site: _metrics(c, task) for site, c in columns.items()}
    sizes = {site: len(c[task.main_metric]) for site, c in columns.items()}
    total = sum(sizes.values())
    numbers = [(s, m, v, sizes[s]) for s, found in values.items() for m, v in found.items()]
    for metric in _metrics(pool(columns), task):
        having = [found[metric] for found in values.values() if metric in found]
        if having:
            numbers.append((CLIENT_AVERAGE, metric, float(np.mean(having)), total))
    pooled = _metrics(pool(columns), task)
    return numbers + [(GLOBAL, m, v, total) for m, v in pooled.items()]


def _metrics(columns: Columns, task: Task) -> dict[str, float]:
    """The task's metrics, and the mean of every further column that is not material."""
    further = [n for n in columns if n not in task.metrics and not n.startswith("_")]
    return task.summarise(columns) | {n: float(columns[n].mean()) for n in further}


def pool(columns: dict[str, Columns]) -> Columns:
    """The columns of all sites, one under the other."""
    names = next(iter(columns.values()))
    return {name: np.concatenate([c[name] for c in columns.values()]) for name in names}


def _arrays(columns: dict[str, list[float]]) -> Columns:
    return {name: np.array(values) for name, values in columns.items()}


def plain(facts: Facts) -> dict[str, Any]:
    """Facts as they travel in a header."""
    return dict(vars(facts))
