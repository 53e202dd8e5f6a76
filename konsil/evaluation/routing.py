"""How well a super model answers, and the gamma that validation images choose for it."""

from collections.abc import Sequence

import numpy as np
import torch

from konsil.data import Images
from konsil.evaluation import Columns, batches, joined
from konsil.supermodel import GLOBAL, SuperModel
from konsil.tasks import Task

# 0 always asks a specialist, 1 never does; between them denser where selectors are sure.
GAMMAS = (*(round(0.05 * i, 2) for i in range(20)), 0.97, 0.99, 0.999, 1.0)


def routed_columns(model: SuperModel, images: Images, task: Task, site: str) -> Columns:
    """Per-image values of the super model, and of its selector for images of `site`."""
    own = model.facts.sites.index(site) if site in model.facts.sites else -1
    pieces = []
    for x, y in batches(images, model.device):
        answer = model.answer(x)
        columns = task.columns(answer.logits, y)
        if model.facts.routing == "threshold":  # other selectors name models, not sites
            columns["selector_accuracy"] = (answer.route.site == own).double().cpu()
        columns["asked_specialist"] = answer.route.specialist.double().cpu()
        pieces.append(columns)
    return joined(pieces)


def routed_names(routing: str) -> tuple[str, ...]:
    """The columns of `routed_columns` beside the task's own."""
    return (*(("selector_accuracy",) if routing == "threshold" else ()), "asked_specialist")


def gamma_sums(
    model: SuperModel, images: Images, task: Task, gammas: Sequence[float]
) -> list[float]:
    """For every gamma the sum of validation scores. Whatever gamma is, an image is answered by
    the selector's first choice or by the global model: two passes serve the whole grid."""
    confidence, specialist, general = [], [], []
    for x, y in batches(images, model.device):
        route = model.route(x)
        names = [model.answering[i] for i in route.site.tolist()]
        confidence.append(route.confidence.cpu())
        specialist.append(task.columns(model.logits_by(names, x), y)[task.main_metric])
        general.append(task.columns(model.logits_of(GLOBAL, x), y)[task.main_metric])
    sure, special, plain = (torch.cat(p).numpy() for p in (confidence, specialist, general))
    return [float(np.where(sure > gamma, special, plain).sum()) for gamma in gammas]


def choose_gamma(gammas: Sequence[float], sums: dict[str, list[float]], n: dict[str, int]) -> float:
    """The gamma with the best validation mean over all images, the largest of equals.

    Only those count whose plain mean of sites is not below the global model's either (gamma = 1 is
    the global model itself), so that on validation the super model is below it in neither mean.
    """
    pooled = np.sum([sums[s] for s in sums], axis=0) / sum(n.values())
    by_site = np.mean([np.array(sums[s]) / n[s] for s in sums], axis=0)
    last = gammas.index(1.0)
    allowed = [i for i in range(len(gammas)) if by_site[i] >= by_site[last]]
    return gammas[max(allowed, key=lambda i: (pooled[i], gammas[i]))]
