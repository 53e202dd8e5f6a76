"""That the benchmarks run and write what they promise. What they measure is no test's business."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import typer

import benchmarks.methods
import benchmarks.reporting
from benchmarks import recipe
from benchmarks.__main__ import main
from benchmarks.batches import batches_vs_monai, check_same_images
from benchmarks.first_look import import_and_check
from benchmarks.measure import Defined, Figure, Ratio
from benchmarks.setup import QUICK, Setup
from benchmarks.wire import Wire
from konsil.data import Images
from konsil.ingredients.method import METHODS

ROOT = Path(__file__).parent.parent


def measure(tmp_path: Path, *options: str) -> dict[str, dict]:
    files = ["--json", str(tmp_path / "all.json"), "--markdown", str(tmp_path / "table.md")]
    command = [sys.executable, "-m", "benchmarks", "--quick", *files, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = json.loads((tmp_path / "all.json").read_text())["benchmarks"]
    table = (tmp_path / "table.md").read_text()
    for outcome in outcomes.values():
        for figure in outcome["figures"]:
            assert figure["what"] in table
            assert all(value > 0 for value in figure["values"])
            assert (figure["goal"] is None) == (figure["met"] is None)
    return outcomes


def test_the_plain_loop_computes_what_konsil_computes_and_the_shares_make_a_whole(
    tmp_path: Path,
) -> None:
    outcomes = measure(tmp_path, "--only", "fedavg-vs-plain", "--only", "overheads")
    assert list(outcomes) == ["fedavg-vs-plain", "overheads"]
    unused, *shares = outcomes["overheads"]["figures"]
    assert sum(share["median"] for share in shares) == pytest.approx(1)
    assert 0 < unused["median"] < 1


def test_an_unknown_benchmark_is_refused_by_name() -> None:
    with pytest.raises(typer.BadParameter, match=r"fedavg: one of .*server-mean"):
        main(only=["fedavg"], quick=True)


def test_a_method_is_held_against_its_own_number_of_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmarks.methods, "names", lambda: ["ditto", "moon"])
    outcome = benchmarks.methods.methods(Setup(QUICK, tmp_path, lambda news: None))
    goals = ["at most 10% above 2", "at most 10% above 1.667"]
    assert [str(f.goal) for f in outcome.figures] == goals
    assert all(value > 0 for figure in outcome.figures for value in figure.ratio.values)


def test_a_report_is_held_against_one_without_intervals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, few in {"METHODS": ("local", "fedsm"), "SEEDS": (0,), "TESTS": 4}.items():
        monkeypatch.setattr(benchmarks.reporting, name, few)
    outcome = benchmarks.reporting.reporting(Setup(QUICK, tmp_path, lambda news: None))
    assert [str(figure.goal) for figure in outcome.figures] == [
        "None", "at most 1", "at most 1.2", "at most 1.2",
    ]  # fmt: skip
    assert all(value > 0 for figure in outcome.figures for value in figure.ratio.values)
    page = (tmp_path / "report.html").read_text()
    assert "by their means alone" in page  # the last turn is the one without intervals
    assert "5 hospitals" in page


@pytest.mark.parametrize(("median", "met"), [(0.5, True), (2.0, True), (2.2, True), (2.3, False)])
def test_only_above_the_definition_is_a_fault(median: float, met: bool) -> None:
    assert Figure("a / b", Ratio((median,)), Defined(2, 0.1001)).met is met


def test_monai_makes_of_the_images_what_konsil_makes(tmp_path: Path) -> None:
    outcome = batches_vs_monai(Setup(QUICK, tmp_path, lambda news: None))
    names = [figure.what.split(" / ")[0] for figure in outcome.figures]
    ways = ["MONAI CacheDataset", "MONAI PersistentDataset", "MONAI CacheDataset with metadata"]
    assert names == [*ways, *ways, "random access through the memory map"]
    assert all(value > 0 for figure in outcome.figures for value in figure.ratio.values)


@pytest.mark.parametrize("augmented", [True, False])
def test_other_images_are_noticed(tmp_path: Path, augmented: bool) -> None:
    from benchmarks.monai_side import MonaiEpoch, Way

    images, others = (
        Images(torch.full((4, 3, 8, 8), shade, dtype=torch.uint8), torch.ones(4, 2, 8, 8).byte())
        for shade in (10, 11)
    )
    monai = MonaiEpoch(Way("CacheDataset", augmented), images, 2, tmp_path)
    check_same_images(images, monai)
    if augmented:
        others = Images(others.images, torch.ones(4, 1, 8, 8).byte())
    with pytest.raises(AssertionError, match="does not make of the images"):
        check_same_images(others, monai)


def test_import_and_check_are_held_against_a_bare_loop(tmp_path: Path) -> None:
    outcome = import_and_check(Setup(QUICK, tmp_path, lambda news: None))
    both, brought, checked = (figure.ratio.values[0] for figure in outcome.figures)
    assert both == pytest.approx(brought + checked)
    assert [str(figure.goal) for figure in outcome.figures] == ["at most 1.5", "None", "None"]


def test_a_watched_and_a_tracked_round_are_measured_beside_one_alone(tmp_path: Path) -> None:
    outcome = measure(tmp_path, "--only", "watching")["watching"]
    watched, tracked = outcome["figures"]
    assert "konsil watch" in watched["what"]
    assert "MLflow" in tracked["what"]
    assert not [note for note in outcome["notes"] if "not measured" in note]


def test_the_wire_counts_both_ways_and_only_in_its_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        wire = Wire(server.getsockname()[1])
        with socket.create_connection(("127.0.0.1", wire.port)) as site:
            far_end, _ = server.accept()
            with far_end:
                began = time.time()
                site.sendall(b"x" * 300)
                received(far_end, 300)
                far_end.sendall(b"y" * 70_000)
                received(site, 70_000)
        wait_until(lambda: wire.between(began, time.time()) == 70_300)
        assert wire.between(0, began - 1) == 0
        wire.close()


def received(end: socket.socket, size: int) -> None:
    while size:
        size -= len(end.recv(size))


def wait_until(condition: Callable[[], bool]) -> None:
    """A proxy counts a moment after it has passed something on."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_first_deployed_round_does_not_count() -> None:
    pytest.importorskip("nvflare")
    from benchmarks.remote import FarRun

    spans = [(0, 30), (31, 33), (34, 38)]
    events = [
        {"event": kind, "time": f"2026-01-01T00:00:{second:02d}.000+00:00"}
        for span in spans
        for kind, second in zip(("round_started", "round_done"), span, strict=True)
    ]
    run = FarRun([{"event": "run_started", "time": events[0]["time"]}, *events], peak=0)
    assert run.seconds() == 3  # of 2 and 4
    start, end = run.window()
    assert end - start == 8


def test_recipes_are_chosen_without_test_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = "eyes", 48, 40, "plain", "fedsm", "", 0, "super"
    scores = {"best": (0.9, 0.8, 0.51), "last": (0.7, 0.6, 0.42)}  # test, test, validation
    lines = [recipe.Line(*facts, c, "dice", *numbers) for c, numbers in scores.items()]
    monkeypatch.setattr(recipe, "read", lambda: lines)
    shown = recipe.table("eyes", scores="validation")
    assert "0.510 (0.420)" in shown
    assert not [number for number in ("0.9", "0.8", "0.7", "0.6") if number in shown]
    assert "0.900 (0.700)" in recipe.table("eyes")


@pytest.mark.slow
def test_every_benchmark_runs(tmp_path: Path) -> None:
    outcomes = measure(tmp_path)
    assert len(outcomes) == 16
    measured = {figure["what"].split(":")[0] for figure in outcomes["methods"]["figures"]}
    assert measured == set(METHODS.all())
