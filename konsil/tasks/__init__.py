"""What is learned: a task knows its loss and its metrics, and nothing of federations."""

from __future__ import annotations

from konsil.tasks.base import TASKS, Task, TaskSettings, task
from konsil.tasks.make import make_task, targets_of, task_settings

__all__ = [
    "TASKS",
    "Task",
    "TaskSettings",
    "make_task",
    "targets_of",
    "task",
    "task_settings",
]
