"""What is learned: a task knows its loss and its metrics, and nothing of federations."""

from __future__ import annotations

from konsil.config import TaskConfig
from konsil.errors import ConfigError
from konsil.tasks.base import Task

__all__ = ["Task", "make_task"]


def make_task(config: TaskConfig, labels: list[str]) -> Task:
    """The task of an experiment file; labels are its structures or classes, in order."""
    if config.name == "segmentation":
        # Here and not above: its loss takes MONAI's seconds of import, classification does not.
        from konsil.tasks.segmentation import Segmentation

        if not labels:
            raise ConfigError("task: segmentation needs at least one structure")
        return Segmentation(labels, config.loss_name)
    from konsil.tasks.classification import Classification

    if len(labels) < 2:
        raise ConfigError(f"task: classification needs at least two classes, found {labels}")
    return Classification(labels)
