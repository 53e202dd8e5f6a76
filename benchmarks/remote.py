"""Konsil's own deployment on loopback, whose sites train nothing: rounds, bytes, memory."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import mean
from typing import Any
from uuid import uuid4

import psutil

from benchmarks.setup import Setup
from benchmarks.wire import Wire
from konsil.config import Experiment, check_experiment
from konsil.data import synthetic
from konsil.deploy.admin import Admin, connect
from konsil.deploy.agreement import without_places
from konsil.deploy.deployment import ADMIN, SERVER
from konsil.deploy.local import Local, sites_of, source_of
from konsil.deploy.processes import Child
from konsil.files import write_text

PLUGIN = Path(__file__).with_name("echo.py")
SESSION = "nvflare.private.fed.app.server.runner_process"
LOOK_EVERY = 0.2
PATIENCE = 1800.0  # seconds; only a run that hangs needs them
IMAGE_SIZE = 32  # nothing is trained; the first and the last model are validated
ONLY_THE_FIRST = 1000  # validate_every


def experiment(setup: Setup, sites: int, network: dict[str, Any], rounds: int) -> Experiment:
    """Rounds whose models travel and are not trained."""
    raw = {
        "name": "benchmark",
        "federation": {
            **setup.many_sites(sites, max(setup.scale.far_sites), setup.scale.memory_images),
            "image_size": IMAGE_SIZE,
            "cache": str(setup.folder / "cache"),
        },
        "task": {"structures": synthetic.FEDERATIONS["retina"].structures},
        "network": network,
        "training": {"validate_every": ONLY_THE_FIRST},
        "plugins": [str(PLUGIN)],
        "methods": ["benchmark-echo"],
        "rounds": rounds,
    }
    return check_experiment(raw, "benchmark")


@dataclass(frozen=True)
class FarRun:
    """What was seen of one deployed run."""

    events: list[dict[str, Any]]
    peak: int  # bytes, of the server's process for this run

    def seconds(self) -> float:
        """Mean seconds of the rounds after the first, which validates."""
        return mean(done - began for began, done in self._spans()[1:])

    def window(self) -> tuple[float, float]:
        """Time of day from the end of the first round to the end of the last."""
        spans = self._spans()
        return spans[0][1], spans[-1][1]

    def _spans(self) -> list[tuple[float, float]]:
        began, done = (
            [_time(event) for event in self.events if event["event"] == kind]
            for kind in ("round_started", "round_done")
        )
        return list(zip(began, done, strict=True))


class Far(Local):
    """A server and its sites; `counted` ones reach it through a wire that counts."""

    def __init__(self, like: Experiment, base: Path, counted: bool = False) -> None:
        self.sites = sites_of(like)
        base.mkdir(parents=True)
        policy = base / "policy.yaml"
        write_text(policy, json.dumps({"plugins": [str(PLUGIN)]}))
        policies = dict.fromkeys(self.sites, policy)
        super().__init__(self.sites, base, source_of(like), policies, lambda _: None)
        self.wires = {site: Wire(self._port()) for site in self.sites} if counted else {}

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for wire in self.wires.values():
            wire.close()

    def start(self, party: str) -> Child:
        """Start one party: the server with the plugin, a counted site with its detour."""
        if party == SERVER:
            folder = self.base / SERVER
            words = ["server", str(self.kits[SERVER]), str(folder), str(PLUGIN)]
            child = Child("konsil.deploy.parties", words, folder / "said.log", lambda _: None)
            self.children[SERVER] = child
            return child
        if party in self.wires:
            self._redirect(self.kits[party] / "startup" / "fed_client.json", self.wires[party])
        return super().start(party)

    def _redirect(self, file: Path, wire: Wire) -> None:
        kit = json.loads(file.read_text(encoding="utf-8"))
        kit["servers"][0]["service"]["target"] = f"localhost:{wire.port}"
        write_text(file, json.dumps(kit))

    def run(self, wanted: Experiment) -> FarRun:
        """Submit, and wait until its processes are gone."""
        name = f"run-{uuid4().hex[:8]}"
        folder = self.base / SERVER / "runs" / name
        with connect(self.kits[ADMIN]) as admin:
            admin.submit(without_places(wanted), self.sites, name)
            peak = self._watch(admin, name)
        log = (folder / "events.jsonl").read_text(encoding="utf-8")
        return FarRun([json.loads(line) for line in log.splitlines()], peak)

    def _watch(self, admin: Admin, name: str) -> int:
        """The session's peak memory, when the run is over."""
        peak, end = 0, time.monotonic() + PATIENCE
        while True:
            self.check()
            for _ in range(round(1 / LOOK_EVERY)):  # to ask the server costs it more than to look
                peak = max(peak, self._peak())
                time.sleep(LOOK_EVERY)
            status = admin.status(name, events=False)
            if status.over:
                break
            if time.monotonic() > end:
                raise AssertionError(f"run {name} does not end; see {self.base}")
        if status.state != "finished" or status.session > 1:
            raise AssertionError(f"run {name}: {status.state}, {status.session} sessions")
        return peak

    def _peak(self) -> int:
        server = psutil.Process(self.children[SERVER].process.pid)
        for process in server.children(recursive=True):
            try:
                if SESSION in process.cmdline():
                    return _high_water(process.pid)
            except (psutil.Error, OSError):
                continue  # it ends at this moment
        return 0


def _high_water(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    lines = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return 1024 * int(lines[0].split()[1]) if lines else 0


def _time(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()
