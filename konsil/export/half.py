"""Weights in 16 bit: half the size, and what that costs.

The global model and the specialists are rounded to float16. What is small and tender stays as it
is: norm layers, running statistics, what tells images of no site, and the selector, so that every
image is answered by whom it was answered by before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from konsil.networks.outputs import to_probabilities
from konsil.supermodel import NOVELTY, SELECTOR, SuperModel
from konsil.weights import Weights

if TYPE_CHECKING:
    from konsil.data.origin import FileSource

IMAGES = 16  # random ones, where there are no real ones
Report = Callable[[str, int, int], None]


def in_16_bit(weights: Weights) -> frozenset[str]:
    """The entries that are stored in 16 bit: trained, of no norm layer, within float16's range."""
    most = torch.finfo(torch.float16).max
    return frozenset(
        entry.name
        for entry in weights.layout.entries
        if entry.kind == "trainable"
        and entry.group != "norm"
        and bool((weights[entry.name].abs() <= most).all())
    )


def rounded(weights: Weights) -> Weights:
    """These weights as they come back from 16 bit."""
    result = weights.clone()
    for name in in_16_bit(weights):
        result[name].copy_(weights[name].half().float())
    return result


def halved(model: SuperModel) -> SuperModel:
    """The super model with rounded models; selector and novelty are the very same."""
    kept = (SELECTOR, NOVELTY)
    models = {n: w if n in kept else rounded(w) for n, w in model.models.items()}
    return SuperModel(model.facts, models, model.device)


def halves_of(model: SuperModel) -> dict[str, frozenset[str]]:
    """Which entries of each model a folder stores in 16 bit."""
    names = [name for name in model.models if name not in (SELECTOR, NOVELTY)]
    return {name: in_16_bit(model.models[name]) for name in names}


@dataclass(frozen=True)
class Loss:
    """What 16 bit cost."""

    images: int
    largest: float | None = None  # difference of two probabilities, on random images
    metric: str = ""  # on labelled images: which, its mean over sites before and after
    before: float = 0.0
    after: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain data, as `provenance` has it."""
        if self.largest is not None:
            return {"random_images": self.images, "largest_difference": self.largest}
        scores = {"metric": self.metric, "before": self.before, "after": self.after}
        return {"labelled_images": self.images, **scores}

    def __str__(self) -> str:
        if self.largest is not None:
            return (
                f"probabilities differ by {self.largest:.2g} at most on {self.images} random "
                "images (give --data to measure it on labelled ones)"
            )
        return (
            f"{self.metric} {self.before:.4f} before and {self.after:.4f} after "
            f"({self.after - self.before:+.1e}), the mean over sites of {self.images} labelled "
            "images"
        )


@torch.no_grad()
def loss_on_random(model: SuperModel, small: SuperModel) -> Loss:
    """The largest difference of a probability that any of the models gives."""
    from konsil.export.graphs import random_images

    images, targets = random_images(model.facts.network, IMAGES), model.facts.targets
    worst = 0.0
    for name in halves_of(model):
        ours, theirs = (
            to_probabilities(targets, m.logits_of(name, images)) for m in (model, small)
        )
        worst = max(worst, float((ours - theirs).abs().max()))
    return Loss(IMAGES, largest=worst)


def loss_on_files(
    model: SuperModel,
    small: SuperModel,
    source: FileSource,
    report: Report = lambda what, done, total: None,
) -> Loss:
    """The main score on every labelled image of a federation file, before and after."""
    from konsil.config import TaskConfig
    from konsil.evaluation.files import score_files
    from konsil.tasks import make_task

    metric = make_task(TaskConfig(name=model.facts.task), model.facts.labels).main_metric
    means, images = [], 0
    for one in (model, small):
        scores = score_files(one, source, report=report)
        images = sum(site.images for site in scores)
        means.append(float(np.mean([site.scores[metric] for site in scores])))
    return Loss(images, None, metric, *means)


def with_loss(small: SuperModel, loss: Loss) -> SuperModel:
    """The super model whose facts say that it is rounded, and what that cost."""
    provenance = small.facts.provenance | {"float16": loss.to_json()}
    return SuperModel(replace(small.facts, provenance=provenance), small.models, small.device)
