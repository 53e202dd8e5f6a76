"""`konsil unseen`: what a consortium's models are worth at a hospital that took no part.

Every site is left out in turn. A fold is an ordinary run without that site, with the same bits; the
models that it leaves are then asked about the site's test images, which nobody has chosen anything
with.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console

from konsil import api
from konsil.config import Experiment, read_experiment
from konsil.errors import ConfigError, RunError
from konsil.evaluation.scores import FILE, Scored, join_scores, write_scores
from konsil.files import write_text

if TYPE_CHECKING:
    from konsil.data import Federation
    from konsil.federation.plan import Plan

FEWEST = 2  # sites that are left to train
OF_FOLD = "unseen.parquet"  # the scores of one fold's models at the site that it leaves out


@dataclass(frozen=True)
class Fold:
    """The run that leaves one site out."""

    site: str
    experiment: Experiment
    folder: Path

    @property
    def scores(self) -> Path:
        """What its models score at that site."""
        return self.folder / OF_FOLD


def folds(
    experiment: Experiment, sites: Sequence[str], left_out: Sequence[str], folder: Path
) -> list[Fold]:
    """One for each site that is left out, by default for all."""
    unknown = [site for site in left_out if site not in sites]
    if unknown:
        raise ConfigError(f"--site {unknown[0]}: no site of the federation; {', '.join(sites)}")
    if len(sites) <= FEWEST:
        raise ConfigError(
            f"a federation of {len(sites)} sites: with one left out {FEWEST} or more must train"
        )
    return [
        Fold(
            site,
            read_experiment(
                experiment, {"federation.sites": [other for other in sites if other != site]}
            ),
            fold_folder(folder, site),
        )
        for site in left_out or sites
    ]


def fold_folder(folder: Path, site: str) -> Path:
    """Where the run lies that leaves this site out."""
    return folder / f"without-{site}"


def unseen(
    experiment: Experiment,
    folder: Path,
    resume: bool,
    console: Console,
    left_out: Sequence[str] = (),
) -> None:
    """Train every fold and ask its models; what is done is not repeated with `resume`."""
    from konsil.federation.plan import Plan

    if not resume and folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder}: not empty; add --resume to go on, or choose another --out")
    federation = api.open_federation(experiment.federation, experiment.task, quiet=True)
    whole = Plan.of(experiment, federation)
    wanted = folds(experiment, whole.sites, left_out, folder)
    _claim(whole, folder)
    for number, fold in enumerate(wanted, 1):
        console.print(f"fold {number} of {len(wanted)}: without {fold.site}", highlight=False)
        goes_on = (fold.folder / "plan.yaml").exists()
        printed = console if number == 1 else Console(quiet=True)
        plan, own = api.prepare(fold.experiment, goes_on, printed, fold.folder)
        _check_labels(plan, whole, fold.site)
        api.train(plan, own, fold.folder, goes_on, console)
        write_scores(fold.scores, _rows(fold, plan, whole, federation))
        done = [one.scores for one in folds(experiment, whole.sites, (), folder)]
        join_scores(folder / FILE, [path for path in done if path.exists()])


def _claim(whole: Plan, folder: Path) -> None:
    """The folder is that of this experiment; of another one it is left alone."""
    path = folder / "plan.yaml"
    if not path.exists():
        write_text(path, yaml.safe_dump(json.loads(json.dumps(whole.to_json())), sort_keys=False))
        return
    from konsil.federation.runner import differences, read_plan

    changed = differences(read_plan(folder), json.loads(json.dumps(whole.to_json())))
    if changed:
        raise RunError(
            f"{folder}: holds folds of another experiment ({', '.join(changed)} differ); choose "
            "another --out"
        )


def _check_labels(plan: Plan, whole: Plan, site: str) -> None:
    if plan.labels != whole.labels:
        raise ConfigError(
            f"without {site} the labels are {', '.join(plan.labels)} instead of "
            f"{', '.join(whole.labels)}: name them in the federation file or under task.classes"
        )


def _rows(fold: Fold, plan: Plan, whole: Plan, federation: Federation) -> Iterator[dict[str, Any]]:
    """What every model of a fold scores on the test images of the site that it leaves out."""
    from konsil.data import test_images
    from konsil.evaluation.foreign import Roles, foreign_columns
    from konsil.federation.compute import prepare_process, settings_kept
    from konsil.report.analysis import model_of

    images = test_images(whole.data_folder, fold.site)
    patients = federation.test_patients(fold.site)
    with settings_kept():
        prepare_process(plan.experiment.compute)
        for job in plan.jobs:
            method = plan.method(job)
            roles = Roles(*(next(iter(r), "") for r in (method.shared_roles, method.private_roles)))
            device, task = plan.experiment.compute.device, method.context.task
            model = model_of(fold.folder, job, device)
            found = foreign_columns(model, images, task, fold.site, roles)
            for role, columns in found.items():
                told = {fold.site: {name: list(values) for name, values in columns.items()}}
                scored = Scored(job.method, job.seed, role, model.facts.sites, told)
                yield from scored.rows(task, {fold.site: patients})
