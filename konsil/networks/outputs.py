"""What a task's logits mean: probabilities, and back. Needs torch alone, as a super model does."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import interpolate

TARGETS = ("masks", "classes")


def to_probabilities(targets: str, logits: Tensor) -> Tensor:
    """Of masks each structure has a probability of its own a pixel; classes share one."""
    return torch.sigmoid(logits) if targets == "masks" else torch.softmax(logits, dim=1)


def to_logits(targets: str, probabilities: Tensor) -> Tensor:
    """Logits that have these probabilities; certainty is capped where float32 ends."""
    if targets == "masks":
        return torch.logit(probabilities, eps=1e-6)
    return probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log()


def at_size(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Maps [n, structures, ...] at another height and width, by interpolation."""
    if maps.shape[2:] == size:
        return maps
    return interpolate(maps, size, mode="bilinear", antialias=True)


def blended(targets: str, logits: Sequence[Tensor], shares: Tensor) -> Tensor:
    """h = sum_k s_k h_k: probabilities of several models mixed by `shares` [B, models], as logits.

    FedSM, Sec. 3.1.1. Gradients reach the shares.
    """
    answers = torch.stack([to_probabilities(targets, one) for one in logits], dim=1)
    shares = shares.view(*shares.shape, *[1] * (answers.dim() - 2))
    return to_logits(targets, (shares * answers).sum(dim=1))


def mixed(targets: str, logits: Sequence[Tensor], shares: Tensor) -> Tensor:
    """`blended`, and where one model has the whole share its own logits, to the bit."""
    whole = shares == 1
    result = blended(targets, logits, shares) if not whole.any(dim=1).all() else logits[0].clone()
    for column, own in enumerate(logits):
        result[whole[:, column]] = own[whole[:, column]]
    return result
