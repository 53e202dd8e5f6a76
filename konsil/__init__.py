"""Konsil: personalised federated learning for medical imaging.

    import konsil

    result = konsil.run("experiment.yaml")
    model = konsil.load(result.folder)

These names stay; everything else may move. They are loaded when they are asked for, so that the
import itself costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from konsil.version import __version__

if TYPE_CHECKING:  # for type checkers and editors; the same names as in _HOMES
    import konsil.testing as testing
    from konsil.api import RunResult, load, open_federation, run
    from konsil.config import Experiment
    from konsil.errors import ConfigError, KonsilError
    from konsil.ingredients.context import (
        Context,
        Means,
        MethodSettings,
        Shared,
        TrainedNetwork,
        Upload,
    )
    from konsil.ingredients.learner import Learner
    from konsil.ingredients.method import Method, method
    from konsil.ingredients.piece import Averaged, Personal, Piece, train
    from konsil.ingredients.site import Site
    from konsil.networks import network
    from konsil.prepare.importers.base import importer
    from konsil.tasks import Task, task
    from konsil.weights import Parts, Weights, mix

__all__ = [  # noqa: RUF022  grouped by what one wants to do
    "__version__",
    # run experiments, and use what they leave
    "Experiment",
    "KonsilError",
    "RunResult",
    "load",
    "open_federation",
    "run",
    # write a method
    "Averaged",
    "ConfigError",
    "Context",
    "Learner",
    "Means",
    "Method",
    "MethodSettings",
    "Parts",
    "Personal",
    "Piece",
    "Shared",
    "Site",
    "TrainedNetwork",
    "Upload",
    "Weights",
    "method",
    "mix",
    "train",
    # write a network, a task, an importer
    "Task",
    "importer",
    "network",
    "task",
    # test it
    "testing",
]

_HOMES = {
    "api": ("RunResult", "load", "open_federation", "run"),
    "config": ("Experiment",),
    "errors": ("ConfigError", "KonsilError"),
    "ingredients.context": (
        "Context",
        "Means",
        "MethodSettings",
        "Shared",
        "TrainedNetwork",
        "Upload",
    ),
    "ingredients.learner": ("Learner",),
    "ingredients.method": ("Method", "method"),
    "ingredients.piece": ("Averaged", "Personal", "Piece", "train"),
    "ingredients.site": ("Site",),
    "networks": ("network",),
    "prepare.importers.base": ("importer",),
    "tasks": ("Task", "task"),
    "weights": ("Parts", "Weights", "mix"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

if not TYPE_CHECKING:  # or type checkers would believe in any name

    def __getattr__(name: str) -> Any:
        if name == "testing":
            return import_module("konsil.testing")
        if name not in _HOME_OF:
            raise AttributeError(f"module 'konsil' has no attribute {name!r}")
        found = getattr(import_module(f"konsil.{_HOME_OF[name]}"), name)
        globals()[name] = found  # asked for once
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
