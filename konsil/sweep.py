"""`konsil sweep`: any settings of every method, chosen on validation images, tested once.

A grid tries every combination; with a number of trials Optuna proposes them, one after the other,
from what the ones before have scored. Its proposals follow from the seed and the scores, so that a
search that stopped makes the same ones again. What was chosen is then an ordinary run, the only
one that opens test images.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console

from konsil import api
from konsil.config import Experiment, read_experiment
from konsil.errors import ConfigError
from konsil.evaluation.tuning import Choice, Trial
from konsil.randomness import derive, digest
from konsil.searching import (
    Attempt,
    Found,
    search_for,
    show_found,
    with_choices,
    write_experiment,
)

if TYPE_CHECKING:
    import optuna

CHOSEN = "chosen"
DECADE = 10  # a range that reaches this many times its lower end is searched by its logarithm
DIGITS = 3  # significant ones, of what is drawn from a range
LONGEST = 24  # signs of a value in a folder's name
# Settings that leave the images that are scored as they are, and change a number.
HEADS = ("rounds", "training", "server", "network", "task", "compute", "methods")
IMAGES = ("task.name", "task.structures", "task.classes")
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
RANGE = re.compile(rf"\s*({NUMBER})\s*\.\.\s*({NUMBER})\s*")
TESTED = "the choice was tested already, and is not made again; choose another --out to try more"
NO_OPTUNA = "--trials needs Optuna, which is not installed: pip install 'konsil[sweep]'"


@dataclass(frozen=True)
class Range:
    """All numbers from one to another, whole ones if both ends are."""

    low: float
    high: float

    @property
    def whole(self) -> bool:
        """Whether only whole numbers are meant."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def log(self) -> bool:
        """Whether it spans a decade, so that factors count and not steps."""
        return self.low > 0 and self.high >= DECADE * self.low

    def rounded(self, value: float) -> float:
        """A number of it as short as people write them."""
        if self.whole:
            return value
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)


@dataclass(frozen=True)
class Dimension:
    """A setting of a method, or of the whole experiment, and what is tried for it."""

    key: str  # below the method's block, or the experiment's
    own: bool  # of the method alone
    values: Sequence[Any] | Range

    @property
    def samples(self) -> Sequence[Any]:
        """All values, or both ends."""
        tried = self.values
        return (tried.low, tried.high) if isinstance(tried, Range) else tried


def dimension(text: str) -> Dimension:
    """What `--try KEY=VALUES` means; its key is still as one writes it."""
    said = f"--try {text}"
    key, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not key:
        raise ConfigError(f"{said}: write key=values, such as --try training.lr=1e-3,3e-3")
    if key.partition(".")[0] not in HEADS or key == "methods" or key.startswith(IMAGES):
        raise ConfigError(
            f"{said}: cannot be tried; scores are compared on the same images, and only settings "
            f"below {', '.join(HEADS)} change them (but not {', '.join(IMAGES)}); --set lays one "
            "value over the file"
        )
    if match := RANGE.fullmatch(values):
        low, high = (_number(end) for end in match.groups())
        if not low < high:
            raise ConfigError(f"{said}: {low:g} is not below {high:g}")
        return Dimension(key, False, Range(low, high))
    return Dimension(key, False, _listed(values, said))


def _listed(text: str, said: str) -> list[Any]:
    try:
        values = yaml.safe_load(f"[{text}]")
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or error
        raise ConfigError(f"{said}: the values are not valid YAML: {problem}") from None
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    if not values:
        raise ConfigError(f"{said}: no value to try")
    values = [_number(v) if isinstance(v, str) and re.fullmatch(NUMBER, v) else v for v in values]
    return list({json.dumps(value, default=str): value for value in values}.values())


def _number(text: str) -> float:
    """YAML takes 1e-3 for a word."""
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)


@dataclass(frozen=True)
class Sweep:
    """An experiment, what is tried for which of its methods, and how."""

    experiment: Experiment
    space: Mapping[str, Sequence[Dimension]]  # of every method that has something to be tried
    trials: int | None  # by Optuna; None: every combination
    seeds: tuple[int, ...]

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        tried: Sequence[str],
        trials: int | None = None,
        seeds: Sequence[int] = (),
    ) -> Sweep:
        """A sweep of checked values; by default with the experiment's seeds."""
        given = [dimension(text) for text in tried]
        if not given:
            raise ConfigError(
                "nothing to try: give --try KEY=VALUES, such as training.lr=1e-3,3e-3"
            )
        keys = [one.key for one in given]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            raise ConfigError(f"--try {twice}: twice; give all of its values at once")
        for one in given:
            if isinstance(one.values, Range) and trials is None:
                raise ConfigError(
                    f"--try {one.key}: a range has no grid; add --trials N, or list its values"
                )
        if trials is not None:
            _optuna()
        every = [one for one in given if not one.key.startswith("methods.")]
        own = _by_method(experiment, [one for one in given if one not in every])
        for key, value in ((one.key, value) for one in given for value in one.samples):
            read_experiment(experiment, {key: value, **_seeds(seeds)})
        space = {}
        for method in experiment.methods:
            named = [replace(one, own=one.key.startswith("training.")) for one in every]
            listed = {one.key: one for one in (*named, *own.get(method.title, ()))}
            if listed:
                space[method.title] = list(listed.values())
        return cls(experiment, space, trials, tuple(seeds) or tuple(experiment.seeds))

    @property
    def keys(self) -> Sequence[str]:
        """All that is tried of any method."""
        return list(dict.fromkeys(d.key for own in self.space.values() for d in own))

    def in_words(self) -> str:
        """What is tried, in a line."""
        numbers = ", ".join(map(str, self.seeds))
        lines = [
            f"{method} {_how_many(own, self.trials)} ({', '.join(d.key for d in own)})"
            for method, own in self.space.items()
        ]
        seeds = f"seed{'s' if len(self.seeds) > 1 else ''} {numbers}"
        return f"to be tried: {'; '.join(lines)}; {seeds}, validation images only"

    def to_check(self) -> list[Choice]:
        """Every value once, or both ends of a range, beside the first of the others."""
        found = []
        for method, own in self.space.items():
            first = {d.key: d.samples[0] for d in own}
            found += [_choice(method, own, first | {d.key: v}) for d in own for v in d.samples]
        return list({(one.folder, one.label): one for one in found}.values())

    def carry_out(self, attempt: Attempt) -> list[Trial]:
        """Every combination, or what Optuna proposes."""
        if self.trials is not None:
            return self._proposed(attempt, self.trials)
        return attempt([c for method, own in self.space.items() for c in _grid(method, own)])

    def _proposed(self, attempt: Attempt, trials: int) -> list[Trial]:
        """One trial of every method at a time; what was tried before is not trained again."""
        studies = {method: _study(method) for method in self.space}
        known: dict[tuple[str, str], Trial] = {}
        for number in range(1, trials + 1):
            asked = {m: s.ask(_distributions(self.space[m])) for m, s in studies.items()}
            choices = {
                method: _choice(method, own, _values(own, asked[method].params), f"trial{number}")
                for method, own in self.space.items()
            }
            new = [choice for choice in choices.values() if _settings(choice) not in known]
            for choice, trial in zip(new, attempt(new), strict=True):
                known[_settings(choice)] = trial
            for method, study in studies.items():
                _tell(study, asked[method], known[_settings(choices[method])].score)
        return list(known.values())


def _seeds(seeds: Sequence[int]) -> dict[str, Any]:
    return {"seeds": [*seeds]} if seeds else {}


def _by_method(experiment: Experiment, given: Sequence[Dimension]) -> dict[str, list[Dimension]]:
    """The settings of single methods, by method; a name may have dots in it."""
    titles = [method.title for method in experiment.methods]
    found: dict[str, list[Dimension]] = {}
    for one in given:
        fitting = [title for title in titles if one.key.startswith(f"methods.{title}.")]
        if not fitting:
            raise ConfigError(
                f"--try {one.key}: write methods.NAME.SETTING, with one of {', '.join(titles)}"
            )
        title = max(fitting, key=len)
        key = one.key.removeprefix(f"methods.{title}.")
        found.setdefault(title, []).append(replace(one, key=key, own=True))
    return found


def _how_many(own: Sequence[Dimension], trials: int | None) -> str:
    if trials is not None:
        return f"{trials} trials"
    number = len(list(product(*(d.samples for d in own))))
    return f"{number} combination{'s' if number > 1 else ''}"


def _grid(method: str, own: Sequence[Dimension]) -> list[Choice]:
    keys = [d.key for d in own]
    combinations = product(*(d.samples for d in own))
    return [_choice(method, own, dict(zip(keys, values, strict=True))) for values in combinations]


def _choice(
    method: str, own: Sequence[Dimension], values: Mapping[str, Any], within: str = ""
) -> Choice:
    alone = {d.key: values[d.key] for d in own if d.own}
    whole = {d.key: values[d.key] for d in own if not d.own}
    label = "-".join([method, *(_named(key, value) for key, value in alone.items())])
    folder = "-".join([*([within] if within else []), *_folder_names(whole)]) or "run"
    return Choice(method, alone, whole, {**values}, label, folder)


def _folder_names(whole: Mapping[str, Any]) -> list[str]:
    return [_named(key, value) for key, value in whole.items()]


def _named(key: str, value: Any) -> str:
    """A setting in the name of a folder: in full if that can be, else by a hash."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    text = text.replace("e+", "e")
    if len(text) > LONGEST or not re.fullmatch(r"[\w.-]+", text, re.ASCII):
        text = digest(text).hex()[:8]
    return re.sub(r"[^\w.-]", "_", key.rpartition(".")[2]) + text


def _settings(choice: Choice) -> tuple[str, str]:
    return choice.method, json.dumps([choice.own, choice.whole], default=str)


# --- Optuna -------------------------------------------------------------------------------------


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ConfigError(NO_OPTUNA) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _study(method: str) -> optuna.Study:
    """In memory: its history is asked for and told again from what the runs have left."""
    found = _optuna()
    sampler = found.samplers.TPESampler(seed=derive("sweep", method) % 2**32)
    study: optuna.Study = found.create_study(direction="maximize", sampler=sampler)
    return study


def _distributions(own: Sequence[Dimension]) -> dict[str, Any]:
    """Numbers of a range; of a list the places, which may hold anything."""
    of = _optuna().distributions
    found: dict[str, Any] = {}
    for d in own:
        if isinstance(d.values, Range):
            kind = of.IntDistribution if d.values.whole else of.FloatDistribution
            found[d.key] = kind(d.values.low, d.values.high, log=d.values.log)
        else:
            found[d.key] = of.CategoricalDistribution(range(len(d.values)))
    return found


def _values(own: Sequence[Dimension], asked: Mapping[str, Any]) -> dict[str, Any]:
    return {
        d.key: d.values.rounded(asked[d.key])
        if isinstance(d.values, Range)
        else d.values[asked[d.key]]
        for d in own
    }


def _tell(study: optuna.Study, asked: optuna.Trial, score: float | None) -> None:
    if score is None:
        study.tell(asked, state=_optuna().trial.TrialState.FAIL)
    else:
        study.tell(asked, score)


# --- what was chosen, on test images ------------------------------------------------------------


def sweep(search: Sweep, folder: Path, resume: bool, console: Console) -> list[Path]:
    """Try, choose, show, and run what was chosen on test images: the folders of these runs."""
    closed = TESTED if any(folder.glob(f"{CHOSEN}*/plan.yaml")) else ""
    found = search_for(search, folder, resume, console, closed)
    show_found(found, search.keys, folder / "figures" / "sweep.png", console)
    for old in folder.glob(f"{CHOSEN}*.yaml"):
        old.unlink()  # of a search among fewer values
    runs = []
    for name, choices in chosen_of(search, found).items():
        changes = {"name": f"{search.experiment.name}-{name}", **choices[0].whole}
        path = folder / f"{name}.yaml"
        seeds = ", ".join(map(str, search.seeds))
        head = f"Settings chosen on validation images by konsil sweep, seeds {seeds}."
        write_experiment(path, with_choices(search.experiment, choices, changes), head)
        console.print(f"chosen: {path}", highlight=False, markup=False, soft_wrap=True)
        as_found = with_choices(found.plan.experiment, choices, changes)
        runs.append(_tested(found, as_found, folder / name, console))
    return runs


def chosen_of(search: Sweep, found: Found) -> dict[str, list[Choice]]:
    """The chosen settings of every method by the run they need: one, if all fit into one plan.

    A method of which nothing was tried is there as it is.
    """
    groups: dict[str, list[Choice]] = {}
    for method in search.experiment.methods:
        won = found.chosen.get(method.title)
        choice = replace(won.choice, label="") if won else Choice(method.title)
        name = "-".join([CHOSEN, *_folder_names(choice.whole)])
        groups.setdefault(name, []).append(choice)
    return groups if len(groups) > 1 else {CHOSEN: next(iter(groups.values()))}


def _tested(found: Found, experiment: Experiment, folder: Path, console: Console) -> Path:
    from konsil.federation.plan import Plan

    plan = Plan.of(experiment, found.federation)
    goes_on = (folder / "plan.yaml").exists()
    api.train(plan, found.federation, folder, goes_on, console)
    return folder
