"""How large a step is in which round: the learning rate over the rounds of a run."""

from __future__ import annotations

import math

from konsil.config import TrainingConfig

POWER = 0.9  # of the polynomial schedule, as nnU-Net has it


def rate_factor(training: TrainingConfig, round: int, first: int, last: int) -> float:
    """By what the learning rate is multiplied in this round, of those from `first` to `last`.

    In the rounds of warm-up it grows evenly and reaches 1 in the round after them; what follows
    falls from 1 towards `final_lr`. A constant rate without warm-up is exactly 1.
    """
    warm = min(training.warmup, last - first)
    done = round - first
    if done < warm:
        return (done + 1) / (warm + 1)
    # 0 in the first round after the warm-up, below 1 in the last
    return _fallen(training, (done - warm) / (last - first + 1 - warm))


def _fallen(training: TrainingConfig, progress: float) -> float:
    if training.schedule == "constant":
        return 1.0
    if training.schedule == "cosine":
        share = (1 + math.cos(math.pi * progress)) / 2
    else:
        share = (1 - progress) ** POWER
    return training.final_lr + (1 - training.final_lr) * share
