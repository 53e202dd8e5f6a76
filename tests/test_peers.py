"""That the peers' driver counts and compares rightly. What it measures is no test's business."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.measure import Ratio
from benchmarks.peers import environments, work
from benchmarks.peers.__main__ import _names
from benchmarks.peers.compare import (
    BASE,
    PLAIN,
    TUNED,
    WAYS,
    Side,
    check_same_work,
    compare,
    cost_a_round,
    outcome_of,
)
from benchmarks.peers.federation import FULL, Size, write_work
from benchmarks.peers.meter import Cost, measure, supported

ROOT = Path(__file__).parent.parent
linux = pytest.mark.skipif(not supported(), reason="the meter needs Linux")
TINY = Size({"aster": 4, "birch": 8}, pixels=32, few=1, many=2, repeats=1, apart=1.0)

BURN = "import time\nwhile time.process_time() < 0.5: pass\n"
# It starts a process that starts another and ends; the orphan burns, and says when it is done.
ORPHAN = """
import os, sys, time
if os.fork() == 0:
    if os.fork() == 0:
        while time.process_time() < 0.4: pass
        open(sys.argv[1], "w").close()
        time.sleep(60)
    os._exit(0)
os.wait()
while not os.path.exists(sys.argv[1]): time.sleep(0.05)
"""
# As Ray's daemon does: whoever ignores this signal is never told what its children took.
DEAF = f"""
import signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", {BURN!r}]).wait()
"""


def cost(seconds: float, peak: int = 1) -> Cost:
    return Cost(code=0, seconds=seconds, unwaited=0, peak=peak, processes=1, left=0)


def metered(tmp_path: Path, program: str, *arguments: str) -> Cost:
    command = [sys.executable, "-c", program, *arguments]
    return measure(command, tmp_path / "cost.json", tmp_path / "log", dict(os.environ))


def test_a_round_is_what_more_rounds_take_more() -> None:
    assert cost_a_round(cost(14.0), cost(24.0), 5) == 2.0


def side(name: str, rounds: list[float], peaks: list[float]) -> Side:
    place = Path("anywhere")
    return Side(name, WAYS[name], place, TINY, place, peaks, [1.0] * len(rounds), rounds)


def test_ratios_are_the_peers_over_konsils_with_a_goal_each() -> None:
    sides = {
        BASE: side(BASE, [2.0, 4.0], [100, 100]),
        PLAIN: side(PLAIN, [1.0, 2.0], [50, 50]),
        "pfl": side("pfl", [3.0, 8.0], [90, 110]),
    }
    figures = {figure.what: figure for figure in outcome_of(sides, 2.0).figures}
    time = figures["processor time a round: pfl / Konsil"]
    memory = figures["peak memory: pfl / Konsil"]
    assert time.ratio == Ratio((1.5, 2.0))
    assert str(time.goal) == "at least 1.5"
    assert memory.ratio == Ratio((0.9, 1.1))
    assert str(memory.goal) == "at least 1"
    assert figures["processor time a round: a plain loop / Konsil"].goal is None
    assert len(figures) == 4


def test_everybody_is_held_against_both_of_konsils_ways() -> None:
    sides = {name: side(name, [1.0], [1.0]) for name in (BASE, TUNED, "pfl")}
    sides[TUNED].rounds[0] = 0.5
    figures = {figure.what: figure.ratio.median for figure in outcome_of(sides, 2.0).figures}
    assert figures["processor time a round: pfl / Konsil"] == 1.0
    assert figures["processor time a round: pfl / Konsil, performance: auto"] == 2.0
    assert len(figures) == 4


def test_konsils_workers_are_compared_with_whoever_has_several_processes() -> None:
    sides = {name: side(name, [1.0], [1.0]) for name in WAYS}
    against = [
        f.what for f in outcome_of(sides, 2.0).figures if f.what.endswith("worker processes")
    ]
    named = [what.split(": ")[1].split(" / ")[0] for what in against]
    assert named == ["Flower", "Flower", "FLARE", "FLARE", "FLARE, 2 threads", "FLARE, 2 threads"]


def test_a_model_that_was_not_trained_is_caught() -> None:
    check_same_work(2.0, {PLAIN: [1.0, 1.0], "pfl": [1.09, 0.95]}, apart=0.1)
    for wrong in (2.0, 1.2, 0.8, float("nan")):
        with pytest.raises(AssertionError, match="pfl did not do the same work"):
            check_same_work(2.0, {PLAIN: [1.0], "pfl": [1.0, wrong]}, apart=0.1)
    with pytest.raises(AssertionError, match="learned nothing"):
        check_same_work(2.0, {PLAIN: [2.0], "pfl": [2.0]}, apart=0.1)


def test_the_sides_that_everything_is_held_against_are_always_run() -> None:
    assert _names(["pfl"]) == [BASE, TUNED, PLAIN, "pfl"]
    assert _names(None) == list(WAYS)
    with pytest.raises(Exception, match="one of Konsil"):
        _names(["fedml"])


def test_the_federation_has_300_training_images_at_six_unequal_sites() -> None:
    assert sum(FULL.images.values()) == 2 * 300
    assert len(set(FULL.images.values())) == len(FULL.images) == 6


@linux
def test_an_orphan_and_what_it_took_are_counted_and_it_is_ended(tmp_path: Path) -> None:
    counted = metered(tmp_path, ORPHAN, str(tmp_path / "done"))
    assert counted.code == 0
    assert counted.left == 1
    assert counted.seconds >= 0.4
    assert counted.processes >= 2
    assert counted.unwaited == 0


@linux
def test_what_nobody_waited_for_is_counted(tmp_path: Path) -> None:
    counted = metered(tmp_path, DEAF)
    assert counted.unwaited > 0
    assert counted.seconds >= counted.unwaited


@linux
def test_memory_is_the_sum_over_all_processes_at_a_moment(tmp_path: Path) -> None:
    held = "import sys, time; kept = bytearray(b'x') * (64 << 20); time.sleep(1)"
    both = (
        "import subprocess, sys\n"
        f"two = [subprocess.Popen([sys.executable, '-c', {held!r}]) for _ in range(2)]\n"
        "for one in two: one.wait()"
    )
    assert 128 << 20 <= metered(tmp_path, both).peak < 256 << 20


@linux
def test_how_a_command_ended_is_told(tmp_path: Path) -> None:
    assert metered(tmp_path, "print('why'); raise SystemExit(3)").code == 3
    assert (tmp_path / "log").read_text() == "why\n"


def test_an_epoch_is_the_plain_one(tmp_path: Path) -> None:
    """Two batches of Adam, written out again; the seed says which images they have."""
    torch.manual_seed(0)
    images = work.Images(torch.rand(10, 3, 32, 32), (torch.rand(10, 2, 32, 32) > 0.5).float())
    net = work.Network()
    work.save(net, tmp_path / "start.npy")
    work.train(net, images, site=1, round=2)
    other = work.Network(str(tmp_path / "start.npy"))
    adam = torch.optim.Adam(other.parameters(), lr=1e-3)
    rows = torch.randperm(10, generator=torch.Generator().manual_seed(1002))
    for batch in (rows[:8], rows[8:]):
        adam.zero_grad()
        work.loss_of(other(images.x[batch]), images.y[batch]).backward()
        adam.step()
    for ours, theirs in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_the_loss_and_the_network_are_konsils(tmp_path: Path) -> None:
    from konsil.networks import NetworkSpec, build_network
    from konsil.tasks.segmentation import Segmentation

    x, y = torch.rand(2, 3, 32, 32), (torch.rand(2, 2, 32, 32) > 0.5).float()
    net = work.Network()
    konsil = build_network(
        NetworkSpec("unet", in_channels=3, outputs=2, image_size=32, normalise=True)
    )
    konsil.load_state_dict(net.state_dict())
    assert torch.equal(net(x), konsil(x))
    assert torch.allclose(work.loss_of(net(x), y), Segmentation(["disc", "cup"]).loss(konsil(x), y))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peers")
    images, found = write_work(TINY, folder)
    assert images == 6
    assert found.startswith("kernels ")
    return folder


class Steps:
    """Runs that train this often as many rounds as they should, at one site, and cost 2 s each."""

    def __init__(self, **times: int) -> None:
        self.times = times
        self.done: list[tuple[str, int]] = []

    def __call__(self, side: Side, rounds: int) -> Cost:
        self.done.append((side.name, rounds))
        net = work.Network(str(side.folder / work.START))
        for round in range(rounds * self.times.get(side.name, 1)):
            work.train(net, work.images_of(side.folder / work.DATA, 1), 1, round)
        work.save(net, side.weights)
        return cost(10 + 2.0 * rounds, peak=100)


def test_every_side_has_a_warm_up_and_two_runs_in_turns(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps()
    monkeypatch.setattr(Side, "run", lambda side, rounds: steps(side, rounds))
    outcome = compare(replace(TINY, repeats=2), folder, folder, [BASE, PLAIN, "pfl"], str)
    assert [figure.ratio.values for figure in outcome.figures] == [(1.0, 1.0)] * 4
    warm, *turns = (steps.done[start : start + size] for start, size in ((0, 3), (3, 6), (9, 6)))
    assert warm == [(name, TINY.few) for name in (BASE, PLAIN, "pfl")]
    assert [name for name, _ in turns[1]] == [name for name, _ in reversed(turns[0])]
    assert [rounds for _, rounds in turns[0]] == [TINY.few, TINY.many] * 3


def test_a_side_that_sends_back_what_it_got_stops_the_comparison(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(pfl=0)
    monkeypatch.setattr(Side, "run", lambda side, rounds: steps(side, rounds))
    size = replace(TINY, apart=0.1, repeats=3)
    with pytest.raises(AssertionError, match="pfl did not do the same work"):
        compare(size, folder, folder, [BASE, PLAIN, "pfl"], str)
    assert len(steps.done) == 3 + 6  # after the warm-up and the first turn


def reached(side: Side) -> list[float]:
    assert side.run(TINY.many).peak > 0
    return [work.mean_loss(side.folder / work.DATA, side.weights)]


@pytest.fixture(scope="module")
def plain_loss(folder: Path) -> list[float]:
    return reached(Side(PLAIN, WAYS[PLAIN], Path(sys.executable), TINY, folder))


@linux
def test_konsil_does_what_the_plain_loop_does(folder: Path, plain_loss: list[float]) -> None:
    ours = reached(Side(BASE, WAYS[BASE], Path(sys.executable), TINY, folder))
    start = work.mean_loss(folder / work.DATA, folder / work.START)
    check_same_work(start, {PLAIN: plain_loss, BASE: ours}, apart=0.05)


@linux
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, way in WAYS.items() if way.environment])
def test_a_peer_does_what_the_plain_loop_does(
    folder: Path, plain_loss: list[float], name: str
) -> None:
    peer = WAYS[name].environment
    if not environments.is_ready(ROOT / ".peers", peer):
        pytest.skip(f"no environment of {peer}: make bench-peers")
    python = environments.python_of(ROOT / ".peers", peer)
    theirs = reached(Side(name, WAYS[name], python, TINY, folder))
    start = work.mean_loss(folder / work.DATA, folder / work.START)
    check_same_work(start, {PLAIN: plain_loss, name: theirs}, apart=0.05)
