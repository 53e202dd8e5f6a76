"""`konsil tune`: learning rate and local epochs of every method, with equal work.

Every combination sees the same number of images: with more local epochs there are fewer rounds. A
plan has one number of rounds, so that each number of local epochs is a run of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from konsil.config import Experiment, MethodConfig, TrainingConfig, checked
from konsil.errors import ConfigError
from konsil.evaluation.tuning import Choice, Trial
from konsil.searching import (
    Attempt,
    Stage,
    search_for,
    show_found,
    stages,
    with_choices,
    write_experiment,
)

TUNED = "tuned.yaml"


@dataclass(frozen=True)
class Search:
    """An experiment, and the values that are tried; none of a kind: every method keeps its own."""

    experiment: Experiment
    rates: tuple[float, ...]
    epochs: tuple[int, ...]
    seed: int

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        rates: Sequence[float],
        epochs: Sequence[int],
        seed: int | None = None,
    ) -> Search:
        """A search with checked values, each once; by default with the experiment's first seed."""
        if not rates and not epochs:
            raise ConfigError("nothing to choose from: give --lr or --local-epochs, several times")
        for option, key, values in (
            ("--lr", "lr", rates),
            ("--local-epochs", "local_epochs", epochs),
        ):
            for value in values:
                checked(TrainingConfig, {key: value}, option)
        first = experiment.seeds[0] if seed is None else seed
        return cls(experiment, tuple(sorted({*rates})), tuple(sorted({*epochs})), first)

    @property
    def seeds(self) -> Sequence[int]:
        """The one that every choice is trained with."""
        return [self.seed]

    @property
    def keys(self) -> Sequence[str]:
        """Which of both are tried."""
        return [key for key, tried in (("lr", self.rates), ("local_epochs", self.epochs)) if tried]

    def choices(self) -> list[Choice]:
        """Every method with every combination: of equals the smaller rate is first."""
        rates, epochs = self.rates or (None,), self.epochs or (None,)
        methods = self.experiment.methods
        return [self._choice(m, rate, n) for m in methods for rate in rates for n in epochs]

    to_check = choices

    def carry_out(self, attempt: Attempt) -> list[Trial]:
        """All of them at once."""
        return attempt(self.choices())

    def stages(self) -> list[Stage]:
        """One for each number of local epochs."""
        return stages(self.experiment, self.choices(), self.seeds)

    def rounds(self, epochs: int | None) -> int:
        """So many that as many images are seen as the experiment itself would see."""
        e = self.experiment
        if epochs is None:
            return e.rounds
        return max(1, int(e.rounds * e.training.local_epochs / epochs + 0.5))

    def in_words(self) -> str:
        """What is tried, in a line."""
        lists = [("lr", [f"{rate:g}" for rate in self.rates])]
        lists += [("local_epochs", [f"{n} (rounds: {self.rounds(n)})" for n in self.epochs])]
        tried = "; ".join(f"{key} {', '.join(values)}" for key, values in lists if values)
        return f"to be tried with every method: {tried}; seed {self.seed}, validation images only"

    def _choice(self, method: MethodConfig, rate: float | None, epochs: int | None) -> Choice:
        usual, rounds = method.training.laid_over(self.experiment.training), self.rounds(epochs)
        own = {"training.lr": rate, "training.local_epochs": epochs}
        return Choice(
            method.title,
            own={key: value for key, value in own.items() if value is not None},
            whole={"rounds": rounds},
            shown={
                "lr": rate or usual.lr,
                "local_epochs": epochs or usual.local_epochs,
                "rounds": rounds,
            },
            label=_label(method, rate),
            folder="run" if epochs is None else f"epochs{epochs}",
        )


def _label(method: MethodConfig, rate: float | None) -> str:
    """What tells a method's tries apart; also a folder's name, where a plus may not stand."""
    return f"{method.title}-lr{rate!r}".replace("e+", "e") if rate else method.title


def tune(search: Search, folder: Path, resume: bool, console: Console) -> dict[str, Trial]:
    """Try every combination, show all scores, and write the tuned experiment; what was chosen."""
    found = search_for(search, folder, resume, console)
    show_found(found, search.keys, folder / "figures" / "tuning.png", console)
    for line in write_tuned(search, list(found.chosen.values()), folder):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return dict(found.chosen)


def write_tuned(search: Search, chosen: Sequence[Trial], folder: Path) -> list[str]:
    """The experiment with what was chosen in its methods; what there is to say of it.

    Methods that want different numbers of local epochs cannot all do the same work in one plan:
    then there is, beside the whole experiment, one for each number.
    """
    for old in folder.glob("tuned-epochs*.yaml"):
        old.unlink()  # of a search among fewer values
    all_rounds = {trial.values["rounds"] for trial in chosen}
    several = len(all_rounds) > 1
    rounds = search.experiment.rounds if several else all_rounds.pop()
    path = folder / TUNED
    _write(search, chosen, rounds, path)
    lines = [f"tuned experiment: {path}"]
    if not several:
        return lines
    lines[0] += f", {rounds} rounds for every method: more images where there are more local epochs"
    for epochs in sorted({trial.values["local_epochs"] for trial in chosen}):
        same = [trial for trial in chosen if trial.values["local_epochs"] == epochs]
        path, rounds = folder / f"tuned-epochs{epochs}.yaml", same[0].values["rounds"]
        _write(search, same, rounds, path)
        names = ", ".join(trial.method for trial in same)
        lines.append(f"with equal work: {path} ({rounds} rounds: {names})")
    return lines


def _write(search: Search, chosen: Sequence[Trial], rounds: int, path: Path) -> None:
    changes: dict[str, Any] = {"name": f"{search.experiment.name}-{path.stem}", "rounds": rounds}
    tuned = [replace(trial.choice, label="") for trial in chosen]
    head = f"Training settings chosen on validation images by konsil tune, seed {search.seed}."
    write_experiment(path, with_choices(search.experiment, tuned, changes), head)
