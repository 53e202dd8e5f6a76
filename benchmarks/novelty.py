"""Is a hospital that was left out noticed? Every hospital of a federation in turn.

    python -m benchmarks.novelty retina prostate pathology recipes/prostate.yaml ...

Each time FedSM trains a few rounds without one hospital, and its super model judges the test
images of all: the area under the ROC curve of novelty, images of the hospital that was left out
against those of the others, and how many of each are flagged.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

import konsil
from konsil.config import read_experiment
from konsil.data import test_images
from konsil.evaluation import batches
from konsil.federation.plan import Plan
from konsil.supermodel import SuperModel

ROUNDS = 6
SYNTHETIC = ("retina", "prostate", "pathology")


def experiment_of(name: str) -> dict[str, Any]:
    """A federation by the name of a synthetic one, or of a recipe's file."""
    raw: dict[str, Any] = {"methods": ["fedsm"], "rounds": ROUNDS, "name": "novelty"}
    if name in SYNTHETIC:
        raw["task"] = {"name": "classification" if name == "pathology" else "segmentation"}
        raw["federation"] = {"synthetic": name}
    else:
        given = read_experiment(Path(name)).model_dump(mode="json", by_alias=True)
        raw |= {key: given[key] for key in ("federation", "task")}
    raw["federation"]["image_size"] = 48
    return raw


def judged(model: SuperModel, folder: Path, site: str) -> tuple[Tensor, Tensor]:
    """The novelty of every test image of a site, and whether it is flagged."""
    routes = [model.route(x) for x, _ in batches(test_images(folder, site), model.device)]
    return tuple(torch.cat([getattr(r, n) for r in routes]) for n in ("novelty", "unfamiliar"))


def left_out(raw: dict[str, Any], everybody: Plan, site: str) -> tuple[float, float, float]:
    """AUROC, and the shares that are flagged of this hospital's images and of the others'."""
    others = [one for one in everybody.sites if one != site]
    without = raw | {"federation": raw["federation"] | {"sites": others}}
    with tempfile.TemporaryDirectory() as folder:
        model = konsil.run(without, out=Path(folder) / "run", quiet=True).super_model()
    known = [judged(model, everybody.data_folder, one) for one in others]
    inside, false = (torch.cat(column) for column in zip(*known, strict=True))
    outside, right = judged(model, everybody.data_folder, site)
    truth = [0] * len(inside) + [1] * len(outside)
    auroc = float(roc_auc_score(truth, torch.cat([inside, outside])))
    return auroc, float(right.double().mean()), float(false.double().mean())


def main(names: list[str]) -> None:
    """Print a line a hospital, and one a federation."""
    for name in names:
        raw = experiment_of(name)
        with tempfile.TemporaryDirectory() as folder:
            whole = raw | {"methods": ["fedavg"], "rounds": 1}
            everybody = konsil.run(whole, out=Path(folder) / "run", quiet=True).plan
        found = {site: left_out(raw, everybody, site) for site in everybody.sites}
        for site, (auroc, right, false) in found.items():
            print(
                f"{name} without {site}: AUROC {auroc:.3f}, flagged {right:.0%}, others {false:.1%}"
            )
        aurocs, rights, falses = zip(*found.values(), strict=True)
        print(f"{name}: AUROC {mean(aurocs):.3f} ({min(aurocs):.2f} to {max(aurocs):.2f}), "
              f"flagged {mean(rights):.0%}, others {mean(falses):.1%}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
