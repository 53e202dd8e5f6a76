"""What a site may answer at the end, and by which words the rest is refused."""

from typing import Any

import numpy as np
import pytest
import torch

from konsil.config import ServerConfig
from konsil.federation.answers import BadAnswer, ScoreSheet, column_names, specialist_of, sums_of
from konsil.federation.examiner import Scores, metrics_of
from konsil.federation.messages import Reply
from konsil.tasks.classification import Classification
from konsil.tasks.segmentation import Segmentation
from konsil.weights import Layout, Weights

NAN = float("nan")
LAYOUT = Layout.build([("w", (2,), "trainable", "body")])
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


def test_honest_columns_pass_as_they_are_in_the_tasks_order():
    sheet = ScoreSheet(DISC_AND_CUP, ("asked_specialist",))
    logits, masks = torch.randn(3, 2, 8, 8), torch.ones(3, 2, 8, 8)
    columns = {n: v.tolist() for n, v in DISC_AND_CUP.columns(logits, masks).items()}
    columns["asked_specialist"] = [0.0, 1.0, 1.0]
    backwards = dict(reversed(columns.items()))
    checked = sheet.checked({"columns": backwards, "gossip": 1}, images=3)
    assert checked == {"columns": columns}
    assert list(checked["columns"]) == list(columns)
    found = Scores.of(checked)
    assert found.images == 3
    expected = metrics_of({n: np.array(v) for n, v in columns.items()}, DISC_AND_CUP)
    assert found.metrics(DISC_AND_CUP) == expected


GOOD = {"accuracy": [1.0, 0.0], "_target": [0.0, 1.0], "_score": [-7.5, 3]}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"accuracy": [1.0]}, "accuracy: 1 values, expected 2"),
        ({"accuracy": "10"}, "accuracy: 10 values, expected 2"),
        ({"accuracy": {"0": 1, "1": 1}}, "values, expected 2"),
        ({"accuracy": [1.0, NAN]}, "accuracy: nan is no finite number"),
        ({"accuracy": [1.0, None]}, "accuracy: None is no finite number"),
        ({"accuracy": [1.0, True]}, "accuracy: True is no finite number"),
        ({"accuracy": [1.0, [1.0]]}, "is no finite number"),
        ({"accuracy": [1.0, 1.5]}, "accuracy: 1.5 is not from 0 to 1"),
        ({"accuracy": [-1e9, 1.0]}, "accuracy: -1000000000.0 is not from 0 to 1"),
        ({"_target": [0.0, 2.0]}, "_target: 2.0 is not from 0 to 1"),
        ({"_target": [0.5, 1.0]}, "_target: a class that is no whole number"),
        ({"_score": [0.0, float("inf")]}, "_score: inf is no finite number"),
        ({"_score": [0.0, 10**400]}, "is no finite number"),
        ({"further": [0.0, 0.0]}, "expected \\['accuracy', '_target', '_score'\\]"),
    ],
)
def test_bad_columns_are_refused(changes: dict[str, Any], why: str):
    sheet = ScoreSheet(TWO, ())
    assert sheet.checked({"columns": GOOD}, 2) == {"columns": GOOD}
    with pytest.raises(BadAnswer, match=why):
        sheet.checked({"columns": GOOD | changes}, 2)


@pytest.mark.parametrize("facts", [{}, {"columns": None}, {"columns": []}, {"columns": {}}])
def test_columns_that_are_missing_are_refused(facts: dict[str, Any]):
    with pytest.raises(BadAnswer, match=r"columns .*, expected \['dice'\]"):
        ScoreSheet(Segmentation(["disc"]), ()).checked(facts, 2)


def test_means_may_leave_out_what_a_site_cannot_have():
    sheet = ScoreSheet(TWO, ("asked_specialist",))
    means = {"accuracy": 0.5, "auc": 1.0 + 1e-15, "asked_specialist": 0.25}
    assert sheet.checked({"means": means, "images": 2}, 2) == {"means": means, "images": 2}
    del means["auc"]  # images of one class
    assert sheet.checked({"means": means, "images": 2}, 2) == {"means": means, "images": 2}


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"means": {"accuracy": 0.5}}, "None images, by the plan 2"),
        ({"means": {"accuracy": 0.5}, "images": 3}, "3 images, by the plan 2"),
        ({"means": {"accuracy": 0.5}, "images": 2.0}, "2.0 images, by the plan 2"),
        ({"means": [0.5], "images": 2}, r"means \[0.5\], expected"),
        ({"means": {}, "images": 2}, r"means \[\], expected \['accuracy'\]"),
        ({"means": {"auc": 0.5}, "images": 2}, "means"),
        ({"means": {"accuracy": 0.5, "x": 1.0}, "images": 2}, "means"),
        ({"means": {"accuracy": NAN}, "images": 2}, "accuracy: nan is no finite number"),
        ({"means": {"accuracy": 7}, "images": 2}, "accuracy: 7 is not from 0 to 1"),
    ],
)
def test_bad_means_are_refused(facts: dict[str, Any], why: str):
    with pytest.raises(BadAnswer, match=why):
        ScoreSheet(TWO, ()).checked(facts, 2)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({}, "None images"),
        ({"images": 3, "sums": [0.0, 1.0]}, "3 images, by the plan 4"),
        ({"images": 4}, "sums: None values, expected 2"),
        ({"images": 4, "sums": [1.0]}, "sums: 1 values, expected 2"),
        ({"images": 4, "sums": [1.0, "2"]}, "sums: 2 is no finite number"),
        ({"images": 4, "sums": [1.0, 4.5]}, "sums: 4.5 is not from 0 to 4"),
    ],
)
def test_bad_sums_are_refused(facts: dict[str, Any], why: str):
    assert sums_of({"images": 4, "sums": [0.0, 4.0]}, 2, 4) == [0.0, 4.0]
    with pytest.raises(BadAnswer, match=why):
        sums_of(facts, 2, 4)


def collected(parts: dict[str, Weights], **facts: Any) -> Reply:
    return Reply("collect", "fedsm/seed0", "north", 3, "plan0", parts, facts)


def test_a_specialist_is_checked_like_an_upload():
    config = ServerConfig(max_rms=10)
    good = Weights(LAYOUT, torch.tensor([1.0, 2.0]))
    assert specialist_of(collected({"personal": good}), LAYOUT, config) is good
    assert specialist_of(collected({}, withheld=True), LAYOUT, config) is None
    other = Weights.zeros(Layout.build([("v", (2,), "trainable", "body")]))
    bad = {
        r"parts \['global'\], expected \['personal'\]": {"global": good},
        r"parts \[\], expected": {},
        r"personal: v \(2,\) where w": {"personal": other},
        "personal: values that are not finite": {"personal": good * NAN},
        "personal: root mean square": {"personal": good * 100.0},
    }
    for why, parts in bad.items():
        with pytest.raises(BadAnswer, match=why):
            specialist_of(collected(parts, withheld="no"), LAYOUT, config)
