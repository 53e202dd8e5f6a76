"""What a tracker does, and which there are."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from konsil.errors import ConfigError
from konsil.tracking.scalars import Scalar

FOLDER = "track"  # below the run's
Name = Literal["tensorboard", "mlflow"]
NAMES: tuple[Name, ...] = get_args(Name)


class Tracker(Protocol):
    """Keeps the numbers of a run's jobs. Whatever it raises is its end, and not the run's."""

    def begin(self, job: str, plan: dict[str, Any]) -> set[tuple[str, int]]:
        """Take a job up, new or not: (name, step) of all that it has of it already."""

    def write(self, job: str, scalars: Sequence[Scalar]) -> None:
        """Keep these, in their order."""

    def end(self, job: str) -> None:
        """The job is done."""

    def close(self) -> None:
        """Nothing more comes, be the jobs done or not."""


def check_names(names: Sequence[str]) -> None:
    """Refuse what is no tracker, or is not installed, before anything is trained."""
    for name in names:
        if name not in NAMES:
            raise ConfigError(f"no tracker {name}: there are {', '.join(NAMES)}")
        if find_spec(name) is None:
            raise ConfigError(f"{name} is not installed: pip install 'konsil[track]'")


def make_tracker(name: str, run: Path) -> Tracker:
    """A tracker for the run in a folder; what it must remember lies below it."""
    made: Tracker = import_module(f"konsil.tracking.to_{name}").make(run / FOLDER)
    return made
