"""Segmentation of one or several structures, which may overlap (the disc includes the cup)."""

from collections.abc import Sequence
from math import inf
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, from_numpy

from konsil.tasks import Task, TaskSettings, task
from konsil.tasks.surfaces import surface_scores

NEVER_ZERO = 1e-5  # an empty mask that is predicted empty costs nothing


class SegmentationSettings(TaskSettings):
    """`dice` is both papers' choice: 1 - Dice, a mean over images and structures.

    `dice_ce` adds the binary cross-entropy, which converges faster.
    """

    loss: Literal["dice", "dice_ce"] = "dice_ce"


@task("segmentation")
class Segmentation(Task):
    """A yes or no a pixel and structure: masks [B, S, H, W] of zeros and ones."""

    targets = "masks"
    Settings = SegmentationSettings
    main_metric = "dice"

    def __init__(self, labels: Sequence[str], settings: TaskSettings | None = None) -> None:
        super().__init__(labels, settings)
        # One structure's Dice is the mean Dice: one column says it.
        self.suffixes = [f"_{s}" for s in labels] if len(labels) > 1 else []
        self.metrics = ["dice", *(f"dice{s}" for s in self.suffixes)]
        self.lower_is_better = ["hd95", *(f"hd95{s}" for s in self.suffixes)]
        surfaces = ["surface_dice", *(f"surface_dice{s}" for s in self.suffixes)]
        self.further = [*self.lower_is_better, *surfaces]

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """The mean loss of a batch."""
        y = y.to(logits.dtype)
        loss = dice_losses(logits, y).mean()
        if self.settings.loss == "dice_ce":
            # Not a softmax's cross-entropy: it gives each pixel to one structure, and ours overlap.
            loss = loss + F.binary_cross_entropy_with_logits(logits, y)
        return loss

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """The loss of each image."""
        y = y.to(logits.dtype)
        losses = dice_losses(logits, y).mean(dim=1)
        if self.settings.loss == "dice_ce":
            of_pixels = F.binary_cross_entropy_with_logits(logits, y, reduction="none")
            losses = losses + of_pixels.flatten(1).mean(dim=1)
        return losses

    def columns(self, logits: Tensor, y: Tensor) -> dict[str, Tensor]:
        """`dice`, the mean over structures, and with several structures `dice_<structure>`."""
        scores = dice(logits > 0, y.bool()).cpu()  # probability above 0.5
        return self._named("dice", scores)

    def detailed(self, logits: Tensor, y: Tensor) -> dict[str, Tensor]:
        """`hd95` and `surface_dice`, in pixels; and what a volume's Dice is put together from."""
        drawn, wanted = (logits > 0).cpu(), y.bool().cpu()
        distances, surfaces = surface_scores(drawn.numpy(), wanted.numpy())
        found = self._named("hd95", from_numpy(distances))
        found |= self._named("surface_dice", from_numpy(surfaces))
        areas = [mask.flatten(2).count_nonzero(dim=2) for mask in (drawn & wanted, drawn, wanted)]
        sizes = {"_overlap": areas[0], "_area": areas[1] + areas[2]}
        for name, values in sizes.items():
            each = zip(self.suffixes or [""], values.double().unbind(dim=1), strict=True)
            found |= {f"{name}{suffix}": own for suffix, own in each}
        return found

    def largest(self, column: str) -> float | None:
        """Distances and areas have no end: they are counted in pixels."""
        endless = column in self.lower_is_better or column.startswith("_")
        return inf if endless else super().largest(column)

    def _named(self, metric: str, values: Tensor) -> dict[str, Tensor]:
        """Of values [B, S] the mean over structures, and with several structures each."""
        of_structures = zip(self.suffixes, values.unbind(dim=1), strict=False)
        return {metric: values.mean(dim=1), **{f"{metric}{s}": v for s, v in of_structures}}


def dice_losses(logits: Tensor, y: Tensor) -> Tensor:
    """1 - 2 |p y| / (|p| + |y|) of probabilities p and masks y [B, S, H, W]; [B, S].

    MONAI's DiceLoss(sigmoid=True), step by step as there; that takes seconds to import, which
    every worker process would pay.
    """
    p, pixels = torch.sigmoid(logits), (2, 3)
    both = torch.sum(p * y, pixels)
    too_much, too_little = torch.sum(p, pixels) - both, torch.sum(y, pixels) - both
    union = 2 * (both + 0.5 * too_much + 0.5 * too_little)
    return 1 - (2 * both + NEVER_ZERO) / (union + NEVER_ZERO)


def dice(predicted: Tensor, true: Tensor) -> Tensor:
    """2 |A and B| / (|A| + |B|) of boolean masks [B, S, H, W], float64 [B, S]; both empty: 1.

    The same values as MONAI's DiceMetric(ignore_empty=False), which takes 9 to 13 times as long:
    7 % of evaluation instead of less than 1 % (docs/networks.md).
    """
    drawn, wanted, overlap = (
        masks.flatten(2).count_nonzero(dim=2).double()
        for masks in (predicted, true, predicted & true)
    )
    both = drawn + wanted
    return torch.where(both > 0, 2.0 * overlap / both, 1.0)
