"""What is learned: a task knows its loss and its metrics, and nothing of federations."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from konsil.config import Block, Targets, TaskConfig, checked, keys_of
from konsil.errors import ConfigError, suggestion
from konsil.registry import Registry

if TYPE_CHECKING:  # who only asks for a task's targets does not wait for torch
    from torch import Tensor


class TaskSettings(Block):
    """A task's own keys in the block `task`: frozen, checked, with sane defaults."""


class Task(ABC):
    """Loss and metrics over logits and targets.

    Values are kept an image each (`columns`) and summed up over any set of images later
    (`summarise`): a site's, or all sites' together. Columns whose name starts with an underscore
    are material for a metric of the whole set, and no metric themselves. Metrics lie between 0
    and 1 unless `largest` says otherwise: the server refuses other answers of a site.
    """

    name: ClassVar[str]  # as the experiment file has it
    targets: ClassVar[Targets]  # masks [B, labels, H, W] of zeros and ones, or classes [B]
    Settings: ClassVar[type[TaskSettings]] = TaskSettings
    labels: list[str]  # structures or classes, in order
    outputs: int  # channels of the logits: one a label
    main_metric: str  # what models are compared by; higher is better
    metrics: Sequence[str]  # what `summarise` can give, in the order of a table
    of_all_images: tuple[str, ...] = ()  # those that are no mean of single images' values
    further: Sequence[str] = ()  # metrics of `detailed`: of test images alone, for comparisons
    lower_is_better: Sequence[str] = ()  # of those
    whole: Sequence[str] = ("_target",)  # columns of whole numbers

    def __init__(
        self, labels: Sequence[str] | None = None, settings: TaskSettings | None = None
    ) -> None:
        """With the labels of a federation; without them a class has its own."""
        if labels is not None:
            self.labels, self.outputs = list(labels), len(labels)
        self.settings: Any = settings or self.Settings()

    @abstractmethod
    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """The mean loss of a batch."""

    @abstractmethod
    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """The loss of each image of a batch, [B]; their mean is `loss`, up to rounding."""

    def probabilities(self, logits: Tensor) -> Tensor:
        """Logits as probabilities, of the same shape."""
        from konsil.networks.outputs import to_probabilities  # which takes torch's seconds

        return to_probabilities(self.targets, logits)

    @abstractmethod
    def columns(self, logits: Tensor, y: Tensor) -> dict[str, Tensor]:
        """One value an image: float64 [B] on the CPU."""

    def detailed(self, logits: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Further values of an image, which take too long to be asked after every round."""
        return {}

    def largest(self, column: str) -> float | None:
        """How far a column goes, from 0 on; None: it has any number."""
        if column == "_target":
            return self.outputs - 1
        return None if column.startswith("_") else 1

    def summarise(self, columns: dict[str, np.ndarray]) -> dict[str, float]:
        """Metric -> value over the images of these columns; what they cannot give is left out."""
        wanted = (*self.metrics, *self.further)
        given = [metric for metric in wanted if len(columns.get(metric, ()))]
        return {metric: float(np.mean(columns[metric])) for metric in given}


# What names the labels of each kind of targets, and how many of them a task needs.
LABELS: dict[Targets, tuple[str, int, str]] = {
    "masks": ("structures", 1, "one structure"),
    "classes": ("classes", 2, "two classes"),
}


def _check(name: str, cls: type[Task]) -> None:
    """What would otherwise be found in the middle of a plan."""
    if not issubclass(cls, Task):
        raise ConfigError(f"task {name}: {cls.__name__} is not a subclass of Task")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise ConfigError(f"task {name}: {cls.__name__} has no {missing}")
    if getattr(cls, "targets", None) not in LABELS:
        raise ConfigError(f"task {name}: {cls.__name__}.targets must be one of {', '.join(LABELS)}")


TASKS: Registry[type[Task]] = Registry("task", "konsil.tasks", _check)
T = TypeVar("T", bound=type[Task])


def task(name: str) -> Callable[[T], T]:
    """Register a task under a name that no other has."""

    def register(cls: T) -> T:
        TASKS.add(name, cls, cls)
        cls.name = name
        return cls

    return register


# --- from an experiment file --------------------------------------------------------------------


def targets_of(config: TaskConfig) -> Targets:
    """What the task learns from: masks, or the class of an image."""
    return TASKS.find(config.name, "task.name").targets


def task_settings(config: TaskConfig) -> TaskSettings:
    """The task's own settings, checked."""
    cls = TASKS.find(config.name, "task.name")
    own = LABELS[cls.targets][0]
    (other,) = {key for key, *_ in LABELS.values()} - {own}
    if getattr(config, other):
        raise ConfigError(f"task.{other}: {config.name} learns from {cls.targets}; give {own}")
    known = {*keys_of(TaskConfig), *keys_of(cls.Settings)} - {other}
    for key in config.settings:
        if key not in known:
            raise ConfigError(f"task.{key}: unknown key; {suggestion(key, list(known))}")
    return checked(cls.Settings, config.settings, "task")


def make_task(config: TaskConfig, labels: Sequence[str]) -> Task:
    """The task of an experiment file; labels are its structures or classes, in order."""
    settings, cls = task_settings(config), TASKS.find(config.name, "task.name")
    _, fewest, words = LABELS[cls.targets]
    if len(labels) < fewest:
        raise ConfigError(f"task: {config.name} needs at least {words}, found {list(labels)}")
    made = cls(labels, settings)
    metrics = list(getattr(made, "metrics", ()))
    if getattr(made, "main_metric", None) not in metrics:
        raise ConfigError(
            f"task {config.name}: main_metric must be one of its metrics, and those are {metrics}"
        )
    return made
