"""A super model as a folder of ONNX files, which onnxruntime alone can ask.

pipeline.json      routing rule, temperature, novelty, labels, sites, reading, checksums
*.onnx             one network each: global model, specialists, selector
novelty.npz        what tells images of no site, if anything does
konsil_onnx.py     asks: needs numpy, onnxruntime and Pillow
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from konsil.colours import structure_colour
from konsil.errors import StateError
from konsil.export import konsil_onnx
from konsil.export.graphs import (
    CLOSE,
    check_graph,
    check_installed,
    difference,
    names_of,
    random_images,
    store_in_16_bit,
    write_graph,
)
from konsil.networks.outputs import to_probabilities
from konsil.supermodel import NOVELTY, SELECTOR, SuperModel
from konsil.supermodel.card import model_card
from konsil.supermodel.folder import CARD

CHECKED = 6  # random images


@dataclass(frozen=True)
class Written:
    """What was written, and by how much it differs from torch at most."""

    files: int
    largest: float


def write_onnx(
    model: SuperModel, folder: Path, *, half: bool = False, images: Tensor | None = None
) -> Written:
    """Write the folder, and hold every network and every route against torch.

    `half`: weights that are 16-bit floats are stored as such. `images`: real ones, to compare on.
    """
    check_installed()
    folder.mkdir(parents=True, exist_ok=True)
    compared = random_images(model.facts.network, CHECKED)
    compared = compared if images is None else torch.cat([compared, images])
    files: dict[str, dict[str, str]] = {}
    largest = 0.0
    for name, stem in names_of(model.models).items():
        path = folder / f"{stem}.{'npz' if name == NOVELTY else 'onnx'}"
        if name == NOVELTY:
            _write_novelty(model, path)
        else:
            largest = max(largest, _write_network(model, name, path, half, compared))
        files[name] = {"file": path.name, "sha256": _digest(path)}
    text = json.dumps(pipeline_facts(model) | {"files": files}, indent=1)
    (folder / konsil_onnx.PIPELINE).write_text(text + "\n", encoding="utf-8")
    shutil.copyfile(konsil_onnx.__file__, folder / "konsil_onnx.py")
    (folder / CARD).write_text(model_card(model.facts), encoding="utf-8")
    largest = max(largest, check_pipeline(model, folder, compared))
    return Written(len(files), largest)


def pipeline_facts(model: SuperModel) -> dict[str, Any]:
    """What pipeline.json says but for the files."""
    facts = model.facts
    kept = ("task", "targets", "labels", "sites", "withheld", "routing", "temperature", "limit")
    return {
        "format": konsil_onnx.FORMAT,
        **{key: getattr(facts, key) for key in kept},
        "image_size": facts.network["image_size"],
        "in_channels": facts.network["in_channels"],
        "reading": facts.reading,
        "colours": [structure_colour(n) for n in range(len(facts.labels))],
        "plan": facts.plan,
        "provenance": facts.provenance,
    }


def _write_network(model: SuperModel, name: str, path: Path, half: bool, compared: Tensor) -> float:
    selecting = name == SELECTOR
    spec = model.facts.selector if selecting else model.facts.network
    whole = write_graph(spec, model.models[name], path, features=selecting)
    if half and not selecting:
        store_in_16_bit(path)
    return check_graph(name, whole, path, compared)


def _write_novelty(model: SuperModel, path: Path) -> None:
    known = model.models[NOVELTY]
    whiten, centres, new = (known[name].numpy() for name in ("whiten", "centres", "new"))
    np.savez(path, whiten=whiten, centres=centres, new=new)


def check_pipeline(model: SuperModel, folder: Path, images: Tensor) -> float:
    """The largest difference of an answer; StateError if one is too large, or another's."""
    pipeline = konsil_onnx.Pipeline(folder)
    logits, route = pipeline.answer(images.numpy())
    expected, targets = model.answer(images), model.facts.targets
    # probabilities: where models are mixed, logits of near certainty enlarge the last bit
    found = konsil_onnx.to_probabilities(targets, logits)
    worst = difference(found, to_probabilities(targets, expected.logits))
    apart = max(worst, difference(route.shares, expected.route.shares))
    if pipeline.asked(route) != model.asked(expected.route) or not apart <= CLOSE:
        raise StateError(
            f"{konsil_onnx.__name__.rpartition('.')[2]}.py answers otherwise than the super model, "
            f"by {apart:.2g}, or asks others; nothing was written"
        )
    return worst


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
