"""What a task's logits mean: probabilities, and back. Needs torch alone, as a super model does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# Of masks each structure has a probability of its own a pixel; classes share one.
TO_PROBABILITIES: dict[str, Callable[[Tensor], Tensor]] = {
    "masks": torch.sigmoid,
    "classes": lambda logits: torch.softmax(logits, dim=1),
}
# Certainty is capped where float32 ends.
TO_LOGITS: dict[str, Callable[[Tensor], Tensor]] = {
    "masks": lambda chances: torch.logit(chances, eps=1e-6),
    "classes": lambda chances: chances.clamp(min=torch.finfo(chances.dtype).tiny).log(),
}


def to_probabilities(targets: str, logits: Tensor) -> Tensor:
    """The probabilities that logits stand for, by what the task learns from."""
    return TO_PROBABILITIES[targets](logits)


def to_logits(targets: str, probabilities: Tensor) -> Tensor:
    """Logits that have these probabilities."""
    return TO_LOGITS[targets](probabilities)


def blended(targets: str, logits: Sequence[Tensor], shares: Tensor) -> Tensor:
    """h = sum_k s_k h_k: probabilities of several models mixed by `shares` [B, models], as logits.

    FedSM, Sec. 3.1.1. Gradients reach the shares.
    """
    opinions = torch.stack([to_probabilities(targets, one) for one in logits], dim=1)
    shares = shares.view(*shares.shape, *[1] * (opinions.dim() - 2))
    return to_logits(targets, (shares * opinions).sum(dim=1))
