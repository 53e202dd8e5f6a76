"""What the models of a finished run say of test images, for the pictures."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from konsil.data import Images
from konsil.evaluation import batches
from konsil.evaluation.results import Series
from konsil.federation.plan import Job, Plan
from konsil.federation.site_worker import site_folder
from konsil.ingredients.method import Method
from konsil.networks import build_network
from konsil.supermodel import SuperModel
from konsil.tasks import Task
from konsil.weights import BoundNetwork, Weights


@dataclass(frozen=True)
class Answered:
    """One model's answer to some images of a site."""

    series: Series
    logits: Tensor  # [images, outputs, ...]
    asked: list[str] | None = None  # super model: who answered, image by image


class Panel:
    """The models of one finished job: best checkpoints, as they answer at a site.

    `only`: of these roles alone, where the others' models are not wanted or not here.
    """

    def __init__(
        self, run_folder: Path, plan: Plan, job: Job, only: Collection[str] | None = None
    ) -> None:
        self.folder = run_folder / job.name
        self.title = job.method
        self.method: Method = plan.method(job)
        self.device = plan.experiment.compute.device
        roles = [*self.method.shared_roles, *self.method.private_roles]
        roles += ["super"] if self.method.super_model else []
        self.roles = [role for role in roles if only is None or role in only]

    def file(self, role: str, site: str) -> Path:
        """Where the weights of a role lie that answers at this site."""
        if role == "super":
            return self.folder / "supermodel" / "model.json"
        shared = role in self.method.shared_roles
        home = self.folder / "checkpoints" if shared else site_folder(self.folder, site)
        return home / "best" / f"{role}.safetensors"

    def is_here(self, site: str) -> bool:
        """Whether all its models are: a copy of a run may have none of them."""
        return all(self.file(role, site).exists() for role in self.roles)

    @cached_property
    def _network(self) -> BoundNetwork:
        network = BoundNetwork(build_network(self.method.context.network), self.device)
        network.mode(training=False)
        return network

    @cached_property
    def _super_model(self) -> SuperModel:
        return SuperModel.load(self.folder / "supermodel", self.device)

    @torch.no_grad()
    def ask(self, site: str, images: Tensor) -> list[Answered]:
        """What every role says of these images of the site."""
        answered = []
        for role in self.roles:
            if role == "super":
                said = self._super_model.answer(images)
                asked = self._super_model.asked(said.route)
                answered.append(Answered(Series(self.title, role), said.logits.cpu(), asked))
            else:
                self._network.load(Weights.load(self.file(role, site)))
                logits = self._network.net(images.to(self.device)).cpu()
                answered.append(Answered(Series(self.title, role), logits))
        return answered


def ask_all(panels: Sequence[Panel], site: str, images: Tensor) -> list[Answered]:
    """What every model of every job says of some of a site's images."""
    return [answered for panel in panels for answered in panel.ask(site, images)]


def median_scores(panels: Sequence[Panel], site: str, images: Images, task: Task) -> np.ndarray:
    """For every image of a split the median over the models of how well they answer."""
    pieces = []
    for x, y in batches(images, torch.device("cpu")):
        scores = torch.stack([_scores(task, one.logits, y) for one in ask_all(panels, site, x)])
        pieces.append(np.median(scores.numpy(), axis=0))
    return np.concatenate(pieces)


def _scores(task: Task, logits: Tensor, y: Tensor) -> Tensor:
    """How well each image is answered: its Dice, or the probability of its true class.

    Accuracy is 0 or 1 an image: too coarse to tell a typical image from an easy one.
    """
    if y.ndim == 1:
        return task.probabilities(logits).double().gather(1, y[:, None])[:, 0]
    return task.columns(logits, y)[task.main_metric]


def at_quantiles(scores: np.ndarray, quantiles: Sequence[float]) -> list[int]:
    """The images at these quantiles of the scores, each once; ties in the order of the images."""
    order = np.argsort(scores, kind="stable")
    places = [round(q * (len(order) - 1)) for q in quantiles]
    return [int(order[place]) for place in dict.fromkeys(places)]
