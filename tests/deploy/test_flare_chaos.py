"""Power cuts, cut and slow links, full disks: what a deployed run comes to all the same.

What was done to whom and when, and how long it took until the run went on, is written to
chaos.csv in pytest's folder of this module (`KONSIL_CHAOS` names another file);
docs/deploy-faults.md has such a table.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

import deployments
from deployments import Deployed, Submitted, wait_for

from konsil.config import Experiment, check_experiment
from konsil.deploy.admin import connect
from konsil.deploy.deployment import ADMIN, SERVER
from konsil.testing import write_shades

pytestmark = pytest.mark.slow
COUNTS = {"east": 7, "north": 8, "south": 12}
RUNS = 20  # that are struck
TIMES = (1, 1, 1, 3)  # how often one is struck: one of these
KINDS = (*("site", "server", "both") * 2, "one process of a site", "one process of the server")
DEADLINE = 40.0  # seconds; longer than a site needs to start on a busy machine
Record = Callable[..., None]


@pytest.fixture(scope="module")
def shades(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("shades")
    write_shades(folder, COUNTS)
    return folder


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> Record:
    """Appends a line to the table of what happened."""
    path = Path(os.environ.get("KONSIL_CHAOS") or tmp_path_factory.mktemp("chaos") / "chaos.csv")

    def note(*facts: Any) -> None:
        with open(path, "a") as file:
            file.write(",".join(f"{f:.1f}" if isinstance(f, float) else str(f) for f in facts))
            file.write("\n")

    return note


def tiny(folder: Path, sites: list[str], seed: int, rounds: int = 3, **blocks: Any) -> Experiment:
    raw = {
        "name": "chaos",
        "federation": {"folder": str(folder), "image_size": 32, "sites": sites},
        "task": {"name": "classification"},
        "network": {"name": "small"},
        "training": {"batch_size": 3},
        "methods": ["fedsm"],
        "rounds": rounds,
        "seeds": [seed],
    }
    return check_experiment(raw | blocks, "test")


@pytest.fixture(scope="module")
def pair(shades, tmp_path_factory) -> Iterator[Deployed]:
    """Two sites; south behind a proxy."""
    e = tiny(shades, ["north", "south"], 0)
    with Deployed(e, tmp_path_factory.mktemp("pair"), proxied=("south",)) as deployed:
        yield deployed


def doing(run: Submitted) -> str:
    """What a run was at, in words."""
    events = run.events
    if not events:
        return "agreeing on the plan" if run.trail else "a session starts"
    last = events[-1]
    number = f" {last['round']}" if "round" in last else ""
    return f"after {last['event']}{number}"


def sessions(run: Submitted) -> int:
    return sum(event["event"] == "run_started" for event in run.events)


def over(run: Submitted) -> bool:
    return run.outcome.state == "finished"


# --- kill -9 --------------------------------------------------------------------------------------


@dataclass
class Strike:
    """Who was killed, at what, and when all were there again."""

    kind: str
    site: str
    at: str
    pause: float
    back: datetime

    def went_on(self, run: Submitted) -> float:
        """Seconds until a new session was at work, or the run was over."""
        signs = ("run_started", "run_done")
        times = [datetime.fromisoformat(e["time"]) for e in run.events if e["event"] in signs]
        return min((t - self.back).total_seconds() for t in times if t > self.back)


def test_killed_at_random(pair, shades, tmp_path, record):
    """A site, the server, both, or one process of them; then the same bits as undisturbed."""
    chance = random.Random(5)
    begun = time.monotonic()
    calm = pair.submit(tiny(shades, pair.sites, 100), "calm")
    deployments.finish(calm, pair)
    record("undisturbed", "", "", 0.0, time.monotonic() - begun, "")
    runs, different = 0, []
    while runs < RUNS:
        e = tiny(shades, pair.sites, runs)
        run = pair.submit(e, f"killed-{time.monotonic_ns()}")
        struck = list(_struck(pair, run, len(calm.trail), chance))
        deployments.finish(run, pair)
        alone = deployments.in_process(e, tmp_path / run.folder.name)
        equal = deployments.what_counts(run.folder) == deployments.what_counts(alone)
        for strike in struck:
            waited = strike.went_on(run)
            record(strike.kind, strike.site, strike.at, strike.pause, waited, equal)
        different += [] if equal else [run.folder.name]
        runs += bool(struck)  # one that was done before its moment does not count
    assert different == []


def _struck(
    deployed: Deployed, run: Submitted, length: int, chance: random.Random
) -> Iterator[Strike]:
    """Strike a run at random moments, until it is done or has had enough.

    A moment is a number of messages and some seconds, so that it is one of a busy machine too.
    """
    for _ in range(chance.choice(TIMES)):
        enough = len(run.trail) + chance.randrange(length)
        wait_for(lambda n=enough: len(run.trail) >= n or run.has("job_done"), "its moment")
        time.sleep(chance.uniform(0, 1))
        if run.has("job_done"):
            return
        kind, site = chance.choice(KINDS), chance.choice(deployed.sites)
        pause, at = chance.uniform(0, 6), doing(run)
        _strike(deployed, kind, site, pause, chance)
        yield Strike(kind, "" if "server" in kind else site, at, pause, datetime.now(UTC))


def _strike(deployed: Deployed, kind: str, site: str, pause: float, chance: random.Random) -> None:
    """Kill, wait, start again what does not start by itself."""
    hit = {"site": [site], "server": [SERVER], "both": [site, SERVER]}.get(kind)
    if hit is None:
        party = SERVER if "server" in kind else site
        deployed.kill_one(party, chance)
        time.sleep(2)  # its parent notices
        hit = [party] if deployed.children[party].code is not None else []
    else:
        deployed.kill(*hit)
    time.sleep(pause)
    chance.shuffle(hit)
    for party in hit:
        deployed.start(party)


# --- a site that stays away -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def trio(shades, tmp_path_factory) -> Iterator[Deployed]:
    e = tiny(shades, sorted(COUNTS), 0)
    with Deployed(e, tmp_path_factory.mktemp("trio")) as deployed:
        yield deployed


def hangs_at_north(run: Submitted) -> bool:
    """A round in which south has answered and north, which is frozen, has not."""
    started = [e["round"] for e in run.events if e["event"] == "round_started"]
    return (
        bool(started)
        and run.has("site_done", round=started[-1], site="south")
        and not run.has("site_done", round=started[-1], site="north")
    )


def test_a_site_stays_away_past_the_deadline(trio, shades, tmp_path, record):
    """It is killed between two rounds, misses at least one, and comes back."""
    server = {"deadline": DEADLINE, "min_sites": 2}
    e = tiny(shades, trio.sites, 200, rounds=5, server=server)
    run = trio.submit(e, "away")
    wait_for(lambda: run.has("round_done", round=1), "round 1")
    trio.freeze("north")
    wait_for(lambda: hangs_at_north(run), "a round that waits for north")
    trio.kill("south")
    trio.thaw("north")
    began = time.monotonic()
    wait_for(lambda: "south" in run.absences(trio.sites), "a round without south")
    record("site away", "south", doing(run), time.monotonic() - began, 0.0, "")
    trio.start("south")
    before = sessions(run)
    waited = wait_for(lambda: sessions(run) > before or over(run), "south is back")
    deployments.finish(run, trio)
    absences = run.absences(trio.sites)
    record("site back", "south", f"missed {absences}", 0.0, waited, "")
    assert list(absences) == ["south"]
    assert len(absences["south"]) < 4
    simulated = tiny(
        shades, trio.sites, 200, rounds=5, server={"min_sites": 2, "absences": absences}
    )
    deployments.same_files(run.folder, deployments.in_process(simulated, tmp_path / "alone"))


# --- the link -------------------------------------------------------------------------------------


def in_round(run: Submitted, number: int) -> None:
    wait_for(lambda: run.has("round_started", round=number), f"round {number}")


def cut_for(deployed: Deployed, seconds: float) -> None:
    deployed.proxies["south"].cut()
    time.sleep(seconds)
    deployed.proxies["south"].mend()


def south_has(deployed: Deployed, event: str, job: str, number: int) -> bool:
    trail = deployments.read_trail(deployed.state("south") / "audit.jsonl")
    wanted = {"event": event, "round": number, "job": job, "kind": "round"}
    return any(wanted.items() <= line.items() for line in trail)


def test_a_cut_and_throttled_link(pair, shades, tmp_path, record):
    """Cut while the site receives, computes and sends; slow and late throughout."""
    link = pair.proxies["south"]
    e = tiny(shades, pair.sites, 300, rounds=4)
    run = pair.submit(e, "link")

    def cut_when(what: str, number: int, moment: Callable[[], bool], seconds: float) -> None:
        wait_for(moment, what)
        cut_for(pair, seconds)
        waited = wait_for(lambda: run.has("site_done", round=number, site="south"), "south")
        record("link cut", "south", what, seconds, waited, "")

    in_round(run, 1)
    link.rate, link.delay = 250_000.0, 0.01
    in_round(run, 2)
    passed = link.to_site
    cut_when("receiving", 2, lambda: link.to_site > passed + 400_000, 5.0)
    in_round(run, 3)
    passed = link.to_server
    cut_when("sending", 3, lambda: link.to_server > passed + 400_000, 5.0)
    link.rate, link.delay = None, 0.0
    in_round(run, 4)
    wait_for(lambda: south_has(pair, "received", "fedsm/seed300", 4), "the request of round 4")
    pair.freeze("south")
    link.cut()
    pair.thaw("south")
    wait_for(lambda: south_has(pair, "sent", "fedsm/seed300", 4), "the answer of round 4")
    link.mend()
    waited = wait_for(lambda: run.has("site_done", round=4, site="south"), "south")
    record("link cut", "south", "computing", 0.0, waited, "")
    deployments.finish(run, pair)
    assert link.cuts >= 3
    deployments.same_files(run.folder, deployments.in_process(e, tmp_path / "alone"))


def test_a_late_answer_is_dropped_and_logged(pair, shades, tmp_path, record):
    """South's answer is on its slow way when the deadline passes: it goes back to where it was."""
    link = pair.proxies["south"]
    server = {"deadline": 30.0, "min_sites": 1}
    e = tiny(shades, pair.sites, 302, rounds=4, server=server)
    run = pair.submit(e, "late")
    in_round(run, 1)
    link.rate_up = 8_000.0  # about a minute for its answer
    wait_for(lambda: south_has(pair, "sent", "fedsm/seed302", 1), "south's answer")
    assert not run.has("site_done", site="south")
    wait_for(lambda: run.has("site_missing", round=1, site="south"), "a round without south")
    link.rate_up = None
    deployments.finish(run, pair)
    dropped = "an answer of south that nobody waits for was dropped"
    with connect(pair.kits[ADMIN]) as admin:
        wait_for(lambda: admin.status("late").over, "the session's log")
        assert dropped in admin.logs("late")
    late = [(x["site"], x["round"]) for x in run.trail if x["event"] == "too late"]
    assert late[:1] == [("south", 1)]
    absences = run.absences(pair.sites)
    record("late answer", "south", f"missed {absences}".replace(",", " and"), 0.0, 0.0, "")
    assert absences["south"][0] == 1
    assert len(absences["south"]) < 4
    server = {"min_sites": 1, "absences": absences}
    simulated = tiny(shades, pair.sites, 302, rounds=4, server=server)
    deployments.same_files(run.folder, deployments.in_process(simulated, tmp_path / "alone"))


def test_a_changed_byte_on_the_wire(pair, shades, tmp_path, record):
    """TLS notices, the connection is made anew, the message is sent again."""
    link = pair.proxies["south"]
    e = tiny(shades, pair.sites, 301)
    run = pair.submit(e, "spoilt")
    in_round(run, 2)
    link.spoil = True
    begun = time.monotonic()
    deployments.finish(run, pair)
    assert not link.spoil
    record("a byte changed", "south", "round 2", 0.0, time.monotonic() - begun, "")
    deployments.same_files(run.folder, deployments.in_process(e, tmp_path / "alone"))


# --- a full disk ----------------------------------------------------------------------------------


@contextmanager
def small_disk(place: Path, megabytes: int) -> Iterator[Path]:
    place.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk needs the right to mount one")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(folder: Path) -> Path:
    """Take all the room that is left."""
    ballast = folder / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return ballast


def test_a_full_disk_at_a_site(shades, tmp_path, record):
    """Named at both ends, nothing lost, and the run goes on when there is room again."""
    e = tiny(shades, ["north", "south"], 400)
    with (
        small_disk(tmp_path / "deployed" / "south" / "state", 40) as disk,
        Deployed(e, tmp_path / "deployed") as deployed,
    ):
        run = deployed.submit(e, "full")
        wait_for(lambda: run.has("round_done", round=1), "round 1")
        ballast = fill(disk)
        what = "No space left"
        wait_for(lambda: any(what in line for line in deployed.said), "a word at the site")
        wait_for(lambda: what in str([x for x in run.trail if x["event"] == "missing"]), "a reason")
        ballast.unlink()
        before = sessions(run)
        waited = wait_for(lambda: sessions(run) > before, "going on")
        record("disk full", "south", doing(run), 0.0, waited, "")
        deployments.finish(run, deployed)
        deployments.same_files(run.folder, deployments.in_process(e, tmp_path / "alone"))
