"""Which round's model counts: the rule of `training.keep`, the same at the server and at sites.

The best of many rounds on a few validation images is noise in part: with thirty slices of three
patients the last round of a falling learning rate can be the better choice (docs/recipe.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from konsil.config import TrainingConfig
from konsil.weights import Weights, mix

MEMORY = 0.8  # of `smoothed`: how much of the mean of the scores before stays
# So many scores are a mean. The first round's alone would be one score, lucky or not, and stand
# for ever against the means of later ones.
ENOUGH = 5


def kept(
    training: TrainingConfig, old: Weights | None, new: Weights, scores: Sequence[float]
) -> Weights:
    """The model that counts after one more round; `scores` are all so far, the last is `new`'s."""
    if old is None or training.keep == "last":
        return new
    if training.keep == "ema":
        # A plain mean until that is as long as the memory: else the first rounds would weigh most.
        # What was scored first is the model before any training: it is left out.
        memory = min(training.ema, 1 - 1 / (len(scores) - 1))
        return mix([(memory, old), (1 - memory, new)])
    marks = smoothed(scores)[ENOUGH - 1 :] if training.keep == "smoothed" else scores
    if not marks:
        return new
    return new if marks[-1] >= max(marks) else old  # of equals the later, which saw more


def smoothed(scores: Sequence[float]) -> list[float]:
    """Running means that forget: m <- 0.8 m + 0.2 score, corrected for its beginning at 0."""
    mean, means = 0.0, []
    for number, score in enumerate(scores, start=1):
        mean = MEMORY * mean + (1 - MEMORY) * score
        means.append(mean / (1 - MEMORY**number))
    return means
