"""The same experiment on several draws of the splits: which patients train, and which are tested.

Every draw is an ordinary run below one folder, with the bits of an ordinary run of that split seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.console import Console

from konsil import api
from konsil.config import PLACES, Experiment, read_experiment
from konsil.errors import ConfigError, RunError

if TYPE_CHECKING:
    from konsil.data import Federation
    from konsil.federation.plan import Plan

KEY = "federation.split_seed"
FOLDER = "split"  # and the seed


@dataclass(frozen=True)
class Draw:
    """An experiment with one of the draws, ready to be trained in its folder."""

    plan: Plan
    federation: Federation
    folder: Path


def prepare_draws(
    experiment: Experiment, seeds: Sequence[int], folder: Path, resume: bool, console: Console
) -> list[Draw]:
    """Check everything of every draw and print the plan of the first."""
    from konsil.federation.plan import Plan

    if (folder / "plan.yaml").exists():
        raise RunError(f"{folder}: holds a run of one draw of the splits; choose another --out")
    if not resume and folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder}: not empty; add --resume to go on, or choose another --out")
    first, *others = dict.fromkeys(seeds)
    begun = next((path.parent for path in sorted(folder.glob("*/plan.yaml"))), folder)
    plan, federation = api.prepare(_with_seed(experiment, first), resume, console, begun)
    draws = [Draw(plan, federation, folder / f"{FOLDER}{first}")]
    known = {plan.fingerprint: first}
    for seed in others:  # computed as the first is: what it found of performance holds for all
        own = _with_seed(plan.experiment, seed)
        federation = api.open_federation(own.federation, own.task, quiet=True)
        draws.append(Draw(Plan.of(own, federation), federation, folder / f"{FOLDER}{seed}"))
        if (same := known.setdefault(federation.fingerprint, seed)) != seed:
            raise ConfigError(
                f"--split-seed {seed}: the same splits as with {same}; a list or a file gives them"
            )
    return draws


def _with_seed(experiment: Experiment, seed: int) -> Experiment:
    return read_experiment(experiment, {KEY: seed})


def train_draws(draws: Sequence[Draw], console: Console, track: Sequence[str] = ()) -> None:
    """Train what is not done yet, draw by draw; `track`: the names of trackers."""
    for number, draw in enumerate(draws, 1):
        console.print(f"draw {number} of {len(draws)}: {draw.folder}", highlight=False)
        goes_on = (draw.folder / "plan.yaml").exists()
        api.train(draw.plan, draw.federation, draw.folder, goes_on, console, track=track)


@dataclass(frozen=True)
class Draws:
    """Run folders by the draw of the splits that they are of."""

    by_seed: Mapping[int, Sequence[Path]]
    overlap: float  # test images for one that trains, the mean over draws

    @property
    def folders(self) -> list[Path]:
        """All runs, draw by draw."""
        return [folder for folders in self.by_seed.values() for folder in folders]


def draws_of(folders: Sequence[Path]) -> Draws:
    """The runs in these folders, or in the draws below them; RunError unless they go together."""
    from konsil.federation.runner import read_plan

    runs = [run for folder in folders for run in _runs_in(folder)]
    plans = {run: read_plan(run) for run in runs}
    by_seed: dict[int, list[Path]] = {}
    for run, plan in plans.items():
        by_seed.setdefault(plan["experiment"]["federation"]["split_seed"], []).append(run)
    first = plans[runs[0]]
    if len(by_seed) > 1 and any(_images(plan) != _images(first) for plan in plans.values()):
        raise RunError(
            f"{', '.join(map(str, runs))}: not the same federation drawn anew; compare runs that "
            f"differ in {KEY} alone, or in methods and seeds of one draw"
        )
    return Draws(by_seed, fmean(_overlap(plan["counts"]) for plan in plans.values()))


def _runs_in(folder: Path) -> list[Path]:
    """A run, or the draws of one; what is neither is a run that cannot be read."""
    if (folder / "plan.yaml").exists():
        return [folder]
    below = [path.parent for path in folder.glob(f"{FOLDER}*/plan.yaml")]
    return sorted(below, key=lambda run: (len(run.name), run.name)) or [folder]


def _images(plan: Mapping[str, Any]) -> tuple[Any, ...]:
    """What draws of one federation have in common: where it comes from, sites, labels, counts."""
    said = plan["experiment"]["federation"]
    rule = {k: v for k, v in said.items() if k not in ("split_seed", *PLACES)}
    counts = {site: sum(splits.values()) for site, splits in plan["counts"].items()}
    return rule, plan["sites"], plan["labels"], counts


def _overlap(counts: Mapping[str, Mapping[str, int]]) -> float:
    test, train = (sum(of[split] for of in counts.values()) for split in ("test", "train"))
    return test / train
