"""What every task has: a loss and metrics, and no idea of federations."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from torch import Tensor

from konsil.networks.outputs import to_probabilities


class Task(ABC):
    """Loss and metrics over logits and targets.

    Values are kept an image each (`columns`) and summed up over any set of images later
    (`summarise`): a site's, or all sites' together. Columns whose name starts with an underscore
    are material for a metric of the whole set, and no metric themselves.
    """

    name: str  # as the experiment file has it
    labels: list[str]
    outputs: int  # channels of the logits
    main_metric: str  # what models are compared by; higher is better
    metrics: list[str]  # what `summarise` can give, in the order of a table
    of_all_images: tuple[str, ...] = ()  # those that are no mean of single images' values

    @abstractmethod
    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """The mean loss of a batch."""

    @abstractmethod
    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """The loss of each image of a batch, [B]; their mean is `loss`, up to rounding."""

    def probabilities(self, logits: Tensor) -> Tensor:
        """Logits as probabilities, of the same shape."""
        return to_probabilities(self.name, logits)

    @abstractmethod
    def columns(self, logits: Tensor, y: Tensor) -> dict[str, Tensor]:
        """One value an image: float64 [B] on the CPU."""

    def summarise(self, columns: dict[str, np.ndarray]) -> dict[str, float]:
        """Metric -> value over the images of these columns; what they cannot give is left out."""
        return {
            metric: float(np.mean(columns[metric]))
            for metric in self.metrics
            if len(columns.get(metric, ()))
        }
