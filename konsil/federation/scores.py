"""What sites say of their scores: held against the plan, then summed up in tables.

Their numbers of images, and the names and ranges of their scores must be the plan's. Everything
else is refused by name; what passes is read without surprises.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from konsil.evaluation import Columns
from konsil.evaluation.results import CLIENT_AVERAGE, GLOBAL
from konsil.federation.messages import (
    BadMessage,
    EvaluateReply,
    check_images,
    check_values,
    shown,
)
from konsil.tasks import Task

TARGET = "_target"  # of classification: the class of an image


@dataclass(frozen=True)
class Scores:
    """How well one site was answered: image by image, or only the means if its policy says so."""

    images: int
    columns: Columns | None = None
    means: dict[str, float] | None = None

    @classmethod
    def of(cls, reply: EvaluateReply) -> Scores:
        """What a site replied."""
        if reply.means is not None:
            return cls(reply.images, means=reply.means)
        return cls(reply.images, {name: np.array(v) for name, v in reply.columns.items()})

    def metrics(self, task: Task) -> dict[str, float]:
        """The task's metrics, and the mean of every further column that is not material."""
        if self.columns is None:
            return dict(self.means or {})
        return metrics_of(self.columns, task)


class ScoreSheet:
    """What every site's answer to one question about scores must look like."""

    def __init__(self, task: Task, further: Sequence[str]) -> None:
        """`further`: scores beside the task's own."""
        self.task = task
        self.columns = (*column_names(task), *further)
        self.means = (*task.metrics, *further)

    def read(self, reply: EvaluateReply, images: int) -> Scores:
        """The scores in a reply, complete and in order; `images`: how many the site has."""
        check_images(reply.images, images)
        if reply.means is not None:
            return Scores(images, means=self._means(reply.means))
        columns = self._columns(reply.columns, images)
        return Scores(images, {name: np.array(values) for name, values in columns.items()})

    def _columns(self, given: dict[str, list[float]], images: int) -> dict[str, list[float]]:
        _check_names("columns", given, self.columns)
        for name, values in given.items():
            check_values(name, values, images, self._largest(name))
        if not all(target.is_integer() for target in given.get(TARGET, ())):
            raise BadMessage(f"{TARGET}: a class that is no whole number")
        return {name: given[name] for name in self.columns}

    def _largest(self, name: str) -> int | None:
        """Scores end at 1 and targets at the last class; other material is any number."""
        if name == TARGET:
            return self.task.outputs - 1
        return None if name.startswith("_") else 1

    def _means(self, given: dict[str, float]) -> dict[str, float]:
        left_out = set(self.task.of_all_images) - set(given)  # a site may have one class only
        expected = [name for name in self.means if name not in left_out]
        _check_names("means", given, expected)
        for name, value in given.items():
            check_values(name, [value], 1, 1)
        return {name: given[name] for name in expected}


def column_names(task: Task) -> tuple[str, ...]:
    """What the task says of an image: asked of a blank one."""
    if task.targets == "masks":
        pixel = torch.zeros(1, task.outputs, 1, 1)
        return tuple(task.columns(pixel, pixel))
    return tuple(task.columns(torch.zeros(1, task.outputs), torch.zeros(1)))


def _check_names(what: str, given: Collection[str], expected: Sequence[str]) -> None:
    if set(given) != set(expected):
        raise BadMessage(f"{what} {shown(sorted(given))}, expected {list(expected)}")


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
