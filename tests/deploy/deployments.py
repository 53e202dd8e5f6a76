"""Deployments of real processes that a test can kill, freeze, cut off and start again."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
from proxy import Proxy

from konsil.config import Experiment
from konsil.data import open_federation
from konsil.deploy.admin import connect
from konsil.deploy.agreement import without_places
from konsil.deploy.deployment import ADMIN, SERVER
from konsil.deploy.local import Local, sites_of, source_of
from konsil.deploy.processes import Child
from konsil.deploy.sessions import Outcome
from konsil.federation.plan import Plan
from konsil.federation.runner import Run
from konsil.files import write_text
from konsil.report.audit import read_trail
from konsil.supermodel import GLOBAL

PATIENCE = 900.0  # seconds; only a hung run needs them
GLANCE = 0.05
COMPUTES = "site-client"


def in_process(experiment: Experiment, folder: Path) -> Path:
    """The same experiment, as `konsil run` runs it."""
    federation = open_federation(experiment.federation, experiment.task)
    run = Run(Plan.of(experiment, federation), folder)
    run.prepare(False, federation.write_splits)
    run.go()
    return folder


def weights_at_the_server(folder: Path) -> dict[str, bytes]:
    """Every weights' file of a run but the sites' own, which stay at their hospitals."""
    own, named = set(), dict[Path, str]()
    for told in folder.rglob("model/model.json"):  # of a method without a selector
        files = json.loads(told.read_text(encoding="utf-8"))["files"]
        own |= {told.parent / files[name]["file"] for name in files if name != GLOBAL}
        # a file's number is its place among all models, and the sites' own are not everywhere
        named |= {told.parent / files[name]["file"]: name for name in files}
    return {
        (path.parent / named.get(path, path.name)).relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*.safetensors"))
        if path not in own and not {"sites", ".deploy"} & set(path.relative_to(folder).parts)
    }


def what_counts(folder: Path) -> dict[str, bytes]:
    """Every weight that the server keeps, the results, and single images' scores."""
    results = {name: (folder / name).read_bytes() for name in ("results.csv", "scores.parquet")}
    return weights_at_the_server(folder) | results


def same_files(got: Path, expected: Path) -> None:
    ours, theirs = what_counts(got), what_counts(expected)
    assert any(name.endswith(".safetensors") for name in theirs)
    assert ours.keys() == theirs.keys(), sorted(ours.keys() ^ theirs.keys())
    different = [name for name in ours if ours[name] != theirs[name]]
    assert different == [], different


def contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """The bytes of all files, and of what is packed in them."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.is_symlink():
            continue
        data = path.read_bytes()
        yield str(path), data
        if zipfile.is_zipfile(io.BytesIO(data)):
            with zipfile.ZipFile(io.BytesIO(data)) as packed:
                yield from ((f"{path}:{name}", packed.read(name)) for name in packed.namelist())


class Submitted:
    """A run as it stands on the server's disk, whether the server is alive or not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def events(self) -> list[dict[str, Any]]:
        log = self.folder / "events.jsonl"
        return list(read_trail(log)) if log.exists() else []

    @property
    def trail(self) -> list[dict[str, Any]]:
        trail = self.folder / "audit.jsonl"
        return list(read_trail(trail)) if trail.exists() else []

    @property
    def outcome(self) -> Outcome:
        return Outcome.read(self.folder)

    def has(self, event: str, **facts: Any) -> bool:
        """Whether such an event was logged."""
        return any(e["event"] == event and facts.items() <= e.items() for e in self.events)

    def absences(self, roster: list[str]) -> dict[str, list[int]]:
        """In which rounds the server went on without whom."""
        took_part = {e["round"]: e["sites"] for e in self.events if e["event"] == "round_done"}
        missed = {s: [r for r, there in took_part.items() if s not in there] for s in roster}
        return {site: rounds for site, rounds in missed.items() if rounds}


class Deployed(Local):
    """A server and its sites; `proxied` ones reach the server through a proxy of the test's."""

    def __init__(
        self,
        experiment: Experiment,
        base: Path,
        proxied: tuple[str, ...] = (),
        policies: Mapping[str, Path] | None = None,
    ) -> None:
        self.said: list[str] = []
        self.sites = sites_of(experiment)
        super().__init__(self.sites, base, source_of(experiment), policies or {}, self.said.append)
        self.proxies = {site: Proxy(self._port()) for site in proxied}

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for proxy in self.proxies.values():
            proxy.close()

    def start(self, party: str) -> Child:
        if party in self.proxies:
            self._redirect(self.kits[party] / "startup" / "fed_client.json", self.proxies[party])
        return super().start(party)

    def _redirect(self, file: Path, proxy: Proxy) -> None:
        kit = json.loads(file.read_text())
        kit["servers"][0]["service"]["target"] = f"localhost:{proxy.port}"
        write_text(file, json.dumps(kit))

    def state(self, site: str) -> Path:
        return self.base / site / "state"

    def submit(self, experiment: Experiment, run: str) -> Submitted:
        with connect(self.kits[ADMIN]) as admin:
            admin.submit(without_places(experiment), self.sites, run)
        return Submitted(self.base / SERVER / "runs" / run)

    def kill(self, *parties: str) -> None:
        """kill -9 of every process of these parties, at once."""
        for process in [p for party in parties for p in self.tree(party)]:
            _signal(process, signal.SIGKILL)
        for party in parties:
            self.children[party].end()

    def kill_one(self, party: str, chance: random.Random) -> None:
        """kill -9 of any one process of a party."""
        _signal(chance.choice(self.tree(party)), signal.SIGKILL)

    def freeze(self, site: str) -> None:
        """What computes at this site stands still; everything else goes on."""
        _signal(self._computing(site), signal.SIGSTOP)

    def thaw(self, site: str) -> None:
        _signal(self._computing(site), signal.SIGCONT)

    def _computing(self, site: str) -> psutil.Process:
        return next(p for p in self.tree(site) if COMPUTES in _command(p))

    def tree(self, party: str) -> list[psutil.Process]:
        """A party's process and all below it."""
        root = psutil.Process(self.children[party].process.pid)
        return [root, *root.children(recursive=True)]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _signal(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, number)


def wait_for(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> float:
    """Seconds until it is true."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < patience, f"waited {patience:g} s for: {what}"
        time.sleep(GLANCE)
    return time.monotonic() - begun


def finish(run: Submitted, deployed: Deployed) -> float:
    """Wait until the run is over; it must have finished."""
    seconds = wait_for(
        lambda: run.outcome.state in ("finished", "failed"),
        f"the end of {run.folder.name}; said:\n" + "\n".join(deployed.said[-40:]),
    )
    assert run.outcome.state == "finished", run.outcome.reason
    return seconds
