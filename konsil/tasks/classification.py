"""Classification of an image into two or more classes."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from konsil.tasks import Task, TaskSettings, task

BINS = 10  # of the expected calibration error
CALIBRATION_ERROR = "calibration_error"


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
    whole = ("_target", "_predicted")

    def __init__(self, labels: Sequence[str], settings: TaskSettings | None = None) -> None:
        super().__init__(labels, settings)
        self.binary = self.outputs == 2
        self.metrics = ["accuracy", "auc"] if self.binary else ["accuracy"]
        of_the_ill = ["sensitivity", "specificity"] if self.binary else []
        self.further = ["balanced_accuracy", *of_the_ill, "f1", CALIBRATION_ERROR]
        self.lower_is_better = [CALIBRATION_ERROR]
        self.of_all_images = (*self.metrics[1:], *self.further)

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

    def detailed(self, logits: Tensor, y: Tensor) -> dict[str, Tensor]:
        """`_predicted` and `_confidence`: the class that an image gets, and its probability."""
        sure, said = F.softmax(logits.double(), dim=1).cpu().max(dim=1)
        return {"_predicted": said.double(), "_confidence": sure}

    def largest(self, column: str) -> float | None:
        """The class that was named is one of them, and how surely a probability."""
        known = {"_predicted": self.outputs - 1, "_confidence": 1}
        return known.get(column, super().largest(column))

    def summarise(self, columns: dict[str, np.ndarray]) -> dict[str, float]:
        """Accuracy, and the AUC where it exists: two classes, and images of both."""
        summary = super().summarise(columns)
        if self.binary and len(np.unique(columns["_target"])) == 2:
            # Here and not above: a second of import that only this line needs.
            from sklearn.metrics import roc_auc_score

            summary["auc"] = float(roc_auc_score(columns["_target"], columns["_score"]))
        if len(columns.get("_predicted", ())):
            summary |= self._of_classes(columns)
        return summary

    def _of_classes(self, columns: dict[str, np.ndarray]) -> dict[str, float]:
        """What there is of `further`: each needs images of the classes that it speaks of."""
        target, said = columns["_target"].astype(int), columns["_predicted"].astype(int)
        right = target == said
        found = {k: float(right[target == k].mean()) for k in range(self.outputs) if k in target}
        scores = {"balanced_accuracy": float(np.mean(list(found.values())))}
        names = {1: "sensitivity", 0: "specificity"} if self.binary else {}
        scores |= {name: found[k] for k, name in names.items() if k in found}
        wanted = [1] if self.binary else sorted(found)
        scores["f1"] = float(np.mean([_f1(target == k, said == k) for k in wanted]))
        scores[CALIBRATION_ERROR] = expected_calibration_error(columns["_confidence"], right)
        return scores


def _f1(true: np.ndarray, said: np.ndarray) -> float:
    """2 TP / (2 TP + FP + FN); of a class that neither is nor is named anywhere 0."""
    either = true.sum() + said.sum()
    return float(2 * (true & said).sum() / either) if either else 0.0


def expected_calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """Mean over ten bins of |how sure - how often right|, weighted by their images."""
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    sums = [np.bincount(place, weights=v, minlength=BINS) for v in (confidence, right)]
    return float(np.abs(sums[0] - sums[1]).sum() / len(right))
