"""`konsil personalise`: what sites gain at home, and lose elsewhere, by training models further.

Every site takes what a finished run has left it and trains it on its own images; after so many
local epochs its model is asked about every site's test images (FedSoup's Fig. 2b and Table 1). Of
a folder of folds (`konsil unseen`) each fold is a run, whose models are also asked about the site
that it leaves out. Nobody chooses anything with what is found.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.synchronize import Event
from pathlib import Path
from threading import Thread
from typing import Any

from konsil.errors import RunError
from konsil.evaluation.scores import (
    EPOCHS,
    LEFT_OUT,
    join_scores,
    patients_in,
    read_scores,
    write_scores,
)
from konsil.federation.compute import settings_kept
from konsil.federation.personalising import Personalising, TestImages
from konsil.federation.plan import Job, Plan
from konsil.federation.runner import lock, read_plan
from konsil.files import remove_parts
from konsil.unseen import OF_FOLD, fold_folder

FILE = "personalised.parquet"
PARTS = "personalised"  # a job's folder of them, a file a site
PUBLISHED = (1, 7, 15)  # epochs of Fig. 2b
Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Work:
    """One site's model of one job of a run, to be trained further and asked."""

    run: Personalising
    left_out: str | None  # the site that the run has left out
    job: Job
    site: str

    @property
    def path(self) -> Path:
        """Where its scores are kept."""
        return self.run.folder / self.job.name / PARTS / f"{self.site}.parquet"

    def missing(self, epochs: Collection[int]) -> list[int]:
        """After which epochs it must be asked: none if all that is wanted is there.

        Else those that are there come along: one pass makes them again with the same bits.
        """
        found = self.found()
        return [] if found >= set(epochs) else sorted({*epochs, *found})

    def found(self) -> set[int]:
        """After which epochs it has been asked, in this very fold."""
        if not self.path.exists():
            return set()
        there = read_scores(self.path).to_pydict()
        of_this_fold = set(there[LEFT_OUT]) == {self.left_out}
        return set(there[EPOCHS]) if of_this_fold else set()

    def do(self, epochs: Sequence[int]) -> None:
        """Train, ask, and keep the scores: whole or not at all."""
        rows = self.run.rows(self.job, self.site, epochs)
        write_scores(self.path, (row | {LEFT_OUT: self.left_out} for row in rows))


def personalise(
    folder: Path, epochs: Sequence[int], methods: Sequence[str], report: Report
) -> list[str]:
    """Do all that is not done yet, and join it in `folder`; which methods there are now.

    `folder`: a run's, or that of folds; `methods`: labels, by default all that are done.
    """
    wanted = sorted({0, *epochs})
    taken = lock(folder)
    try:
        remove_parts(folder)
        done = [one for run, left_out in _runs(folder) for one in _works(run, left_out, methods)]
        work = [one for one in done if not methods or one.job.method in methods]
        _do([(one, missing) for one in work if (missing := one.missing(wanted))], report)
        join_scores(folder / FILE, [one.path for one in done if one.found()])
    finally:
        taken.close()
    return list(dict.fromkeys(one.job.method for one in work))


# --- what there is to do --------------------------------------------------------------------------


def folds_in(folder: Path, sites: Sequence[str]) -> dict[str, Path]:
    """The runs that leave a site out, by that site; none in an ordinary run's folder."""
    places = {site: fold_folder(folder, site) for site in sites}
    return {site: place for site, place in places.items() if place.is_dir()}


def _runs(folder: Path) -> Iterator[tuple[Personalising, str | None]]:
    """The run, or every fold with the site that it leaves out."""
    whole = Plan.from_json(read_plan(folder))
    folds = folds_in(folder, whole.sites)
    if not folds:
        yield _run(whole, folder), None
    for site, place in folds.items():
        if not (place / OF_FOLD).exists():
            raise RunError(f"{place}: not finished; konsil unseen ... --resume goes on with it")
        run = _run(Plan.from_json(read_plan(place)), place)
        foreign = TestImages(whole.data_folder, _patients_of(place / OF_FOLD))
        yield Personalising(run.plan, place, {**run.tests, site: foreign}), site


def _run(plan: Plan, folder: Path) -> Personalising:
    if not plan.data_folder.is_dir():
        raise RunError(
            f"{folder}: its images are not here; personalising needs training and test images of "
            "all sites in one place"
        )
    known = patients_in(folder / "splits.csv")
    tests = {site: TestImages(plan.data_folder, known.get(site)) for site in plan.sites}
    return Personalising(plan, folder, tests)


def _patients_of(scores: Path) -> list[int]:
    """The patients of the images of a left-out site, as `konsil unseen` has numbered them."""
    rows = read_scores(scores).select(["image", "patient"]).to_pylist()
    numbers = {row["image"]: row["patient"] for row in rows}
    return [numbers[image] for image in sorted(numbers)]


def _works(run: Personalising, left_out: str | None, methods: Sequence[str]) -> list[Work]:
    """All that are done; RunError if one of these methods has no job that is."""
    plan = run.plan
    known = list(dict.fromkeys(job.method for job in plan.jobs))
    if unknown := [label for label in methods if label not in known]:
        raise RunError(f"--method {unknown[0]}: the run has {', '.join(known)}")
    done = [job for job in plan.jobs if (run.folder / job.name / "result.json").exists()]
    there = {job.method for job in done}
    if not there or not there >= set(methods):
        missing = next((f" of {label}" for label in methods if label not in there), "")
        raise RunError(
            f"{run.folder}: no job{missing} is done; konsil run ... --resume goes on with it"
        )
    return [Work(run, left_out, job, site) for job in done for site in plan.sites]


# --- who does it ----------------------------------------------------------------------------------


def _do(work: Sequence[tuple[Work, list[int]]], report: Report) -> None:
    """In this process, or in as many as the run's engine has."""
    if not work:
        return
    engine = work[0][0].run.plan.experiment.engine
    workers = 1 if engine.name == "inprocess" else engine.workers or os.cpu_count() or 1
    done = _here if min(workers, len(work)) == 1 else _by_processes
    report(PARTS, 0, len(work))
    for number, _ in enumerate(done(work, min(workers, len(work))), 1):
        report(PARTS, number, len(work))


def _here(work: Sequence[tuple[Work, list[int]]], workers: int) -> Iterator[None]:
    with settings_kept():
        for one, epochs in work:
            one.run.prepare_process()
            one.do(epochs)
            yield


def _by_processes(work: Sequence[tuple[Work, list[int]]], workers: int) -> Iterator[None]:
    """Spawned, not forked: torch's threads do not survive a fork.

    However it ends, no process is left behind, and none is waited for that nobody needs.
    """
    spawn = multiprocessing.get_context("spawn")
    stop = spawn.Event()
    pool = ProcessPoolExecutor(workers, spawn, _begin, (stop,))
    try:
        futures = _submitted(pool, [(_told(one), epochs) for one, epochs in work])
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool:
        raise RunError(
            "a process was ended from outside, or memory is short; what is done is kept: the same "
            "command goes on"
        ) from None
    except BaseException:
        stop.set()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _submitted(
    pool: ProcessPoolExecutor, told: Sequence[tuple[dict[str, Any], list[int]]]
) -> list[Future[None]]:
    """Ctrl-C is this process's to handle: those that are started meanwhile never see it."""
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return [pool.submit(_done_there, *one) for one in told]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, usual)


def _told(work: Work) -> dict[str, Any]:
    """What another process needs to know; the plan as it travels to sites, with its plugins."""
    return {
        "plan": json.dumps(work.run.plan.to_json()),
        "folder": work.run.folder,
        "tests": work.run.tests,
        "left_out": work.left_out,
        "job": work.job,
        "site": work.site,
    }


def _begin(stop: Event) -> None:
    """In a process: end when whoever started it says so, or is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    for ends in (stop.wait, parent.join):
        Thread(target=_end_after, args=[ends], daemon=True).start()


def _end_after(ends: Callable[[], object]) -> None:
    ends()
    os._exit(1)


def _done_there(told: dict[str, Any], epochs: list[int]) -> None:
    """In a process: one site's model of one job."""
    run = Personalising(_plan_of(told["plan"]), told["folder"], told["tests"])
    run.prepare_process()
    Work(run, told["left_out"], told["job"], told["site"]).do(epochs)


@lru_cache(1)
def _plan_of(text: str) -> Plan:
    return Plan.from_json(json.loads(text))
