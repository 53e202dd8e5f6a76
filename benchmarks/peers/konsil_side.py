"""The work in Konsil: `konsil run` of an experiment, in process or in worker processes.

Without its figures, which no other side draws: they take less time the more a model has learned,
so that the rounds of a longer run would look cheaper than they are.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks.peers import work
from konsil import api
from konsil.config import read_experiment
from konsil.weights import Weights

MODEL = Path("fedavg", "seed0", "checkpoints", "last", "global.safetensors")


def main() -> None:
    """All rounds, then the global model into its file."""
    order = work.order()
    file = order.work / (work.TUNED if order.tuned else work.EXPERIMENT)
    experiment = json.loads(file.read_text(encoding="utf-8"))
    experiment["rounds"] = order.rounds
    if order.workers > 1:
        experiment["engine"] = {"name": "processes", "workers": order.workers}
    with tempfile.TemporaryDirectory() as folder:
        quiet, out = Console(quiet=True), Path(folder) / "run"
        plan, federation = api.prepare(read_experiment(experiment), False, quiet, out)
        run = api.train(plan, federation, out, False, quiet, figures=False)
        weights = Weights.load(run.folder / MODEL)
    # flat, and in the order of the others' network: `write_work` looks
    np.save(order.out, weights.flat.numpy())


if __name__ == "__main__":
    main()
