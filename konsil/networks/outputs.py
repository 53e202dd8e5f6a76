"""What a task's logits mean: probabilities, and back. Needs torch alone, as a super model does."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def to_probabilities(task: str, logits: Tensor) -> Tensor:
    """Segmentation: each structure's own probability a pixel. Classification: of every class."""
    return torch.sigmoid(logits) if task == "segmentation" else torch.softmax(logits, dim=1)


def to_logits(task: str, probabilities: Tensor) -> Tensor:
    """Logits that have these probabilities; certainty is capped where float32 ends."""
    if task == "segmentation":
        return torch.logit(probabilities, eps=1e-6)
    return probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log()


def blended(task: str, logits: Sequence[Tensor], shares: Tensor) -> Tensor:
    """h = sum_k s_k h_k: probabilities of several models mixed by `shares` [B, models], as logits.

    FedSM, Sec. 3.1.1. Gradients reach the shares.
    """
    opinions = torch.stack([to_probabilities(task, one) for one in logits], dim=1)
    shares = shares.view(*shares.shape, *[1] * (opinions.dim() - 2))
    return to_logits(task, (shares * opinions).sum(dim=1))
