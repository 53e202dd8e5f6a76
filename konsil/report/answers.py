"""What the models of a finished run say of test images, for the pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from konsil.data import Images
from konsil.evaluation import EVALUATION_BATCH
from konsil.federation.plan import Job, Plan
from konsil.federation.site_worker import site_folder
from konsil.ingredients.method import Method
from konsil.networks import build_network
from konsil.report.series import Series
from konsil.supermodel import GLOBAL, SuperModel
from konsil.tasks import Task
from konsil.weights import BoundNetwork, Weights


@dataclass(frozen=True)
class Answered:
    """One model's answer to some images of a site."""

    series: Series
    logits: Tensor  # [images, outputs, ...]
    asked: list[str] | None = None  # super model: who answered, image by image


class Panel:
    """The models of one finished job: best checkpoints, as they answer at a site."""

    def __init__(self, run_folder: Path, plan: Plan, job: Job) -> None:
        self.folder = run_folder / job.name
        self.title = job.method
        self.method: Method = plan.method(job)
        self.device = plan.experiment.compute.device

    @cached_property
    def _network(self) -> BoundNetwork:
        network = BoundNetwork(build_network(self.method.context.network), self.device)
        network.net.eval()
        return network

    @cached_property
    def _super_model(self) -> SuperModel:
        return SuperModel.load(self.folder / "supermodel", self.device)

    def ask(self, site: str, images: Tensor) -> list[Answered]:
        """What every role says of these images of the site."""
        answered = []
        for role in (*self.method.shared_roles, *self.method.private_roles):
            logits = self._logits(self._weights(role, site), images)
            answered.append(Answered(Series(self.title, role), logits))
        if self.method.super_model:
            said = self._super_model.answer(images)
            names = [self._super_model.facts.sites[i] for i in said.route.site.tolist()]
            special = said.route.specialist.tolist()
            asked = [n if s else GLOBAL for n, s in zip(names, special, strict=True)]
            answered.append(Answered(Series(self.title, "super"), said.logits.cpu(), asked))
        return answered

    def _weights(self, role: str, site: str) -> Weights:
        if role in self.method.shared_roles:
            return Weights.load(self.folder / "checkpoints" / "best" / f"{role}.safetensors")
        return Weights.load(site_folder(self.folder, site) / "best" / f"{role}.safetensors")

    @torch.no_grad()
    def _logits(self, weights: Weights, images: Tensor) -> Tensor:
        self._network.load(weights)
        logits: Tensor = self._network.net(images.to(self.device))
        return logits.cpu()


def ask_all(
    panels: Sequence[Panel], site: str, images: Images, index: Sequence[int]
) -> list[Answered]:
    """What every model of every job says of some of a site's images."""
    x, _ = images.batch(torch.tensor(index))
    return [answered for panel in panels for answered in panel.ask(site, x)]


def median_scores(
    panels: Sequence[Panel], site: str, images: Images, score: Callable[[Tensor, Tensor], Tensor]
) -> np.ndarray:
    """For every image of a split the median over the models of how well they answer."""
    pieces = []
    for index in torch.arange(len(images)).split(EVALUATION_BATCH):
        _, y = images.batch(index)
        answered = ask_all(panels, site, images, index.tolist())
        scores = torch.stack([score(one.logits, y) for one in answered])
        pieces.append(np.median(scores.numpy(), axis=0))
    return np.concatenate(pieces)


def at_quantiles(scores: np.ndarray, quantiles: Sequence[float]) -> list[int]:
    """The images at these quantiles of the scores, each once; ties in the order of the images."""
    order = np.argsort(scores, kind="stable")
    places = [round(q * (len(order) - 1)) for q in quantiles]
    return [int(order[place]) for place in dict.fromkeys(places)]


def score_of(task: Task) -> Callable[[Tensor, Tensor], Tensor]:
    """How well an image is answered: its Dice, or the probability of its true class.

    Accuracy is 0 or 1 an image: too coarse to tell a typical image from an easy one.
    """

    def score(logits: Tensor, y: Tensor) -> Tensor:
        if y.ndim == 1:
            return task.probabilities(logits).double().gather(1, y[:, None])[:, 0]
        return task.columns(logits, y)[task.main_metric]

    return score
