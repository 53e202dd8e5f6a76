"""What `konsil tune` and `konsil sweep` have in common: settings tried, scored, and chosen.

Choices that have all but the methods' own settings in common are one ordinary run, in an ordinary
run folder below the search's, in which no test image is opened. Nothing else is kept: a search
that stopped asks for the same choices again, and finds the runs that are done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import yaml
from rich.console import Console

from konsil import api
from konsil.config import Experiment, read_experiment
from konsil.errors import RunError
from konsil.evaluation.results import read_results
from konsil.evaluation.tuning import Choice, Trial, choose, validation_score
from konsil.files import write_text

if TYPE_CHECKING:
    from konsil.data import Federation
    from konsil.federation.plan import Plan

Attempt = Callable[[Sequence[Choice]], list[Trial]]  # train these; what came of each, in order


class Search(Protocol):
    """Which settings of which methods are tried, and in which order."""

    @property
    def experiment(self) -> Experiment:
        """What is searched about."""

    @property
    def seeds(self) -> Sequence[int]:
        """Every choice is trained with each of them."""

    @property
    def keys(self) -> Sequence[str]:
        """Of what tables show, the keys that were tried: what a picture is against."""

    def in_words(self) -> str:
        """What is tried, in a line."""

    def to_check(self) -> Sequence[Choice]:
        """Choices that show, before any is trained, whether all of them can be meant."""

    def carry_out(self, attempt: Attempt) -> list[Trial]:
        """Have every choice trained."""


@dataclass(frozen=True)
class Stage:
    """Choices that are one run."""

    folder: str
    experiment: Experiment
    choices: Sequence[Choice]

    def trials(self, folder: Path, metric: str) -> list[Trial]:
        """What its run has left in its folder."""
        rows, seeds = read_results(folder / "results.csv"), len(self.experiment.seeds)
        return [
            Trial(choice, *validation_score(rows, choice.label, metric, seeds))
            for choice in self.choices
        ]


def stages(experiment: Experiment, choices: Sequence[Choice], seeds: Sequence[int]) -> list[Stage]:
    """The runs that try these choices."""
    by_folder: dict[str, list[Choice]] = {}
    for choice in choices:
        by_folder.setdefault(choice.folder, []).append(choice)
    return [
        Stage(folder, _experiment_of(experiment, folder, own, seeds), own)
        for folder, own in by_folder.items()
    ]


def _experiment_of(
    experiment: Experiment, folder: str, choices: Sequence[Choice], seeds: Sequence[int]
) -> Experiment:
    changes = {"name": f"{experiment.name}-{folder}", "seeds": [*seeds]}
    return with_choices(experiment, choices, changes | {**choices[0].whole})


def with_choices(
    experiment: Experiment, choices: Sequence[Choice], changes: Mapping[str, Any]
) -> Experiment:
    """The experiment with these methods, each with its own settings, and other changes."""
    by_title = {method.title: method for method in experiment.methods}
    methods = []
    for choice in choices:
        block = by_title[choice.method].model_dump(mode="json", exclude_unset=True)
        methods.append(block | ({"label": choice.label} if choice.label else {}))
    settings = {
        f"methods.{place}.{key}": value
        for place, choice in enumerate(choices)
        for key, value in choice.own.items()
    }
    return read_experiment(experiment, {"methods": methods, **settings, **changes})


@dataclass(frozen=True)
class Found:
    """What came of a search."""

    plan: Plan  # of the experiment itself, with how it computes
    federation: Federation
    metric: str
    trials: Sequence[Trial]
    chosen: Mapping[str, Trial]  # of every method


def search_for(
    search: Search, folder: Path, resume: bool, console: Console, closed: str = ""
) -> Found:
    """Try every choice and choose; all is checked before the first run, none is trained twice.

    `closed`: why no further run may begin, if none may.
    """
    if not resume and folder.exists() and any(folder.iterdir()):
        raise RunError(
            f"{folder}: not empty; add --resume to go on with a search, or choose another --out"
        )
    begun = next((path.parent for path in sorted(folder.glob("*/plan.yaml"))), folder)
    plan, federation = api.prepare(search.experiment, resume, console, begun)
    found = plan.experiment  # what was found of performance is that of every try
    for stage in stages(found, search.to_check(), search.seeds):
        _plan(stage, federation)
    metric = _metric(plan)
    console.print(search.in_words(), highlight=False, markup=False)

    def attempt(choices: Sequence[Choice]) -> list[Trial]:
        tried: dict[tuple[str, str], Trial] = {}
        for stage in stages(found, choices, search.seeds):
            place, own = folder / stage.folder, _plan(stage, federation)
            if closed and not (place / "plan.yaml").exists():
                raise RunError(f"{place}: {closed}")
            api.train(own, federation, place, resume, console, search=True)
            for trial in stage.trials(place, metric):
                tried[stage.folder, trial.choice.label] = trial
        return [tried[choice.folder, choice.label] for choice in choices]

    titles = [method.title for method in search.experiment.methods]
    trials = sorted(search.carry_out(attempt), key=lambda trial: titles.index(trial.method))
    return Found(plan, federation, metric, trials, choose(trials))


def _plan(stage: Stage, federation: Federation) -> Plan:
    from konsil.federation.plan import Plan

    return Plan.of(stage.experiment, federation)


def _metric(plan: Plan) -> str:
    from konsil.tasks import make_task

    return make_task(plan.experiment.task, plan.labels).main_metric


def show_found(found: Found, keys: Sequence[str], picture: Path, console: Console) -> None:
    """The table of all trials, the picture, and what there is to say of the choice."""
    from konsil.report.style import look, method_colours, write_figure
    from konsil.report.tuning import draw_tuning, edge_notes, tuning_table

    trials, chosen, metric = found.trials, found.chosen, found.metric
    console.print(tuning_table(trials, chosen, metric))
    with look():
        drawn = draw_tuning(
            trials, chosen, metric, method_colours(found.plan.experiment.methods), keys
        )
        write_figure(drawn, picture)
    for line in [*edge_notes(trials, chosen), f"picture: {picture}"]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def write_experiment(path: Path, experiment: Experiment, head: str) -> None:
    """An experiment file of what was chosen; its first line says where it comes from."""
    plain = experiment.model_dump(mode="json", exclude_unset=True)
    write_text(path, f"# {head}\n" + yaml.safe_dump(plain, sort_keys=False))
