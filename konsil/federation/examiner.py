"""What is evaluated at the end of a job: every role, on its own site's images.

Validation images have selected checkpoints and the super model's rule by then; test images are
read here, and only here, and select nothing. What sites say of their scores is held against the
plan: numbers of images, names and ranges must be the plan's, everything else is refused by name.
"""

from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import get_args

import numpy as np
import torch

from konsil.evaluation import values_of
from konsil.evaluation.intervals import intervals_of
from konsil.evaluation.results import CLIENT_AVERAGE, GLOBAL, Row
from konsil.evaluation.routing import ERRORS, calibration_errors, routed_names
from konsil.federation.engines import Engine
from konsil.federation.messages import (
    BadMessage,
    Checkpoint,
    EvaluateReply,
    EvaluateRequest,
    Reply,
    Split,
    check_images,
    check_patients,
    check_values,
    shown,
)
from konsil.federation.plan import Job, Plan
from konsil.federation.questions import Questions
from konsil.federation.server import Record
from konsil.supermodel import SuperModel
from konsil.tasks import Task
from konsil.weights import Parts

SPLITS: tuple[Split, ...] = get_args(Split)


class Examiner(Questions):
    """Asks every site how well the models of a finished job answer there."""

    def __init__(self, plan: Plan, job: Job, engine: Engine) -> None:
        super().__init__(plan, job, engine)
        # of the best checkpoint: split -> role -> site -> metric -> ends of the 95 % interval
        self.intervals: dict[str, dict[str, dict[str, dict[str, list[float]]]]] = {}
        # role -> site -> what the best checkpoint scores on every test image
        self.scores: dict[str, dict[str, EvaluateReply]] = {}
        self.patients: dict[str, list[int]] = {}  # of each site's test images, where it told them

    def rows(
        self,
        record: Record,
        checkpoint: Checkpoint,
        model: SuperModel | None,
        splits: Sequence[Split] = SPLITS,
    ) -> list[Row]:
        """Every role on every split, or on these splits only."""
        rows: list[Row] = []
        shared = self.shared(record, checkpoint)
        for split in splits:
            for role in (*self.method.shared_roles, *self.method.private_roles):
                parts = {role: shared[role]} if role in self.method.shared_roles else {}
                asked = EvaluateRequest(role=role, split=split, checkpoint=checkpoint)
                rows += self._examine(asked, parts)
            if model is not None:
                asked = EvaluateRequest(
                    role="super", split=split, checkpoint=checkpoint, model=asdict(model.facts)
                )
                rows += self._examine(asked, model.models, model)
        return rows

    def _examine(
        self, asked: EvaluateRequest, parts: Parts, model: SuperModel | None = None
    ) -> list[Row]:
        role, split = asked.role, asked.split
        further = () if model is None else routed_names(model, asked.detailed)

        def read(reply: Reply) -> EvaluateReply:
            images, said = self.plan.images(reply.site, split), reply.body_as(EvaluateReply)
            if asked.detailed and said.means is None:
                self._check_same_patients(reply.site, said.patients)
            return check_scores(said, images, self.task, further, asked.detailed)

        said = self.ask("evaluate", parts, asked, read)
        if asked.checkpoint == "best":
            self._note_intervals(role, split, said)
        if asked.detailed:
            self.scores[role] = said
        numbers = summary(said, self.task)
        return [
            Row(self.job.method, self.job.seed, role, split, site, metric, value, n)
            for site, metric, value, n in numbers
        ]

    def _check_same_patients(self, site: str, told: list[int]) -> None:
        if self.patients.setdefault(site, told) != told:
            raise BadMessage("patients: others than it told of another model")

    def _note_intervals(self, role: str, split: Split, said: dict[str, EvaluateReply]) -> None:
        """Of sites that told single images' values; a policy may let out means alone."""
        by_site = {
            site: intervals_of(
                reply.columns, (*self.task.metrics, *self.task.further), reply.patients
            )
            for site, reply in said.items()
            if reply.means is None
        }
        if known := {site: found for site, found in by_site.items() if found}:
            self.intervals.setdefault(split, {})[role] = known


# --- what sites say of their scores -------------------------------------------------------------


def check_scores(
    said: EvaluateReply,
    images: int,
    task: Task,
    further: Sequence[str] = (),
    detailed: bool = False,
) -> EvaluateReply:
    """What a site with so many images says of its scores, complete and in the task's order.

    `further`: scores beside the task's own; `detailed`: all that the task has.
    """
    check_images(said.images, images)
    if said.patients and (said.means is not None or not detailed):
        raise BadMessage("patients: they go with single test images' scores, and nowhere else")
    check_patients(said.patients, images)
    if said.means is not None:
        left_out = set(task.of_all_images) - set(said.means)  # a site may have one class only
        errors = ERRORS if "selector_accuracy" in further else ()
        metrics = (*task.metrics, *(task.further if detailed else ()))
        names = (*metrics, *(n for n in further if not n.startswith("_")), *errors)
        expected = [name for name in names if name not in left_out]
        _check_names("means", said.means, expected)
        for name, value in said.means.items():
            check_values(name, [value], 1, task.largest(name) if name in metrics else 1)
        return said.model_copy(update={"means": {name: said.means[name] for name in expected}})
    expected = [*column_names(task, detailed), *further]
    _check_names("columns", said.columns, expected)
    for name, values in said.columns.items():
        check_values(name, values, images, 1 if name in further else task.largest(name))
    for name in task.whole:
        if not all(value.is_integer() for value in said.columns.get(name, ())):
            raise BadMessage(f"{name}: a class that is no whole number")
    return said.model_copy(update={"columns": {name: said.columns[name] for name in expected}})


def _check_names(what: str, given: Collection[str], expected: list[str]) -> None:
    if set(given) != set(expected):
        raise BadMessage(f"{what} {shown(sorted(given))}, expected {expected}")


def column_names(task: Task, detailed: bool = False) -> tuple[str, ...]:
    """What the task says of an image: asked of a blank one."""
    logits, y = torch.zeros(1, task.outputs), torch.zeros(1)
    if task.targets == "masks":
        logits = y = torch.zeros(1, task.outputs, 1, 1)
    return tuple(values_of(task, logits, y, detailed))


def metrics_of(said: EvaluateReply, task: Task) -> dict[str, float]:
    """The task's metrics, and the mean of every further column that is not material."""
    if said.means is not None:
        return said.means
    columns = {name: np.array(values) for name, values in said.columns.items()}
    known = {*task.metrics, *task.further}
    further = [n for n in columns if n not in known and not n.startswith("_")]
    means = {n: float(columns[n].mean()) for n in further}
    return task.summarise(columns) | means | calibration_errors(columns)


def summary(said: dict[str, EvaluateReply], task: Task) -> list[tuple[str, str, float, int]]:
    """(site, metric, value, images): every site, the plain mean of sites, and all images."""
    values = {site: metrics_of(reply, task) for site, reply in said.items()}
    total = sum(reply.images for reply in said.values())
    numbers = [(s, m, v, said[s].images) for s, found in values.items() for m, v in found.items()]
    pooled = _pooled(list(said.values()), list(values.values()), task)
    for metric in dict.fromkeys([*pooled, *(m for found in values.values() for m in found)]):
        having = [found[metric] for found in values.values() if metric in found]
        numbers += [(CLIENT_AVERAGE, metric, float(np.mean(having)), total)] if having else []
    return numbers + [(GLOBAL, m, v, total) for m, v in pooled.items()]


def _pooled(
    said: list[EvaluateReply], values: list[dict[str, float]], task: Task
) -> dict[str, float]:
    """Every metric over all images. Of means alone there is a mean, but no common AUC."""
    sizes = [reply.images for reply in said]
    if all(reply.means is None for reply in said):
        below = {
            name: [v for reply in said for v in reply.columns[name]] for name in said[0].columns
        }
        return metrics_of(EvaluateReply(images=sum(sizes), columns=below), task)
    return {
        name: float(np.average([found[name] for found in values], weights=sizes))
        for name in values[0]
        if name not in task.of_all_images and all(name in found for found in values)
    }
