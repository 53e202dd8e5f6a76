"""`konsil serve` with eight clients against the bare object, and its memory meanwhile."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import httpx
import psutil

from benchmarks.asking import trained
from benchmarks.measure import Figure, Goal, Outcome, Ratio, Side, interleave, warm_up
from benchmarks.setup import Setup
from konsil.config import Experiment
from konsil.federation.compute import settings_kept
from konsil.federation.runner import read_plan
from konsil.report.examples import write_examples
from konsil.supermodel import SuperModel
from konsil.supermodel.predict import mask_name, write_mask

CLIENTS = 8
QUESTIONS = 120  # a turn
MANY = 1000  # questions after which memory should be what it was
PARTS = 5  # looks at memory meanwhile
PATIENCE = 120.0


def serving(setup: Setup) -> Outcome:
    """Masks a second, served to eight clients / by the bare object; memory meanwhile."""
    outcome = Outcome()
    folder = trained(setup, setup.scale.small_size)[0]
    files = _files(setup, folder)
    count = QUESTIONS if setup.scale.repeats > 1 else len(files)
    with _server(folder) as (server, url), settings_kept():
        sides: dict[str, Side] = {
            "bare": lambda: _bare(folder, files, count, setup),
            "served": lambda: _asked(url, files, count),
        }
        warm_up(sides, setup.progress)
        times = interleave(sides, setup.scale.repeats, setup.progress)
        what = f"masks a second: served to {CLIENTS} clients / the bare object in one process"
        ratio = Ratio.of(times["bare"], times["served"])
        outcome.figures.append(Figure(what, ratio, Goal("at least", 0.85)))
        before, after = _memory(server), []
        for part in range(PARTS):
            setup.progress(f"memory, {part + 1} of {PARTS}")
            _asked(url, files, MANY // PARTS if count == QUESTIONS else count)
            after.append(_memory(server))
        what = f"memory of the server and its workers during {MANY} questions / before them"
        ratio = Ratio.of([float(one) for one in after], [float(before)] * PARTS)
        outcome.figures.append(Figure(what, ratio, Goal("at most", 1.05)))
        workers = len(server.children())
    outcome.notes.append(
        f"pictures of {len(files)} images, a mask each; {workers} workers of one thread; the bare "
        "object answers one after the other with a thread a core"
    )
    return outcome


def _files(setup: Setup, folder: Path) -> list[Path]:
    """Test images of all sites as files."""
    plan = read_plan(folder.parents[2])
    write_examples(Experiment.model_validate(plan["experiment"]), setup.folder / "examples")
    return sorted((setup.folder / "examples").iterdir())


def _bare(folder: Path, files: list[Path], count: int, setup: Setup) -> float:
    """Seconds for so many masks, without a server."""
    import torch

    torch.set_num_threads(setup.scale.threads)
    model = SuperModel.load(folder)
    model.predict(files[0])  # its network is built once
    began = perf_counter()
    for number in range(count):
        file = files[number % len(files)]
        written = setup.folder / "bare" / mask_name(file)
        write_mask(model.predict(file)[0], written, file)
        written.read_bytes()
    return perf_counter() - began


def _asked(url: str, files: list[Path], count: int) -> float:
    """Seconds for so many masks, asked for by several clients at once."""
    uploads = [(file.name, file.read_bytes()) for file in files]

    def client(first: int) -> None:
        with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as line:
            for number in range(first, count, CLIENTS):
                upload = uploads[number % len(uploads)]
                line.post("/api/mask", files={"files": upload}).raise_for_status()

    began = perf_counter()
    with ThreadPoolExecutor(CLIENTS) as crowd:
        list(crowd.map(client, range(CLIENTS)))
    return perf_counter() - began


@contextmanager
def _server(folder: Path) -> Iterator[tuple[psutil.Process, str]]:
    """A server as it is started by default, on a port that is free."""
    command = [sys.executable, "-u", "-m", "konsil", "serve", str(folder), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = next(line for line in process.stdout if "serving" in line)
        found = re.search(r" on (\S+) \(", line)
        assert found is not None, line
        yield psutil.Process(process.pid), found[1].rstrip("/")
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _memory(server: psutil.Process) -> int:
    return sum(one.memory_info().rss for one in (server, *server.children(recursive=True)))
