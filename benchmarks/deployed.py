"""Deployed rounds: what FLARE, TLS and processes cost over a round in process.

The sites train nothing, so that a round is its messages: to each site a model, from each a model.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.measure import Figure, Goal, Outcome, Ratio, Side, interleave, warm_up
from benchmarks.peak import supported
from benchmarks.rounds import RoundByRound
from benchmarks.setup import MORE_ROUNDS_THAN_MEASURED, Setup
from konsil.config import Experiment
from konsil.data import open_federation
from konsil.federation.plan import Plan

if TYPE_CHECKING:  # FLARE is an extra
    from benchmarks.remote import Far

WITHIN = Goal("at most", 1.3)
AS_PLANNED = Goal("at most", 1.03)
FLAT = Goal("at most", 1.2)
MIB = 2**20
FLOAT32 = 4
DEPLOYED, IN_PROCESS = "deployed", "in process"
USUAL, AS_OFTEN = "bare FLARE job", "bare FLARE job that asks as often"


def deployed_rounds(setup: Setup) -> Outcome:
    """A round between processes over the same round in process, and over a bare FLARE job's."""
    return _if_installed(setup, _rounds)


def deployed_traffic(setup: Setup) -> Outcome:
    """Bytes between server and sites, TLS and all, over the plan's count."""
    return _if_installed(setup, _traffic)


def deployed_memory(setup: Setup) -> Outcome:
    """Peak memory of the server's process for a run with many sites over that with few."""
    if not supported():
        return Outcome(notes=["this system does not tell a process's peak memory: not measured"])
    return _if_installed(setup, _memory)


def _if_installed(setup: Setup, benchmark: Any) -> Outcome:
    if find_spec("nvflare") is None:
        return Outcome(notes=["NVIDIA FLARE is not installed (konsil[flare]): not measured"])
    outcome: Outcome = benchmark(setup)
    return outcome


def _rounds(setup: Setup) -> Outcome:
    sites = setup.scale.far_sites[0]
    outcome = Outcome(
        notes=[
            f"{sites} sites on loopback, mutual TLS, float32 each way; nothing is trained; "
            f"a turn is a run of {setup.scale.far_rounds} rounds, the first not counted",
            "the bare job has FLARE's usual settings (a client asks for a task every 2 s), or "
            "asks as often as Konsil's sites do (0.2 s)",
        ]
    )
    for network in setup.scale.far_networks:
        outcome.figures += _against_bare(setup, sites, network, outcome.notes)
    return outcome


def _against_bare(
    setup: Setup, sites: int, network: dict[str, Any], notes: list[str]
) -> list[Figure]:
    from benchmarks.bare_flare import BareFlare
    from benchmarks.remote import experiment
    from konsil.deploy.flare.controller import LOOK_EVERY
    from konsil.deploy.flare.job import FETCH_EVERY

    rounds = setup.scale.far_rounds
    wanted = experiment(setup, sites, network, rounds)
    plan = _plan(experiment(setup, sites, network, MORE_ROUNDS_THAN_MEASURED))
    down, up = planned(plan)
    size = FLOAT32 * max(down, up)
    often = {"task_request_interval": FETCH_EVERY}
    with ExitStack() as stack:
        setup.progress("starting the deployments")
        far = stack.enter_context(_far(setup, wanted))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=setup.folder)))
        bare = stack.enter_context(BareFlare(far.sites, folder, _free_port()))
        alone = stack.enter_context(RoundByRound(plan, setup.folder))
        sides: dict[str, Side] = {
            DEPLOYED: lambda: far.run(wanted).seconds(),
            USUAL: lambda: bare.rounds(rounds, size, {}),
            AS_OFTEN: lambda: bare.rounds(rounds, size, often, task_check_period=LOOK_EVERY),
            IN_PROCESS: alone,
        }
        warm_up(sides, setup.progress)
        times = interleave(sides, setup.scale.far_repeats, setup.progress)
    what = f"{down / 1e6:.2g} M parameters"
    seconds = ", ".join(f"{side} {median(values):.2f} s" for side, values in times.items())
    notes.append(f"{what}, medians of a round: {seconds}")
    return _compared(times, what)


def _compared(times: dict[str, list[float]], what: str) -> list[Figure]:
    """The overhead, which has the goal, and the whole round."""
    over = [a - b for a, b in zip(times[DEPLOYED], times[IN_PROCESS], strict=True)]
    figures = [
        Figure(
            f"overhead of a deployed round / {bare}, {what}", Ratio.of(over, times[bare]), WITHIN
        )
        for bare in (USUAL, AS_OFTEN)
    ]
    whole = Ratio.of(times[DEPLOYED], times[AS_OFTEN])
    return [*figures, Figure(f"a whole deployed round / {AS_OFTEN}, {what}", whole)]


def _traffic(setup: Setup) -> Outcome:
    from benchmarks.remote import experiment

    sites, rounds = setup.scale.far_sites[0], setup.scale.far_rounds
    outcome = Outcome(
        notes=[f"{sites} sites, counted by a TCP proxy from the end of round 1 to that of the last"]
    )
    for network in setup.scale.far_networks:
        wanted = experiment(setup, sites, network, rounds)
        down, up = planned(_plan(wanted))
        expected = FLOAT32 * (down + up) * sites * (rounds - 1)
        with _far(setup, wanted, counted=True) as far:
            passed = []
            for turn in range(setup.scale.far_repeats):
                setup.progress(f"{network['name']}, run {turn + 1}")
                window = far.run(wanted).window()
                passed.append(sum(wire.between(*window) for wire in far.wires.values()))
        ratio = Ratio(tuple(count / expected for count in passed))
        what = f"bytes between server and sites / the plan's count, {down / 1e6:.2g} M parameters"
        outcome.figures.append(Figure(what, ratio, AS_PLANNED))
    return outcome


def _memory(setup: Setup) -> Outcome:
    from benchmarks.remote import experiment

    network, rounds = setup.scale.far_networks[0], setup.scale.far_rounds
    peaks: dict[int, list[float]] = {}
    for sites in setup.scale.far_sites:
        wanted = experiment(setup, sites, network, rounds)
        with _far(setup, wanted) as far:
            for turn in range(setup.scale.far_repeats):
                setup.progress(f"{sites} sites, run {turn + 1}")
                peaks.setdefault(sites, []).append(far.run(wanted).peak)
    few, *more = setup.scale.far_sites
    size = planned(_plan(experiment(setup, few, network, rounds)))[0]
    seen = ", ".join(f"{median(values) / MIB:.0f} with {n}" for n, values in peaks.items())
    return Outcome(
        [
            Figure(
                f"peak memory of the server's process, {sites} sites / {few}",
                Ratio.of(peaks[sites], peaks[few]),
                FLAT,
            )
            for sites in more
        ],
        [
            f"{size / 1e6:.2g} M parameters ({FLOAT32 * size / MIB:.1f} MiB a message); MiB: {seen}"
            "; what is being sent, and replies that wait for their turn in the roster, included"
        ],
    )


def planned(plan: Plan) -> tuple[int, int]:
    """Values that a site receives and sends in a round, as `konsil plan` counts them."""
    method = plan.method(plan.jobs[0])
    initial = method.initial_parts()
    down = sum(part.layout.size for part in method.sent(plan.sites[0], initial).values())
    return down, sum(layout.size for layout in method.uploads(initial).values())


def _plan(wanted: Experiment) -> Plan:
    return Plan.of(wanted, open_federation(wanted.federation, wanted.task))


@contextmanager
def _far(setup: Setup, like: Experiment, counted: bool = False) -> Iterator[Far]:
    """A deployment in a folder that is gone afterwards."""
    from benchmarks.remote import Far

    base = Path(tempfile.mkdtemp(dir=setup.folder, prefix="far-"))
    try:
        far = Far(like, base / "deployment", counted)
        with far:
            yield far
    finally:
        shutil.rmtree(base, ignore_errors=True)  # a process may be at its last words


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port
