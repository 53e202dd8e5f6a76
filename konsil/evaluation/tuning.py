"""Which training settings suit a method best, by its scores on validation images."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from konsil.errors import RunError
from konsil.evaluation.results import CLIENT_AVERAGE, Row

COUNTING = ("super", "personal")  # of a method's roles the first it has; else its only one


@dataclass(frozen=True)
class Trial:
    """A method with one choice of settings, and what validation images say of it."""

    method: str  # its title in the experiment
    lr: float
    local_epochs: int
    rounds: int
    role: str = ""
    score: float | None = None  # of that role; None: its training has failed


def validation_score(rows: Iterable[Row], method: str, metric: str) -> tuple[str, float | None]:
    """The role that counts of a method and its client average on validation images."""
    wanted = method, "val", CLIENT_AVERAGE, metric
    found = {r.role: r.value for r in rows if (r.method, r.split, r.site, r.metric) == wanted}
    role = next((role for role in (*COUNTING, *found) if role in found), "")
    return role, found.get(role)


def choose(trials: Sequence[Trial]) -> dict[str, Trial]:
    """The best trial of every method; of equals the smaller rate, then the fewer epochs."""
    best: dict[str, Trial] = {}
    for method in dict.fromkeys(trial.method for trial in trials):
        scored = [(t.score, t) for t in trials if t.method == method and t.score is not None]
        if not scored:
            raise RunError(
                f"{method}: no combination of settings has a validation score; try a smaller --lr"
            )
        best[method] = min(scored, key=lambda s: (-s[0], s[1].lr, s[1].local_epochs))[1]
    return best
