"""From the block `task` of an experiment file to its task, checked on the way."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from konsil.config import Targets, TaskConfig, explain, keys_of
from konsil.errors import ConfigError, suggestion
from konsil.tasks.base import TASKS, Task, TaskSettings

# What names the labels of each kind of targets, and how many of them a task needs.
LABELS: dict[Targets, str] = {"masks": "structures", "classes": "classes"}
FEWEST: dict[Targets, tuple[int, str]] = {
    "masks": (1, "one structure"),
    "classes": (2, "two classes"),
}


def targets_of(config: TaskConfig) -> Targets:
    """What the task learns from: masks, or the class of an image."""
    return _class(config).targets


def _class(config: TaskConfig) -> type[Task]:
    return TASKS.find(config.name, "task.name")


def task_settings(config: TaskConfig) -> TaskSettings:
    """The task's own settings, checked."""
    cls = _class(config)
    own = LABELS[cls.targets]
    for other in set(LABELS.values()) - {own}:
        if getattr(config, other):
            raise ConfigError(f"task.{other}: {config.name} learns from {cls.targets}; give {own}")
    known = {*keys_of(TaskConfig), *keys_of(cls.Settings)} - (set(LABELS.values()) - {own})
    for key in config.settings:
        if key not in known:
            raise ConfigError(f"task.{key}: unknown key; {suggestion(key, list(known))}")
    try:
        return cls.Settings.model_validate(config.settings)
    except ValidationError as error:
        raise ConfigError(explain(error, "task", cls.Settings)) from None


def make_task(config: TaskConfig, labels: Sequence[str]) -> Task:
    """The task of an experiment file; labels are its structures or classes, in order."""
    settings, cls = task_settings(config), _class(config)
    fewest, words = FEWEST[cls.targets]
    if len(labels) < fewest:
        raise ConfigError(f"task: {config.name} needs at least {words}, found {list(labels)}")
    made = cls(labels, settings)
    metrics = list(getattr(made, "metrics", ()))
    if getattr(made, "main_metric", None) not in metrics:
        raise ConfigError(
            f"task {config.name}: main_metric must be one of its metrics, and those are {metrics}"
        )
    return made
