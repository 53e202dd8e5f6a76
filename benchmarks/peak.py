"""Peak memory of one case in a process of its own: `python -m benchmarks.peak CASE`."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from time import process_time
from typing import Any

STATUS = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")
ROOT = Path(__file__).parent.parent
ROUNDS = 2  # in the first there are no state files to read yet


def supported() -> bool:
    """Whether this system says how much memory a process had at most."""
    return STATUS.exists() and "VmHWM" in STATUS.read_text(encoding="ascii")


def peak_of(case: dict[str, Any]) -> dict[str, float]:
    """Bytes of a case in a fresh process: `peak`, and `before` it began to work.

    Of a training also the processor seconds of its last round.
    """
    command = [sys.executable, "-m", "benchmarks.peak", json.dumps(case)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def _status(key: str) -> int:
    line = next(s for s in STATUS.read_text(encoding="ascii").splitlines() if s.startswith(key))
    return 1024 * int(line.split()[1])


def _begin() -> int:
    """Memory in use now; the peak counts from here if the system lets us say so."""
    with suppress(OSError):  # the peak then includes that of the imports
        RESET.write_text("5", encoding="ascii")
    return _status("VmRSS")


def _mean(case: dict[str, Any]) -> dict[str, float]:
    """The mean of uploads that come one at a time, as they do at the server."""
    from benchmarks.server_mean import mean_layout, upload
    from konsil.weights import WeightedMean

    layout = mean_layout(case["network"], case["width"])
    upload(layout, 0)  # what torch takes for its first arithmetic is not the mean's
    before = _begin()
    mean = WeightedMean(layout)
    for number in range(case["sites"]):
        mean.add(upload(layout, number), 1 + number)
    mean.result()
    return {"before": before}


def _training(case: dict[str, Any]) -> dict[str, float]:
    """Rounds of a plan in process."""
    from benchmarks.rounds import RoundByRound
    from konsil.federation.plan import Plan
    from konsil.networks import build_network

    plan = Plan.from_json(case["plan"])
    build_network(plan.context(plan.jobs[0], plan.sites).network)  # imports what it needs
    before = _begin()
    with RoundByRound(plan, Path(case["folder"])) as training:
        for _ in range(ROUNDS):
            began = process_time()
            training()
            seconds = process_time() - began
    return {"before": before, "seconds": seconds}


def main() -> None:
    """One case, given as JSON; prints what was measured as JSON."""
    case = json.loads(sys.argv[1])
    measured = {"mean": _mean, "training": _training}[case["case"]](case)
    print(json.dumps({**measured, "peak": _status("VmHWM")}))


if __name__ == "__main__":
    main()
