"""kill -9 of a real `konsil run`, again and again, and what is left in the end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from federations import copy_sites

from konsil import testing as toy
from konsil.data import open_federation
from konsil.federation.runner import Run

COMMAND = [sys.executable, "-c", "from konsil.cli import main; main()", "run"]
FIVE = ["centralized", "local", "fedavg", "fedsm", {"name": "fedsoup", "start": 0.4}]
ROUNDS = 2
PATIENCE = 600  # seconds; only a hung run needs them
Trigger = Callable[[Path], bool]


@pytest.fixture(scope="module")
def trio(shades, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trio")
    sites = {"north": ("north", 4), "south": ("south", 6), "west": ("south", 5)}
    return copy_sites(shades, folder, sites)


def experiment(rounds: int) -> dict[str, Any]:
    """Everything but federation and engine."""
    return {
        "task": {"name": "classification"},
        "network": {"name": "small"},
        "training": {"batch_size": 3, "schedule": "cosine", "augment": "strong"},
        "methods": FIVE,
        "rounds": rounds,
    }


@pytest.fixture(scope="module")
def undisturbed(trio, tmp_path_factory):
    """rounds -> what such a run leaves when nothing happens, on whatever engine."""

    @lru_cache
    def of(rounds: int) -> dict[str, bytes]:
        folder = tmp_path_factory.mktemp("calm")
        plan = toy.plan_of(trio, **experiment(rounds))
        federation = open_federation(plan.experiment.federation, plan.experiment.task)
        run = Run(plan, folder)
        run.prepare(False, federation.write_splits)  # scores.parquet has its patients
        run.go()
        return toy.what_remains(folder)

    return of


class Victim:
    """A run that is killed and resumed until it is done."""

    def __init__(self, federation: Path, folder: Path, rounds: int, engine: str) -> None:
        self.folder = folder / "run"
        self.file = folder / "experiment.yaml"
        data = {"folder": str(federation), "image_size": 32}
        engine_block = {"name": engine, "workers": 2}
        raw = {"federation": data, "engine": engine_block, **experiment(rounds)}
        self.file.write_text(yaml.safe_dump(raw))
        self.kills = 0

    def start(self) -> subprocess.Popen:
        command = [*COMMAND, str(self.file), "--out", str(self.folder), "--resume"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, start_new_session=True, **quiet)

    def kill_when(self, trigger: Trigger, whole_group: bool = True) -> bool:
        """Start or resume, and kill as soon as the trigger fires; False if it is done before."""
        process = self.start()
        while process.poll() is None and not trigger(self.folder):
            time.sleep(0.003)
        if process.poll() is not None:
            assert process.returncode == 0, process.stderr.read().decode()
            return False
        (os.killpg if whole_group else os.kill)(process.pid, signal.SIGKILL)
        process.wait()
        self.kills += 1
        return True

    def finish(self) -> dict[str, bytes]:
        process = self.start()
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, said.decode()
        return toy.what_remains(self.folder)

    def events(self) -> Iterator[dict]:
        for line in (self.folder / "events.jsonl").read_text().splitlines():
            yield json.loads(line)


def appears(name: str) -> Trigger:
    """A file of that name is there."""
    return lambda folder: (folder / name).exists()


def half_written() -> Trigger:
    """A file is being written at this moment; what earlier kills left does not count."""
    old: set[Path] | None = None

    def trigger(folder: Path) -> bool:
        nonlocal old
        now = set(folder.rglob(".*.part")) if folder.exists() else set()
        old = now if old is None else old
        return bool(now - old)

    return trigger


def said(*words: str) -> Trigger:
    """The last event holds these words."""

    def trigger(folder: Path) -> bool:
        try:
            last = (folder / "events.jsonl").read_text().rstrip().rpartition("\n")[2]
        except FileNotFoundError:
            return False
        return all(word in last for word in words)

    return trigger


def after_begin(delay: float) -> Trigger:
    """So many seconds after the run has begun to work: its first event is written."""
    at_start: int | None = None
    begun: float | None = None

    def trigger(folder: Path) -> bool:
        nonlocal at_start, begun
        path = folder / "events.jsonl"
        size = path.stat().st_size if path.exists() else 0
        at_start = size if at_start is None else at_start
        if begun is None and size != at_start:
            begun = time.monotonic()
        return begun is not None and time.monotonic() - begun >= delay

    return trigger


def same_files(got: dict[str, bytes], expected: dict[str, bytes]) -> None:
    assert got.keys() == expected.keys()
    assert [name for name in got if got[name] != expected[name]] == []


def test_killed_in_one_process(trio, undisturbed, tmp_path):
    """Between a site's state and the server's record, after the record, in the evaluation."""
    victim = Victim(trio, tmp_path, rounds=ROUNDS, engine="inprocess")
    assert victim.kill_when(appears("local/seed0/sites/south/state.safetensors"))
    assert victim.kill_when(appears("fedavg/seed0/server/record.safetensors"))
    # what kills in the middle of a write leave, put there for certain
    (victim.folder / "fedavg/seed0/server/.record.safetensors.1.part").write_bytes(b"")
    (victim.folder / "fedavg/seed0/sites/north/.state.safetensors.1.part").write_bytes(b"\0\1")
    with open(victim.folder / "events.jsonl", "a") as log:
        log.write('{"time": "2026-')
    assert victim.kill_when(said("examining", "fedsm"))
    same_files(victim.finish(), undisturbed(ROUNDS))
    assert [e["event"] for e in victim.events()].count("run_started") == victim.kills + 1


def test_killed_with_worker_processes(trio, undisturbed, tmp_path):
    """First the coordinator alone, so that its workers outlive it; then all of them."""
    victim = Victim(trio, tmp_path, rounds=ROUNDS, engine="processes")
    assert victim.kill_when(appears("fedsm/seed0/sites/north/state.safetensors"), whole_group=False)
    assert victim.kill_when(said("site_done", "fedsoup"))
    same_files(victim.finish(), undisturbed(ROUNDS))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["inprocess", "processes"])
def test_killed_a_dozen_times_at_random(trio, undisturbed, tmp_path, engine):
    chance = random.Random(engine)
    victim = Victim(trio, tmp_path, rounds=4 * ROUNDS, engine=engine)
    while victim.kills < 12:
        trigger = half_written() if chance.random() < 0.3 else after_begin(chance.uniform(0, 1.0))
        if not victim.kill_when(trigger, whole_group=chance.random() < 0.7):
            break
    assert victim.kills >= 10
    same_files(victim.finish(), undisturbed(4 * ROUNDS))
