"""What is learned: a task knows its loss and its metrics, and nothing of federations."""

from konsil.tasks.base import (
    TASKS,
    Task,
    TaskSettings,
    make_task,
    targets_of,
    task,
    task_settings,
)

__all__ = ["TASKS", "Task", "TaskSettings", "make_task", "targets_of", "task", "task_settings"]
