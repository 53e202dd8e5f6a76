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
    from konsil.api import RunResult as RunResult
    from konsil.api import load as load
    from konsil.api import open_federation as open_federation
    from konsil.api import run as run
    from konsil.config import Experiment as Experiment
    from konsil.errors import ConfigError as ConfigError
    from konsil.errors import KonsilError as KonsilError
    from konsil.ingredients.context import Context as Context
    from konsil.ingredients.context import Means as Means
    from konsil.ingredients.context import MethodSettings as MethodSettings
    from konsil.ingredients.context import Shared as Shared
    from konsil.ingredients.context import TrainedNetwork as TrainedNetwork
    from konsil.ingredients.context import Upload as Upload
    from konsil.ingredients.learner import Learner as Learner
    from konsil.ingredients.method import Method as Method
    from konsil.ingredients.method import method as method
    from konsil.ingredients.piece import Averaged as Averaged
    from konsil.ingredients.piece import Personal as Personal
    from konsil.ingredients.piece import Piece as Piece
    from konsil.ingredients.piece import train as train
    from konsil.ingredients.site import Site as Site
    from konsil.networks import network as network
    from konsil.prepare.importers.base import importer as importer
    from konsil.tasks import Task as Task
    from konsil.tasks import task as task
    from konsil.weights import Parts as Parts
    from konsil.weights import Weights as Weights
    from konsil.weights import mix as mix

_HOMES = {
    "api": "RunResult load open_federation run",
    "config": "Experiment",
    "errors": "ConfigError KonsilError",
    "ingredients.context": "Context Means MethodSettings Shared TrainedNetwork Upload",
    "ingredients.learner": "Learner",
    "ingredients.method": "Method method",
    "ingredients.piece": "Averaged Personal Piece train",
    "ingredients.site": "Site",
    "networks": "network",
    "prepare.importers.base": "importer",
    "tasks": "Task task",
    "weights": "Parts Weights mix",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
__all__ = ["__version__", "testing", *_HOME_OF]

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
