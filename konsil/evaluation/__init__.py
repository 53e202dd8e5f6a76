"""How well weights answer: per-image values first, means afterwards."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from konsil.data import Images
from konsil.tasks import Task
from konsil.weights import BoundNetwork, Weights

Columns = dict[str, np.ndarray]
EVALUATION_BATCH = 16


def batches(images: Images, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """All images of a split, in order."""
    for index in torch.arange(len(images)).split(EVALUATION_BATCH):
        yield images.batch(index, device)


@torch.no_grad()
def columns_of(
    network: BoundNetwork, weights: Weights, images: Images, task: Task, detailed: bool = False
) -> Columns:
    """Per-image values of these weights on these images."""
    network.load(weights)
    net, device = network.mode(training=False), network.flat.device
    return joined([values_of(task, net(x), y, detailed) for x, y in batches(images, device)])


def values_of(task: Task, logits: Tensor, y: Tensor, detailed: bool) -> dict[str, Tensor]:
    """What a task says of each image of a batch; `detailed`: everything that it can say."""
    return task.columns(logits, y) | (task.detailed(logits, y) if detailed else {})


def joined(pieces: list[dict[str, Tensor]]) -> Columns:
    """The columns of several batches, one under the other."""
    return {name: torch.cat([p[name] for p in pieces]).numpy() for name in pieces[0]}
