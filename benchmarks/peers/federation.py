"""What every side works on: images, first weights, and Konsil's experiment, in one folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import work
from benchmarks.setup import SIX_SITES
from konsil.config import PLAIN, check_experiment
from konsil.data import open_federation, synthetic, training_data
from konsil.federation.performance import Trial, tried
from konsil.federation.plan import Plan

NEVER = 10**6  # rounds between two validations: only the last round is validated


@dataclass(frozen=True)
class Size:
    """How much is done, and how often."""

    images: dict[str, int]  # of the synthetic retina federation; half of them to train
    pixels: int
    few: int  # rounds of the shorter run
    many: int  # of the longer one
    repeats: int
    apart: float  # of what training gained: how far two sides' losses may differ


FULL = Size(
    images=SIX_SITES,
    pixels=64,
    few=2,
    many=12,
    repeats=5,
    apart=0.1,
)
QUICK = Size(images=dict.fromkeys(FULL.images, 8), pixels=32, few=1, many=3, repeats=1, apart=0.1)


def experiment(size: Size, cache: Path) -> dict[str, Any]:
    """Konsil's keys for the common work; the rounds are the side's business."""
    retina = synthetic.FEDERATIONS["retina"]
    return {
        "name": "peers",
        "federation": {
            "synthetic": "retina",
            "images": size.images,
            "image_size": size.pixels,
            "cache": str(cache),
        },
        "task": {"structures": retina.structures},
        "training": {
            **PLAIN,
            "batch_size": work.BATCH,
            "lr": work.RATE,
            "validate_every": NEVER,
        },
        "methods": [{"name": "fedavg", "optimizer_state": "reset"}],
        "rounds": size.many,
        "compute": {"threads": 1},
    }


def write_work(size: Size, folder: Path) -> tuple[int, str]:
    """Write the folder that every side reads; how many training images there are, and how this
    machine computes Konsil's side fastest.
    """
    raw = experiment(size, folder / "cache")
    checked = check_experiment(raw, "benchmarks.peers")
    plan = Plan.of(checked, open_federation(checked.federation, checked.task))
    trains = [training_data(plan.data_folder, (site,)).train for site in plan.sites]
    work.write_images(folder / work.DATA, [(part.images, part.targets) for part in trains])
    context = plan.context(plan.jobs[0], plan.sites)
    start = context.initial(context.network)
    theirs = [name for name, _ in work.Network().named_parameters()]
    if theirs != [entry.name for entry in start.layout.entries]:
        raise AssertionError("Konsil's U-Net and MONAI's do not have the same parameters")
    np.save(folder / work.START, start.flat.numpy())
    (folder / work.EXPERIMENT).write_text(json.dumps(raw), encoding="utf-8")
    trial = _tried(plan, raw)
    found = trial.experiment.compute.model_dump(mode="json")
    (folder / work.TUNED).write_text(json.dumps(raw | {"compute": found}), encoding="utf-8")
    return sum(map(len, trains)), "; ".join(trial.lines)


def _tried(plan: Plan, raw: dict[str, Any]) -> Trial:
    """What `performance: auto` finds; once, and not by every run anew."""
    open_keys = {
        "performance": "auto",
        "engine": {"name": "inprocess"},
        "compute": {"threads": 1},
    }
    return tried(replace(plan, experiment=check_experiment(raw | open_keys, "benchmarks.peers")))
