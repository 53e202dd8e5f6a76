"""What it costs a round that somebody looks: `konsil watch` asked every second, and trackers."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.measure import Figure, Goal, Outcome, Ratio, Side, interleave, warm_up
from benchmarks.rounds import RoundByRound
from benchmarks.setup import MORE_ROUNDS_THAN_MEASURED, Setup
from konsil.federation.plan import Plan
from konsil.files import write_text
from konsil.observers.eventlog import EventLog
from konsil.observers.following import EVENTS
from konsil.tracking.tracker import NAMES
from konsil.tracking.tracking import tracked

UNSEEN = Goal("at most", 1.01)
ROUNDS = 3  # a turn: what a round has logged is read in the next
# A browser in the place of one: asks what is new, knows what it has been sent, every second.
BROWSER = """
import sys, time
import httpx
marks = {}
with httpx.Client(base_url=sys.argv[1], timeout=60, trust_env=False) as line:
    while True:
        known = ",".join(f"{name}:{mark}" for name, mark in marks.items())
        parts = line.get("/api/run", params={"known": known}).raise_for_status().json()["parts"]
        marks.update((name, part["mark"]) for name, part in parts.items())
        time.sleep(1)
"""
PATIENCE = 60.0


class Logged(RoundByRound):
    """A training that leaves what others read of a run: its plan and its events."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        super().__init__(plan, folder)
        self._job = plan.jobs[0].name
        write_text(self.run_folder / "plan.yaml", yaml.safe_dump(plan.to_json()))
        self._log = EventLog(self.run_folder / EVENTS)
        self._log({"event": "run_started", "plan": plan.hash})
        facts = {"rounds": MORE_ROUNDS_THAN_MEASURED, "done": 0}
        self._log({"event": "job_started", "job": self._job, **facts})

    def turn(self) -> float:
        """Seconds of several rounds."""
        return sum(self() for _ in range(ROUNDS))

    def _watch(self, event: str, **facts: Any) -> None:
        self._log({"event": event, "job": self._job, **facts})
        super()._watch(event, **facts)


def watching(setup: Setup) -> Outcome:
    """A FedAvg round that is watched, and one that is tracked / one that nobody looks at."""
    plan = setup.plan("fedavg", threads=setup.scale.threads)
    missing = [name for name in NAMES if find_spec(name) is None]
    with ExitStack() as stack:
        runs = [stack.enter_context(Logged(plan, setup.folder)) for _ in range(2 if missing else 3)]
        browser = stack.enter_context(_watched(runs[1].run_folder))

        def watched() -> float:
            browser.resume()
            try:
                return runs[1].turn()
            finally:
                browser.suspend()

        sides: dict[str, Side] = {"alone": runs[0].turn, "watched": watched}
        if not missing:
            stack.enter_context(tracked(runs[2].run_folder, NAMES, setup.progress))
            sides["tracked"] = runs[2].turn
        warm_up(sides, setup.progress)
        times = interleave(sides, setup.scale.repeats, setup.progress)
    return _outcome(setup, times, missing)


def _outcome(setup: Setup, times: dict[str, list[float]], missing: list[str]) -> Outcome:
    words = {
        "watched": "rounds with a `konsil watch` that is asked every second / without",
        "tracked": "rounds with TensorBoard and MLflow (files) / without",
    }
    found = {side: Ratio.of(times[side], times["alone"]) for side in words if side in times}
    figures = [Figure(words[side], ratio, UNSEEN) for side, ratio in found.items()]
    scale = setup.scale
    notes = [
        f"FedAvg in process, {scale.threads} threads, {len(scale.images)} sites, {scale.size} "
        f"pixels, {ROUNDS} rounds a turn; watcher and its client are processes of their own"
    ]
    notes += [f"{name} is not installed (konsil[track]): not measured" for name in missing]
    return Outcome(figures, notes)


@contextmanager
def _watched(run: Path) -> Iterator[psutil.Process]:
    """A watcher and who asks it, who is asleep until it is resumed."""
    with _started("-m", "konsil", "watch", str(run), "--port", "0") as watcher:
        assert watcher.stdout is not None
        line = next(line for line in watcher.stdout if "watching" in line)
        found = re.search(r" on (\S+) \(", line)
        assert found is not None, line
        with _started("-c", BROWSER, found[1]) as asking:
            browser = psutil.Process(asking.pid)
            browser.suspend()
            yield browser
            browser.resume()
            assert browser.is_running(), "the watcher was not asked to the end"


@contextmanager
def _started(*words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-u", *words], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE)
