"""Classification of an image into two or more classes."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from konsil.tasks import Task, TaskSettings, task


class ClassificationSettings(TaskSettings):
    """There is one loss."""

    loss: Literal["cross_entropy"] = "cross_entropy"


@task("classification")
class Classification(Task):
    """One class an image: targets [B] count the classes from 0; of two, the last is positive.

    With two classes there is a ROC-AUC, of the difference of the two logits. FedSoup's code takes
    the micro average over the raw logits instead, which is not the ROC-AUC of the positive class:
    a class bias or a shift common to both logits, which change no image's rank, lower it.
    """

    targets = "classes"
    Settings = ClassificationSettings
    main_metric = "accuracy"
    of_all_images = ("auc",)

    def __init__(self, labels: Sequence[str], settings: TaskSettings | None = None) -> None:
        super().__init__(labels, settings)
        self.binary = self.outputs == 2
        self.metrics = ["accuracy", "auc"] if self.binary else ["accuracy"]

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """The mean cross-entropy of a batch."""
        return F.cross_entropy(logits, y.long())

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """The cross-entropy of each image."""
        return F.cross_entropy(logits, y.long(), reduction="none")

    def columns(self, logits: Tensor, y: Tensor) -> dict[str, Tensor]:
        """`accuracy` (0 or 1 an image) and `_target`; with two classes `_score`, for the AUC."""
        logits, target = logits.double().cpu(), y.long().cpu()
        accuracy = (logits.argmax(dim=1) == target).double()
        columns = {"accuracy": accuracy, "_target": target.double()}
        if self.binary:
            columns["_score"] = logits[:, 1] - logits[:, 0]
        return columns

    def summarise(self, columns: dict[str, np.ndarray]) -> dict[str, float]:
        """Accuracy, and the AUC where it exists: two classes, and images of both."""
        summary = super().summarise(columns)
        if self.binary and len(np.unique(columns["_target"])) == 2:
            # Here and not above: a second of import that only this line needs.
            from sklearn.metrics import roc_auc_score

            summary["auc"] = float(roc_auc_score(columns["_target"], columns["_score"]))
        return summary
