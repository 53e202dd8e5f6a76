"""Which settings suit a method best, by its scores on validation images."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from konsil.errors import RunError
from konsil.evaluation.results import CLIENT_AVERAGE, Row

COUNTING = ("super", "personal")  # of a method's roles the first it has; else its only one
Settings = Mapping[str, Any]  # key -> value


@dataclass(frozen=True)
class Choice:
    """A method with one choice of settings, before anybody knows what it is worth."""

    method: str  # its title in the experiment
    own: Settings = field(default_factory=dict)  # keys below the method's block: training.lr
    whole: Settings = field(default_factory=dict)  # the experiment's: rounds, server.momentum
    shown: Settings = field(default_factory=dict)  # what tables say of it
    label: str = ""  # of its jobs, which tells it from the method's other choices
    folder: str = "run"  # of the run that tries it: choices with the same `whole`


@dataclass(frozen=True)
class Trial:
    """A choice of settings, and what validation images say of it."""

    choice: Choice
    role: str = ""
    score: float | None = None  # of that role, the mean over seeds; None: its training has failed

    @property
    def method(self) -> str:
        """The method's title in the experiment."""
        return self.choice.method

    @property
    def values(self) -> Settings:
        """The settings as tables show them."""
        return self.choice.shown


def validation_score(
    rows: Iterable[Row], method: str, metric: str, seeds: int = 1
) -> tuple[str, float | None]:
    """The role that counts of a method and its client average on validation images.

    The score is the mean over so many seeds, and None if one of them is not there.
    """
    wanted = method, "val", CLIENT_AVERAGE, metric
    found: dict[str, list[float]] = {}
    for row in rows:
        if (row.method, row.split, row.site, row.metric) == wanted:
            found.setdefault(row.role, []).append(row.value)
    role = next((role for role in (*COUNTING, *found) if role in found), "")
    scores = found.get(role, [])
    return role, fmean(scores) if scores and len(scores) == seeds else None


def choose(trials: Sequence[Trial]) -> dict[str, Trial]:
    """The best trial of every method; of equals the one that was listed first."""
    best: dict[str, Trial] = {}
    for method in dict.fromkeys(trial.method for trial in trials):
        scored = [(t.score, t) for t in trials if t.method == method and t.score is not None]
        if not scored:
            raise RunError(
                f"{method}: no combination of settings has a validation score; all of its "
                "trainings failed: try a smaller learning rate"
            )
        best[method] = max(scored, key=lambda one: one[0])[1]  # the first of equals
    return best
