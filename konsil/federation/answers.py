"""What sites answer at the end, checked before it reaches a model or a table.

What a site says of itself is held against the plan: its numbers of images, and the names and
ranges of its scores. Everything else is refused by name; what passes is read without surprises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from konsil.config import ServerConfig
from konsil.errors import KonsilError
from konsil.federation.intake import wrong_values
from konsil.federation.messages import Reply, is_number, shown
from konsil.tasks import Task
from konsil.weights import Layout, Weights

SPECIALIST = "personal"
TARGET = "_target"  # of classification: the class of an image
ROUNDING = 1e-6  # by which an area under a curve may be above 1


class BadAnswer(KonsilError):
    """What is wrong with a reply, for an error that names its site."""


def specialist_of(reply: Reply, layout: Layout, config: ServerConfig) -> Weights | None:
    """The specialist that a site hands out; None if its policy keeps it."""
    if reply.facts.get("withheld") is True:
        return None
    if set(reply.parts) != {SPECIALIST}:
        raise BadAnswer(f"parts {shown(sorted(reply.parts))}, expected {[SPECIALIST]}")
    specialist = reply.parts[SPECIALIST]
    if wrong := wrong_values(specialist, layout, config.max_rms):
        raise BadAnswer(f"{SPECIALIST}: {wrong}")
    return specialist


def sums_of(facts: dict[str, Any], gammas: int, images: int) -> list[float]:
    """For every gamma the sum of the scores, each from 0 to 1, of so many images."""
    _check_images(facts.get("images"), images)
    return _numbers(facts.get("sums"), "sums", gammas, images)


class ScoreSheet:
    """What every site's answer to one question about scores must look like."""

    def __init__(self, task: Task, further: Sequence[str]) -> None:
        """`further`: scores beside the task's own."""
        self.task = task
        self.columns = (*column_names(task), *further)
        self.means = (*task.metrics, *further)

    def checked(self, facts: dict[str, Any], images: int) -> dict[str, Any]:
        """The facts of a reply, complete and in order; `images`: how many the site has."""
        if "means" in facts:
            _check_images(facts.get("images"), images)
            return {"images": images, "means": self._checked_means(facts["means"])}
        return {"columns": self._checked_columns(facts.get("columns"), images)}

    def _checked_columns(self, columns: Any, images: int) -> dict[str, list[float]]:
        _check_names(columns, "columns", self.columns)
        found = {n: _numbers(columns[n], n, images, self._largest(n)) for n in self.columns}
        if not all(target.is_integer() for target in found.get(TARGET, ())):
            raise BadAnswer(f"{TARGET}: a class that is no whole number")
        return found

    def _largest(self, name: str) -> int | None:
        """Scores end at 1 and targets at the last class; other material is any number."""
        if name == TARGET:
            return self.task.outputs - 1
        return None if name.startswith("_") else 1

    def _checked_means(self, means: Any) -> dict[str, float]:
        given = means.keys() if isinstance(means, dict) else ()
        left_out = set(self.task.of_all_images) - set(given)  # a site may have one class only
        expected = [name for name in self.means if name not in left_out]
        _check_names(means, "means", expected)
        return {n: _numbers([means[n]], n, 1, 1)[0] for n in expected}


def column_names(task: Task) -> tuple[str, ...]:
    """What the task says of an image: asked of a blank one."""
    if task.targets == "masks":
        pixel = torch.zeros(1, task.outputs, 1, 1)
        return tuple(task.columns(pixel, pixel))
    return tuple(task.columns(torch.zeros(1, task.outputs), torch.zeros(1)))


def _check_images(given: Any, expected: int) -> None:
    if type(given) is not int or given != expected:
        raise BadAnswer(f"{shown(given)} images, by the plan {expected}")


def _check_names(given: Any, what: str, expected: Sequence[str]) -> None:
    if not isinstance(given, dict) or set(given) != set(expected):
        names = sorted(given) if isinstance(given, dict) else given
        raise BadAnswer(f"{what} {shown(names)}, expected {list(expected)}")


def _numbers(values: Any, name: str, count: int, largest: int | None) -> list[float]:
    """So many numbers, from 0 to the largest if there is one."""
    if not isinstance(values, list) or len(values) != count:
        found = len(values) if isinstance(values, list) else shown(values)
        raise BadAnswer(f"{name}: {found} values, expected {count}")
    for value in values:
        if not is_number(value):
            raise BadAnswer(f"{name}: {shown(value)} is no finite number")
        if largest is not None and not -ROUNDING <= value <= largest + ROUNDING:
            raise BadAnswer(f"{name}: {shown(value)} is not from 0 to {largest}")
    return [float(value) for value in values]
