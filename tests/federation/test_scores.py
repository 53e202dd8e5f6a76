"""What a site may say of its scores, and by which words the rest is refused."""

from typing import Any

import numpy as np
import pytest
import torch

from konsil.federation.messages import BadMessage, CalibrateReply, EvaluateReply
from konsil.federation.scores import Scores, column_names, read_scores
from konsil.tasks import Task
from konsil.tasks.classification import Classification
from konsil.tasks.segmentation import Segmentation

NAN = float("nan")
TWO, THREE = Classification(["no", "yes"]), Classification(["a", "b", "c"])
DISC_AND_CUP = Segmentation(["disc", "cup"])


@pytest.mark.parametrize(
    ("task", "names"),
    [
        (Segmentation(["disc"]), ("dice",)),
        (DISC_AND_CUP, ("dice", "dice_disc", "dice_cup")),
        (TWO, ("accuracy", "_target", "_score")),
        (THREE, ("accuracy", "_target")),
    ],
)
def test_the_columns_of_a_task(task, names):
    assert column_names(task) == names


def read(task: Task, images: int, *further: str, **said: Any) -> Scores:
    """What the server makes of what a site said."""
    return read_scores(EvaluateReply.read({"images": images} | said), images, task, further)


def test_honest_columns_pass_as_they_are_in_the_tasks_order():
    logits, masks = torch.randn(3, 2, 8, 8), torch.ones(3, 2, 8, 8)
    columns = {n: v.tolist() for n, v in DISC_AND_CUP.columns(logits, masks).items()}
    columns["asked_specialist"] = [0.0, 1.0, 1.0]
    backwards = dict(reversed(columns.items()))
    found = read(DISC_AND_CUP, 3, "asked_specialist", columns=backwards, gossip=1)
    assert found.images == 3
    assert {n: v.tolist() for n, v in found.columns.items()} == columns
    assert list(found.columns) == list(columns)
    expected = Scores(3, {n: np.array(v) for n, v in columns.items()})
    assert found.metrics(DISC_AND_CUP) == expected.metrics(DISC_AND_CUP)


GOOD = {"accuracy": [1.0, 0.0], "_target": [0.0, 1.0], "_score": [-7.5, 3]}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"accuracy": [1.0]}, "accuracy: 1 values, expected 2"),
        ({"accuracy": "10"}, "columns.accuracy: should be a valid list, not 10"),
        ({"accuracy": {"0": 1, "1": 1}}, "accuracy: should be a valid list"),
        ({"accuracy": [1.0, NAN]}, "accuracy.1: should be a finite number, not nan"),
        ({"accuracy": [1.0, None]}, "accuracy.1: should be a valid number, not None"),
        ({"accuracy": [1.0, True]}, "accuracy.1: should be a valid number, not True"),
        ({"accuracy": [1.0, [1.0]]}, "should be a valid number"),
        ({"accuracy": [1.0, 1.5]}, "accuracy: 1.5 is not from 0 to 1"),
        ({"accuracy": [-1e9, 1.0]}, "accuracy: -1000000000.0 is not from 0 to 1"),
        ({"_target": [0.0, 2.0]}, "_target: 2.0 is not from 0 to 1"),
        ({"_target": [0.5, 1.0]}, "_target: a class that is no whole number"),
        ({"_score": [0.0, float("inf")]}, "_score.1: should be a finite number, not inf"),
        ({"_score": [0.0, 10**400]}, "should be a valid number, not 1000"),
        ({"further": [0.0, 0.0]}, "expected \\['accuracy', '_target', '_score'\\]"),
    ],
)
def test_bad_columns_are_refused(changes: dict[str, Any], why: str):
    found = read(TWO, 2, columns=GOOD)
    assert {n: v.tolist() for n, v in found.columns.items()} == GOOD
    with pytest.raises(BadMessage, match=why):
        read(TWO, 2, columns=GOOD | changes)


@pytest.mark.parametrize("said", [{}, {"columns": None}, {"columns": []}, {"columns": {}}])
def test_columns_that_are_missing_are_refused(said: dict[str, Any]):
    with pytest.raises(BadMessage, match=r"columns.*(, expected \['dice'\]|valid dictionary)"):
        read(Segmentation(["disc"]), 2, **said)


def test_means_may_leave_out_what_a_site_cannot_have():
    means = {"accuracy": 0.5, "auc": 1.0 + 1e-15, "asked_specialist": 0.25}
    assert read(TWO, 2, "asked_specialist", means=means) == Scores(2, means=means)
    del means["auc"]  # images of one class
    assert read(TWO, 2, "asked_specialist", means=means) == Scores(2, means=means)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"images": None}, "images: should be a valid integer, not None"),
        ({"images": 3}, "3 images, by the plan 2"),
        ({"images": 2.0}, "images: should be a valid integer, not 2.0"),
        ({"means": [0.5]}, r"means: should be a valid dictionary, not \[0.5\]"),
        ({"means": {}}, r"means \[\], expected \['accuracy'\]"),
        ({"means": {"auc": 0.5}}, "means"),
        ({"means": {"accuracy": 0.5, "x": 1.0}}, "means"),
        ({"means": {"accuracy": NAN}}, "means.accuracy: should be a finite number, not nan"),
        ({"means": {"accuracy": 7}}, "accuracy: 7.0 is not from 0 to 1"),
    ],
)
def test_bad_means_are_refused(said: dict[str, Any], why: str):
    with pytest.raises(BadMessage, match=why):
        read_scores(EvaluateReply.read({"images": 2, "means": {"accuracy": 0.5}} | said), 2, TWO)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({}, "images: missing"),
        ({"images": 3, "sums": [0.0, 1.0]}, "3 images, by the plan 4"),
        ({"images": 4}, "sums: missing"),
        ({"images": 4, "sums": [1.0]}, "sums: 1 values, expected 2"),
        ({"images": 4, "sums": [1.0, "2"]}, "sums.1: should be a valid number, not 2"),
        ({"images": 4, "sums": [1.0, 4.5]}, "sums: 4.5 is not from 0 to 4"),
    ],
)
def test_bad_sums_are_refused(said: dict[str, Any], why: str):
    CalibrateReply(images=4, sums=[0.0, 4.0]).check(2, 4)
    with pytest.raises(BadMessage, match=why):
        CalibrateReply.read(said).check(2, 4)
