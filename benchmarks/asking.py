"""What it costs to ask a super model: against one network on the same images, and to load it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

import konsil
from benchmarks.measure import Figure, Goal, Outcome, Ratio, Side, interleave, warm_up
from benchmarks.setup import Setup
from konsil.config import PLAIN
from konsil.data import test_images
from konsil.federation.compute import settings_kept
from konsil.supermodel import GLOBAL, SuperModel

IMAGES = 64  # a site, of which a quarter is asked about
OFTEN = 5  # times a turn: one batch is answered in a fraction of a second


def asking(setup: Setup) -> Outcome:
    """A mixed batch through a super model / through one U-Net; loading it / reading its tensors."""
    outcome = Outcome()
    for pixels in dict.fromkeys((setup.scale.small_size, setup.scale.size)):
        folder, x = trained(setup, pixels)
        _answers(setup, outcome, SuperModel.load(folder), x)
    _loading(setup, outcome, folder)
    return outcome


def _answers(setup: Setup, outcome: Outcome, model: SuperModel, x: Tensor) -> None:
    asked = sorted(set(model.asked(model.route(x))))
    with settings_kept():
        torch.set_num_threads(1)
        one_each = model.with_gamma(0.5)
        sides: dict[str, Side] = {
            "one U-Net": _timed(lambda: model.logits_of(GLOBAL, x)),
            "threshold": _timed(lambda: one_each.answer(x)),
            "as trained": _timed(lambda: model.answer(x)),
        }
        warm_up(sides, setup.progress)
        times = interleave(sides, setup.scale.repeats, setup.progress)
        pixels = f"{x.shape[-1]} x {x.shape[-1]}"
        what = f"{len(x)} images of six sites, mixed, {pixels}: the super model, a model an image"
        what += " / one U-Net"
        ratio = Ratio.of(times["threshold"], times["one U-Net"])
        outcome.figures.append(Figure(what, ratio, Goal("at most", 1.25)))
        passes = float((model.route(x).shares > 0).sum()) / len(x)
        what = (
            f"the same by the rule of training, {passes:.2f} models an image / one U-Net, {pixels}"
        )
        outcome.figures.append(Figure(what, Ratio.of(times["as trained"], times["one U-Net"])))
    outcome.notes.append(f"{pixels}: asked {', '.join(asked)}")


def _loading(setup: Setup, outcome: Outcome, folder: Path) -> None:
    with settings_kept():
        torch.set_num_threads(1)
        files = sorted(folder.glob("*.safetensors"))
        sides: dict[str, Side] = {
            "load": _timed(lambda: SuperModel.load(folder)),
            "read": _timed(lambda: [_read(file) for file in files]),
        }
        warm_up(sides, setup.progress)
        times = interleave(sides, setup.scale.repeats, setup.progress)
        what = "loading a super model of six sites / reading its tensors"
        outcome.figures.append(
            Figure(what, Ratio.of(times["load"], times["read"]), Goal("at most", 2))
        )
    size = sum(file.stat().st_size for file in files) / 1e6
    outcome.notes.append(f"{len(files)} files, {size:.0f} MB; 1 thread")


def _read(file: Path) -> list[Tensor]:
    """A file's tensors in memory; safetensors alone only maps them."""
    return [tensor.clone() for tensor in load_file(file).values()]


def _timed(work: Callable[[], Any]) -> Side:
    def side() -> float:
        began = perf_counter()
        for _ in range(OFTEN):
            work()
        return perf_counter() - began

    return side


def trained(setup: Setup, pixels: int) -> tuple[Path, Tensor]:
    """A super model of six sites after one round, and test images of all of them, mixed."""
    images = dict.fromkeys(setup.scale.images, IMAGES)
    experiment = {
        "name": "asking",
        "federation": {
            "synthetic": "retina",
            "images": images,
            "image_size": pixels,
            "cache": str(setup.folder / "cache"),
        },
        "network": setup.scale.network,
        "training": PLAIN | {"batch_size": 8},
        "methods": ["fedsm"],
        "rounds": 1,
    }
    out = setup.folder / f"asking-{pixels}"
    result = konsil.run(experiment, out=out, quiet=True, resume=out.exists())
    data = result.plan.data_folder
    x = torch.cat([test_images(data, site).images for site in result.plan.sites]).float() / 255
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return result.folder / "fedsm" / "seed0" / "supermodel", x[order]
