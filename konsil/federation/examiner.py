"""What is evaluated at the end of a job: every role, on its own site's images.

Validation images have selected checkpoints and gamma by then; test images are read here, and only
here, and select nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np

from konsil.errors import RoundFailed
from konsil.evaluation import Columns
from konsil.evaluation.results import CLIENT_AVERAGE, GLOBAL, Row
from konsil.evaluation.routing import GAMMAS, choose_gamma, routed_names
from konsil.federation.answers import BadAnswer, ScoreSheet, specialist_of, sums_of
from konsil.federation.engines import Engine
from konsil.federation.intake import wrong_address
from konsil.federation.messages import Failure, Kind, Reply, Request, shown
from konsil.federation.plan import Job, Plan
from konsil.federation.server import GO_ON, Record
from konsil.ingredients.context import Shared
from konsil.ingredients.method import Method
from konsil.supermodel import SELECTOR, Facts, SuperModel
from konsil.tasks import Task
from konsil.weights import Parts

Checkpoint = Literal["best", "last"]
CHECKPOINTS: tuple[Checkpoint, ...] = ("best", "last")
SPLITS = ("val", "test")
T = TypeVar("T")


class Examiner:
    """Asks every site how well the models of a finished job answer there."""

    def __init__(self, plan: Plan, job: Job, engine: Engine) -> None:
        self.plan, self.job, self.engine = plan, job, engine
        self.method: Method = plan.method(job)

    def shared(self, record: Record, checkpoint: Checkpoint) -> Shared:
        """The shared parts of a checkpoint; parts without a measure have only a last one."""
        return record.shared.updated(record.best if checkpoint == "best" else {})

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
        layout, config = shared[GLOBAL].layout, self.plan.experiment.server
        specialists = self._ask(
            "collect", {}, {"checkpoint": checkpoint}, lambda r: specialist_of(r, layout, config)
        )
        models |= {site: model for site, model in specialists.items() if model is not None}
        # where a site's policy keeps it, the global model stands in
        withheld = sorted(site for site, model in specialists.items() if model is None)
        draft = SuperModel(replace(self.facts(), withheld=withheld), models)
        threshold = self.method.routing == "threshold"
        return draft.with_gamma(self._gamma(draft)) if threshold else draft

    def facts(self) -> Facts:
        """What is known of the super model before gamma is chosen."""
        networks = self.method.networks()
        return Facts(
            task=self._task.name,
            targets=self._task.targets,
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
        images = {site: self.plan.images(site, "val") for site in self.plan.sites}

        def read(reply: Reply) -> list[float]:
            return sums_of(reply.facts, len(GAMMAS), images[reply.site])

        return choose_gamma(GAMMAS, self._ask("calibrate", model.models, facts, read), images)

    def _examine(
        self, role: str, split: str, checkpoint: Checkpoint, parts: Parts, facts: dict[str, Any]
    ) -> list[Row]:
        facts = facts | {"role": role, "split": split, "checkpoint": checkpoint}
        further = routed_names(self.method.routing) if role == "super" else ()
        sheet = ScoreSheet(self._task, further)

        def read(reply: Reply) -> Scores:
            return Scores.of(sheet.checked(reply.facts, self.plan.images(reply.site, split)))

        numbers = summary(self._ask("evaluate", parts, facts, read), self._task)
        return [
            Row(self.job.method, self.job.seed, role, split, site, metric, value, n)
            for site, metric, value, n in numbers
        ]

    @property
    def _task(self) -> Task:
        return self.method.context.task

    def _ask(
        self, kind: Kind, parts: Parts, facts: dict[str, Any], read: Callable[[Reply], T]
    ) -> dict[str, T]:
        """What `read` makes of every site's reply, in the roster's order."""
        number = self.plan.experiment.rounds + 1
        requests = {
            site: Request(kind, self.job.name, site, number, self.plan.hash, parts, facts)
            for site in self.plan.sites
        }
        found: dict[str, T] = {}
        for answer in self.engine.exchange(list(requests.values())):
            if isinstance(answer, Failure):
                raise self._failed(answer.site, f"did not answer in {kind} ({answer.reason})")
            if answer.site not in requests or answer.site in found:
                raise self._failed(answer.site, f"answered in {kind} without being asked")
            try:
                found[answer.site] = self._read(answer, requests[answer.site], read)
            except BadAnswer as wrong:
                raise self._failed(answer.site, f"is refused in {kind}: {wrong}") from None
        for site in requests.keys() - found.keys():
            raise self._failed(site, f"did not answer in {kind}")
        return {site: found[site] for site in requests}

    @staticmethod
    def _read(reply: Reply, request: Request, read: Callable[[Reply], T]) -> T:
        if wrong := wrong_address(reply, request):
            raise BadAnswer(wrong)
        return read(reply)

    def _failed(self, site: str, what: str) -> RoundFailed:
        return RoundFailed(f"{self.job.name}: site {shown(site)} {what}; {GO_ON}: it asks again")


@dataclass(frozen=True)
class Scores:
    """How well one site was answered: image by image, or only the means if its policy says so."""

    images: int
    columns: Columns | None = None
    means: dict[str, float] | None = None

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Scores:
        """What a site replied."""
        if "means" in facts:
            return cls(facts["images"], means=facts["means"])
        columns = {name: np.array(values) for name, values in facts["columns"].items()}
        return cls(len(next(iter(columns.values()))), columns)

    def metrics(self, task: Task) -> dict[str, float]:
        """The task's metrics, and the mean of every further column that is not material."""
        if self.columns is None:
            return dict(self.means or {})
        return metrics_of(self.columns, task)


def summary(scores: dict[str, Scores], task: Task) -> list[tuple[str, str, float, int]]:
    """(site, metric, value, images): every site, the plain mean of sites, and all images."""
    values = {site: s.metrics(task) for site, s in scores.items()}
    total = sum(s.images for s in scores.values())
    numbers = [(s, m, v, scores[s].images) for s, found in values.items() for m, v in found.items()]
    pooled = _pooled(scores, values, task)
    for metric in dict.fromkeys([*pooled, *(m for found in values.values() for m in found)]):
        having = [found[metric] for found in values.values() if metric in found]
        numbers += [(CLIENT_AVERAGE, metric, float(np.mean(having)), total)] if having else []
    return numbers + [(GLOBAL, m, v, total) for m, v in pooled.items()]


def _pooled(
    scores: dict[str, Scores], values: dict[str, dict[str, float]], task: Task
) -> dict[str, float]:
    """Every metric over all images. Of means alone there is a mean, but no common AUC."""
    columns = {site: s.columns for site, s in scores.items() if s.columns is not None}
    if len(columns) == len(scores):
        return metrics_of(pool(columns), task)
    names = [name for name in next(iter(values.values())) if name not in task.of_all_images]
    sizes = [s.images for s in scores.values()]
    return {
        name: float(np.average([found[name] for found in values.values()], weights=sizes))
        for name in names
        if all(name in found for found in values.values())
    }


def metrics_of(columns: Columns, task: Task) -> dict[str, float]:
    """The task's metrics, and the mean of every further column that is not material."""
    further = [n for n in columns if n not in task.metrics and not n.startswith("_")]
    return task.summarise(columns) | {n: float(columns[n].mean()) for n in further}


def pool(columns: dict[str, Columns]) -> Columns:
    """The columns of all sites, one under the other."""
    names = next(iter(columns.values()))
    return {name: np.concatenate([c[name] for c in columns.values()]) for name in names}


def plain(facts: Facts) -> dict[str, Any]:
    """Facts as they travel in a header."""
    return dict(vars(facts))
