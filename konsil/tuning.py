"""`konsil tune`: the training settings of every method, chosen on validation images alone.

Every combination sees the same number of images: with more local epochs there are fewer rounds. A
plan has one number of rounds, so that each number of local epochs is a run of its own, in an
ordinary run folder below the search's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from konsil import api
from konsil.config import Experiment, MethodConfig, TrainingConfig, checked, read_experiment
from konsil.errors import ConfigError, RunError
from konsil.evaluation.results import read_results
from konsil.evaluation.tuning import Trial, choose, validation_score
from konsil.federation.plan import Plan
from konsil.files import write_text

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

    def stages(self) -> list[Stage]:
        """One for each number of local epochs."""
        return [Stage(self, number) for number in self.epochs or (None,)]

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

    def methods_with(self, chosen: Sequence[Trial]) -> list[dict[str, Any]]:
        """The methods of these trials, the chosen values in their blocks of training."""
        by_title = {method.title: method for method in self.experiment.methods}
        return [
            _with_training(
                by_title[trial.method],
                trial.lr if self.rates else None,
                trial.local_epochs if self.epochs else None,
            )
            for trial in chosen
        ]


@dataclass(frozen=True)
class Stage:
    """The trials of a search that have the same number of local epochs: one run."""

    search: Search
    epochs: int | None  # None: every method keeps its own

    @property
    def folder(self) -> str:
        """Its name below the search's folder."""
        return "run" if self.epochs is None else f"epochs{self.epochs}"

    @property
    def experiment(self) -> Experiment:
        """Every method with every learning rate, under labels that tell them apart."""
        e = self.search.experiment
        changes = {
            "name": f"{e.name}-{self.folder}",
            "methods": [
                _with_training(method, rate, self.epochs) | {"label": _label(method, rate)}
                for method, rate in self._tries()
            ],
            "rounds": self.search.rounds(self.epochs),
            "seeds": [self.search.seed],
        }
        return read_experiment(e, changes)

    def trials(self, folder: Path, metric: str) -> list[Trial]:
        """What its run has left in its folder."""
        rows, rounds = read_results(folder / "results.csv"), self.search.rounds(self.epochs)
        found = []
        for method, rate in self._tries():
            usual = method.training.laid_over(self.search.experiment.training)
            work = rate or usual.lr, self.epochs or usual.local_epochs, rounds
            scored = validation_score(rows, _label(method, rate), metric)
            found.append(Trial(method.title, *work, *scored))
        return found

    def _tries(self) -> list[tuple[MethodConfig, float | None]]:
        rates = self.search.rates or (None,)
        return [(method, rate) for method in self.search.experiment.methods for rate in rates]


def _label(method: MethodConfig, rate: float | None) -> str:
    """What tells a method's tries apart; also a folder's name, where a plus may not stand."""
    return f"{method.title}-lr{rate!r}".replace("e+", "e") if rate else method.title


def _with_training(method: MethodConfig, rate: float | None, epochs: int | None) -> dict[str, Any]:
    """A method's block of the experiment file with these values in its training."""
    plain: dict[str, Any] = method.model_dump(mode="json", exclude_unset=True)
    values = {"lr": rate, "local_epochs": epochs}
    own = {key: value for key, value in values.items() if value is not None}
    return plain | {"training": plain.get("training", {}) | own}


def tune(search: Search, folder: Path, resume: bool, console: Console) -> dict[str, Trial]:
    """Try every combination, show all scores, and write the tuned experiment; what was chosen.

    Everything is checked before the first run begins; runs that are done are not repeated.
    """
    if not resume and folder.exists() and any(folder.iterdir()):
        raise RunError(
            f"{folder}: not empty; add --resume to go on with a search, or choose another --out"
        )
    stages = search.stages()
    plan, federation = api.prepare(search.experiment, resume, console, folder / stages[0].folder)
    if search.experiment.performance == "auto":  # what was found is that of every try
        stages = replace(search, experiment=plan.experiment).stages()
    console.print(search.in_words(), highlight=False, markup=False)
    tries = [(s.folder, Plan.of(s.experiment, federation)) for s in stages]
    for name, tried in tries:
        api.train(tried, federation, folder / name, resume, console, search=True)
    return _concluded(search, folder, plan, console)


def _concluded(search: Search, folder: Path, plan: Plan, console: Console) -> dict[str, Trial]:
    """The table, the picture and the tuned file of a search whose runs are done."""
    from konsil.report.style import look, method_colours, write_figure
    from konsil.report.tuning import draw_tuning, edge_notes, tuning_table
    from konsil.tasks import make_task

    metric = make_task(search.experiment.task, plan.labels).main_metric
    found = [t for s in search.stages() for t in s.trials(folder / s.folder, metric)]
    titles = [method.title for method in search.experiment.methods]
    trials = sorted(found, key=lambda t: titles.index(t.method))
    chosen = choose(trials)
    console.print(tuning_table(trials, chosen, metric))
    with look():
        drawn = draw_tuning(trials, chosen, metric, method_colours(plan.experiment.methods))
        picture = write_figure(drawn, folder / "figures" / "tuning.png")
    lines = [*edge_notes(trials, chosen), f"picture: {picture}"]
    for line in [*lines, *write_tuned(search, list(chosen.values()), folder)]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return chosen


def write_tuned(search: Search, chosen: Sequence[Trial], folder: Path) -> list[str]:
    """The experiment with what was chosen in its methods; what there is to say of it.

    Methods that want different numbers of local epochs cannot all do the same work in one plan:
    then there is, beside the whole experiment, one for each number.
    """
    for old in folder.glob("tuned-epochs*.yaml"):
        old.unlink()  # of a search among fewer values
    several = len({trial.rounds for trial in chosen}) > 1
    rounds = search.experiment.rounds if several else chosen[0].rounds
    path = folder / TUNED
    _write(search, chosen, rounds, path)
    lines = [f"tuned experiment: {path}"]
    if not several:
        return lines
    lines[0] += f", {rounds} rounds for every method: more images where there are more local epochs"
    for epochs in sorted({trial.local_epochs for trial in chosen}):
        same = [trial for trial in chosen if trial.local_epochs == epochs]
        path = folder / f"tuned-epochs{epochs}.yaml"
        _write(search, same, same[0].rounds, path)
        names = ", ".join(trial.method for trial in same)
        lines.append(f"with equal work: {path} ({same[0].rounds} rounds: {names})")
    return lines


def _write(search: Search, chosen: Sequence[Trial], rounds: int, path: Path) -> None:
    e = search.experiment
    name = f"{e.name}-{path.stem}"
    changes = {"name": name, "methods": search.methods_with(chosen), "rounds": rounds}
    tuned = read_experiment(e, changes).model_dump(mode="json", exclude_unset=True)
    head = f"# Training settings chosen on validation images by konsil tune, seed {search.seed}.\n"
    write_text(path, head + yaml.safe_dump(tuned, sort_keys=False))
