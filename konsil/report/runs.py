"""Several run folders as one: what a page is about, whether its methods were one run or twenty."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from konsil.config import MethodConfig
from konsil.errors import RunError
from konsil.evaluation.results import Row, read_results
from konsil.evaluation.scores import FILE
from konsil.federation.plan import Job, Plan
from konsil.federation.runner import RESULT_FILES, read_plan
from konsil.tasks import Task, make_task

FOLDS = "without-*/plan.yaml"  # below the folder that `konsil unseen` leaves


@dataclass(frozen=True)
class Run:
    """A run's folder; files that it lacks are empty."""

    folder: Path
    facts: dict[str, Any]  # plan.yaml
    plan: Plan

    @classmethod
    def open(cls, folder: Path) -> Run:
        """What plan.yaml says; everything else is read when it is asked for."""
        facts = read_plan(folder)
        return cls(folder, facts, Plan.from_json(facts))

    @cached_property
    def rows(self) -> list[Row]:
        """Of the best checkpoints."""
        path = self.folder / RESULT_FILES["best"]
        return read_results(path) if path.exists() else []

    @cached_property
    def results(self) -> dict[Job, dict[str, Any]]:
        """Of the jobs that are done: rows, routing, validation history."""
        paths = {job: self.folder / job.name / "result.json" for job in self.plan.jobs}
        return {
            job: json.loads(path.read_text(encoding="utf-8"))
            for job, path in paths.items()
            if path.exists()
        }

    @property
    def scores(self) -> Path | None:
        """Every test image's scores; None: sites told means alone, or the file is not here."""
        path = self.folder / FILE
        return path if path.exists() else None

    @property
    def is_unseen(self) -> bool:
        """Whether `konsil unseen` left it: a fold for every hospital that took no part."""
        return any(self.folder.glob(FOLDS))

    @property
    def environment(self) -> dict[str, Any]:
        """On what it was computed; of folds the first one's."""
        folds = sorted(self.folder.glob(FOLDS)) if "environment" not in self.facts else []
        facts = read_plan(folds[0].parent) if folds else self.facts
        return dict(facts.get("environment", {}))

    def seconds(self) -> dict[Job, float]:
        """Time on the clock of every job that is done, all its parts together."""
        path, by_name = self.folder / "events.jsonl", dict[str, float]()
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for line in lines:
            if '"job_done"' in line:
                event = json.loads(line)
                by_name[event["job"]] = by_name.get(event["job"], 0.0) + event["seconds"]
        return {job: by_name[job.name] for job in self.plan.jobs if job.name in by_name}


@dataclass(frozen=True)
class Runs:
    """Runs of one federation, and beside them what was asked of hospitals that took no part."""

    runs: Sequence[Run]
    unseen: Sequence[Run] = ()

    @property
    def every(self) -> list[Run]:
        """All folders, ordinary runs first."""
        return [*self.runs, *self.unseen]

    @property
    def plan(self) -> Plan:
        """The first one's: sites, labels and task are the same in all."""
        return self.every[0].plan

    @cached_property
    def task(self) -> Task:
        """What all have learned."""
        return make_task(self.plan.experiment.task, list(self.plan.labels))

    @cached_property
    def rows(self) -> list[Row]:
        """All results; RunError where two runs have the same job."""
        seen: dict[tuple[str, int], Path] = {}
        for run in self.runs:
            for method, seed in dict.fromkeys((row.method, row.seed) for row in run.rows):
                if (method, seed) in seen:
                    raise RunError(
                        f"{run.folder}: {method} with seed {seed} is in {seen[method, seed]}, too; "
                        "runs on one page need methods of other labels, or other seeds"
                    )
                seen[method, seed] = run.folder
        return [row for run in self.runs for row in run.rows]

    @property
    def results(self) -> list[dict[str, Any]]:
        """Of all jobs that are done."""
        return [result for run in self.runs for result in run.results.values()]

    @property
    def told(self) -> list[Path]:
        """Folders that have single images' scores."""
        return [run.folder for run in self.runs if run.scores]

    def methods(self) -> Iterator[tuple[MethodConfig, Run]]:
        """Every method once, by its label, with the first run that has it."""
        seen = set[str]()
        for run in self.runs:
            for method in run.plan.experiment.methods:
                if method.title not in seen:
                    seen.add(method.title)
                    yield method, run


def open_runs(folders: Sequence[Path], unseen: Sequence[Path] = ()) -> Runs:
    """Run folders, among which those of `konsil unseen` are recognised."""
    opened = [Run.open(folder) for folder in dict.fromkeys(folders)]
    apart = [Run.open(folder) for folder in unseen]
    for run in apart:
        if not run.is_unseen:
            raise RunError(f"--unseen {run.folder}: not a folder that `konsil unseen` has left")
    ordinary = [run for run in opened if not run.is_unseen]
    folds = {run.folder: run for run in [*opened, *apart] if run.is_unseen}
    found = Runs(ordinary, list(folds.values()))
    for run in found.every[1:]:
        _check_fits(run, found.every[0])
    return found


def _check_fits(run: Run, first: Run) -> None:
    pairs = {
        "hospitals": (run.plan.sites, first.plan.sites),
        "labels": (run.plan.labels, first.plan.labels),
        "task": ([run.plan.experiment.task.name], [first.plan.experiment.task.name]),
    }
    for what, (own, other) in pairs.items():
        if set(own) != set(other):
            raise RunError(
                f"{run.folder}: other {what} ({', '.join(own)}) than {first.folder} "
                f"({', '.join(other)}); a page is about runs of one federation"
            )
