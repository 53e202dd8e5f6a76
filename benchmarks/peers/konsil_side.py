"""The work in Konsil: `konsil.run` of an experiment, in process or in worker processes."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

import konsil
from benchmarks.peers import work
from konsil.weights import Weights

MODEL = Path("fedavg", "seed0", "checkpoints", "last", "global.safetensors")


def main() -> None:
    """All rounds, then the global model into its file."""
    order = work.order()
    experiment = json.loads((order.work / work.EXPERIMENT).read_text(encoding="utf-8"))
    experiment["rounds"] = order.rounds
    if order.workers > 1:
        experiment["engine"] = {"name": "processes", "workers": order.workers}
    with tempfile.TemporaryDirectory() as folder:
        run = konsil.run(experiment, out=Path(folder) / "run", quiet=True)
        weights = Weights.load(run.folder / MODEL)
    # flat, and in the order of the others' network: `write_work` looks
    np.save(order.out, weights.flat.numpy())


if __name__ == "__main__":
    main()
