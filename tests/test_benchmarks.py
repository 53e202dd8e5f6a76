"""That the benchmarks run and write what they promise. What they measure is no test's business."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", "fedavg"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "server-mean" in done.stderr


@pytest.mark.slow
def test_every_benchmark_runs(tmp_path: Path) -> None:
    assert len(measure(tmp_path)) == 6
