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
        """What a site's worker replied, image by image."""
        return cls(reply.images, {name: np.array(v) for name, v in reply.columns.items()})

    def metrics(self, task: Task) -> dict[str, float]:
        """The task's metrics, and the mean of every further column that is not material."""
        if self.columns is None:
            return dict(self.means or {})
        further = [n for n in self.columns if n not in task.metrics and not n.startswith("_")]
        return task.summarise(self.columns) | {n: float(self.columns[n].mean()) for n in further}


def read_scores(
    reply: EvaluateReply, images: int, task: Task, further: Sequence[str] = ()
) -> Scores:
    """The scores in the reply of a site with so many images, complete and in the task's order.

    `further`: scores beside the task's own.
    """
    check_images(reply.images, images)
    if reply.means is not None:
        left_out = set(task.of_all_images) - set(reply.means)  # a site may have one class only
        expected = [name for name in (*task.metrics, *further) if name not in left_out]
        _check_names("means", reply.means, expected)
        for name, value in reply.means.items():
            check_values(name, [value], 1, 1)
        return Scores(images, means={name: reply.means[name] for name in expected})
    expected = [*column_names(task), *further]
    _check_names("columns", reply.columns, expected)
    for name, values in reply.columns.items():
        check_values(name, values, images, _largest(name, task))
    if not all(target.is_integer() for target in reply.columns.get(TARGET, ())):
        raise BadMessage(f"{TARGET}: a class that is no whole number")
    return Scores(images, {name: np.array(reply.columns[name]) for name in expected})


def _largest(name: str, task: Task) -> int | None:
    """Scores end at 1 and targets at the last class; other material is any number."""
    if name == TARGET:
        return task.outputs - 1
    return None if name.startswith("_") else 1


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
    pooled = _pooled(scores, task)
    for metric in dict.fromkeys([*pooled, *(m for found in values.values() for m in found)]):
        having = [found[metric] for found in values.values() if metric in found]
        numbers += [(CLIENT_AVERAGE, metric, float(np.mean(having)), total)] if having else []
    return numbers + [(GLOBAL, m, v, total) for m, v in pooled.items()]


def _pooled(scores: dict[str, Scores], task: Task) -> dict[str, float]:
    """Every metric over all images. Of means alone there is a mean, but no common AUC."""
    sizes = [s.images for s in scores.values()]
    columns = {site: s.columns for site, s in scores.items() if s.columns is not None}
    if len(columns) == len(scores):
        return Scores(sum(sizes), pool(columns)).metrics(task)
    first, *others = values = [s.metrics(task) for s in scores.values()]
    return {
        name: float(np.average([found[name] for found in values], weights=sizes))
        for name in first
        if name not in task.of_all_images and all(name in found for found in others)
    }


def pool(columns: dict[str, Columns]) -> Columns:
    """The columns of all sites, one under the other."""
    names = next(iter(columns.values()))
    return {name: np.concatenate([c[name] for c in columns.values()]) for name in names}
