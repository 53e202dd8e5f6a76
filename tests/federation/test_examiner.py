from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from konsil.errors import RoundFailed
from konsil.evaluation import Columns
from konsil.evaluation.results import CLIENT_AVERAGE, GLOBAL
from konsil.federation.assembly import Assembly
from konsil.federation.examiner import (
    Examiner,
    check_scores,
    column_names,
    metrics_of,
    summary,
)
from konsil.federation.messages import (
    BadMessage,
    CollectReply,
    CompareReply,
    EvaluateReply,
    EvaluateRequest,
    Failure,
    Reply,
    Request,
)
from konsil.federation.plan import Plan
from konsil.tasks import Task
from konsil.tasks.classification import Classification
from konsil.tasks.segmentation import Segmentation
from konsil.weights import Layout, Weights

SCORES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def reply_of(columns: Columns) -> EvaluateReply:
    plain = {name: values.tolist() for name, values in columns.items()}
    return EvaluateReply(images=len(next(iter(plain.values()))), columns=plain)


def numbers(columns: dict[str, Columns], task: object) -> dict[tuple[str, str], tuple[float, int]]:
    said = {site: reply_of(c) for site, c in columns.items()}
    rows = summary(said, task)  # type: ignore[arg-type]
    found = {(site, metric): (value, n) for site, metric, value, n in rows}
    assert len(found) == len(rows)
    return found


def test_means_by_hand():
    columns = {"a": {"dice": np.array([1.0, 0.0])}, "b": {"dice": np.array([0.5] * 6)}}
    found = numbers(columns, Segmentation(["disc"]))
    assert found == {
        ("a", "dice"): (0.5, 2),
        ("b", "dice"): (0.5, 6),
        (CLIENT_AVERAGE, "dice"): (0.5, 8),
        (GLOBAL, "dice"): (0.5, 8),
    }
    columns["a"]["dice"][:] = 1.0
    found = numbers(columns, Segmentation(["disc"]))
    assert found[CLIENT_AVERAGE, "dice"] == (0.75, 8)  # (1 + .5) / 2: every hospital alike
    assert found[GLOBAL, "dice"] == (0.625, 8)  # (2 * 1 + 6 * .5) / 8: every image alike


@settings(max_examples=40, deadline=None)
@given(st.lists(SCORES, min_size=1, max_size=5))
def test_client_average_is_plain_and_global_is_weighted_by_images(scores: list[list[float]]):
    columns = {f"site{i}": {"dice": np.array(s)} for i, s in enumerate(scores)}
    found = numbers(columns, Segmentation(["disc"]))
    means = np.array([np.mean(s) for s in scores])
    sizes = np.array([len(s) for s in scores])
    assert found[CLIENT_AVERAGE, "dice"][0] == pytest.approx(means.mean(), abs=1e-12)
    assert found[GLOBAL, "dice"][0] == pytest.approx(means @ sizes / sizes.sum(), abs=1e-12)
    assert found[GLOBAL, "dice"][1] == sizes.sum()


def test_every_structure_and_further_column_has_its_mean():
    columns = {
        "a": {
            "dice": np.array([0.5]),
            "dice_disc": np.array([0.7]),
            "dice_cup": np.array([0.3]),
            "selector_accuracy": np.array([1.0]),
        }
    }
    found = numbers(columns, Segmentation(["disc", "cup"]))
    assert {metric for _, metric in found} == set(columns["a"])
    assert found["a", "dice_cup"] == (0.3, 1)


def binary(target: list[int], score: list[float]) -> Columns:
    right = [float((s > 0) == bool(t)) for t, s in zip(target, score, strict=True)]
    return {
        "accuracy": np.array(right),
        "_target": np.array(target, dtype=float),
        "_score": np.array(score),
    }


def test_auc_is_left_out_where_a_site_has_one_class():
    columns = {
        "both": binary([0, 1, 1, 0], [-1.0, 2.0, -3.0, -2.0]),
        "ill": binary([1, 1], [0.5, -0.5]),
    }
    found = numbers(columns, Classification(["healthy", "ill"]))
    assert ("ill", "auc") not in found
    assert found["both", "auc"][0] == 0.5  # 2 of 4 pairs in order
    assert found[CLIENT_AVERAGE, "auc"][0] == 0.5  # of the sites that have one
    pooled = {n: [v for c in columns.values() for v in c[n]] for n in ("_target", "_score")}
    assert found[GLOBAL, "auc"][0] == roc_auc_score(pooled["_target"], pooled["_score"])
    assert not any(metric.startswith("_") for _, metric in found)


def test_auc_over_all_images_may_exist_where_no_site_has_one():
    columns = {"ill": binary([1, 1], [2.0, 1.0]), "healthy": binary([0], [0.0])}
    found = numbers(columns, Classification(["healthy", "ill"]))
    assert found[GLOBAL, "auc"] == (1.0, 3)
    assert (CLIENT_AVERAGE, "auc") not in found


def test_sites_that_send_means_only():
    """Means of images are pooled by their number; a common AUC needs single images."""
    task = Classification(["no", "yes"])
    scores = {
        "a": EvaluateReply(images=2, means={"accuracy": 1.0, "auc": 0.9}),
        "b": EvaluateReply(images=6, means={"accuracy": 0.5, "auc": 0.7}),
    }
    found = {(site, metric): value for site, metric, value, _ in summary(scores, task)}
    assert found[GLOBAL, "accuracy"] == pytest.approx(0.625)
    assert found[CLIENT_AVERAGE, "auc"] == pytest.approx(0.8)
    assert (GLOBAL, "auc") not in found


# --- who answers --------------------------------------------------------------------------------


class Voices:
    """An engine whose sites say what a test wants them to, the last of the roster first."""

    def __init__(self, answers: Callable[[Request], list[Reply | Failure]]) -> None:
        self.answers = answers

    def exchange(
        self, requests: Sequence[Request], deadline: float | None = None
    ) -> Iterator[Reply | Failure]:
        for request in reversed(requests):
            yield from self.answers(request)

    def close(self) -> None:
        """Nothing is open."""


def reply_to(request: Request, **changes: Any) -> Reply:
    return Reply(**(vars(request) | {"body": CollectReply()} | changes))


def asked(plan: Plan, answers: Callable[[Request], list[Reply | Failure]]) -> dict[str, str]:
    examiner = Examiner(plan, plan.jobs[0], Voices(answers))
    body = EvaluateRequest(role="global", split="val", checkpoint="best")
    return examiner.ask("evaluate", {}, body, lambda reply: reply.site.upper())


def test_answers_are_read_in_the_rosters_order(make_plan):
    answers = asked(make_plan(), lambda request: [reply_to(request)])
    assert list(answers.items()) == [("north", "NORTH"), ("south", "SOUTH")]


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (lambda r: [], "site (north|south) did not answer in evaluate"),
        (lambda r: [Failure(r.site, "power cut")], r"did not answer in evaluate \(power cut\)"),
        (lambda r: [reply_to(r)] * 2, "answered in evaluate without being asked"),
        (lambda r: [reply_to(r, site="east")], "site east answered in evaluate without being"),
        (lambda r: [reply_to(r, kind="collect")], "it answers collect; this is evaluate"),
        (lambda r: [reply_to(r, job="fedsm/seed0")], "it is for fedsm/seed0, round 3; this is"),
        (lambda r: [reply_to(r, round=1)], "round 1; this is fedavg/seed0, round 3"),
        (lambda r: [reply_to(r, plan="other")], "plan other, not "),
    ],
)
def test_who_does_not_answer_what_was_asked_is_named(make_plan, answers, why):
    with pytest.raises(RoundFailed, match=f"fedavg/seed0: .*{why}.*then go on with the run"):
        asked(make_plan(), answers)


# --- specialists --------------------------------------------------------------------------------

LAYOUT = Layout.build([("w", (2,), "trainable", "body")])


def test_a_specialist_is_checked_like_an_upload(make_plan):
    plan = make_plan(server={"max_rms": 10})
    assembly = Assembly(plan, plan.jobs[0], Voices(lambda request: []))

    def collected(parts: dict[str, Weights], **said: Any) -> Weights | None:
        header = {"kind": "collect", "job": "fedsm/seed0", "site": "north", "round": 3}
        reply = Reply.from_parts(header | {"plan": "plan0", "body": said}, parts)
        return assembly._specialist(reply, LAYOUT)

    good = Weights(LAYOUT, torch.tensor([1.0, 2.0]))
    assert collected({"personal": good}) is good
    assert collected({}, withheld=True) is None
    with pytest.raises(BadMessage, match="withheld: should be a valid boolean, not no"):
        collected({}, withheld="no")
    other = Weights.zeros(Layout.build([("v", (2,), "trainable", "body")]))
    bad = {
        r"parts \['global'\], expected \['personal'\]": {"global": good},
        r"parts \[\], expected": {},
        r"personal: v \(2,\) where w": {"personal": other},
        "personal: values that are not finite": {"personal": good * float("nan")},
        "personal: root mean square": {"personal": good * 100.0},
    }
    for why, parts in bad.items():
        with pytest.raises(BadMessage, match=why):
            collected(parts)


# --- what a site may say of its scores, and by which words the rest is refused ------------------

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


@pytest.mark.parametrize(
    ("task", "further"),
    [
        (Segmentation(["disc"]), ("hd95", "surface_dice", "_overlap", "_area")),
        (TWO, ("_predicted", "_confidence")),
    ],
)
def test_the_detailed_columns_of_a_task(task, further):
    assert column_names(task, detailed=True) == (*column_names(task), *further)


def read(
    task: Task, images: int, *further: str, detailed: bool = False, **said: Any
) -> EvaluateReply:
    """What the server makes of what a site said."""
    reply = EvaluateReply.read({"images": images} | said)
    return check_scores(reply, images, task, further, detailed)


def test_honest_columns_pass_as_they_are_in_the_tasks_order():
    logits, masks = torch.randn(3, 2, 8, 8), torch.ones(3, 2, 8, 8)
    columns = {n: v.tolist() for n, v in DISC_AND_CUP.columns(logits, masks).items()}
    columns["asked_specialist"] = [0.0, 1.0, 1.0]
    backwards = dict(reversed(columns.items()))
    found = read(DISC_AND_CUP, 3, "asked_specialist", columns=backwards, gossip=1)
    assert found.images == 3
    assert found.columns == columns
    assert list(found.columns) == list(columns)
    expected = metrics_of(EvaluateReply(images=3, columns=columns), DISC_AND_CUP)
    assert metrics_of(found, DISC_AND_CUP) == expected


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
    assert found.columns == GOOD
    with pytest.raises(BadMessage, match=why):
        read(TWO, 2, columns=GOOD | changes)


DETAILED = GOOD | {"_predicted": [0.0, 1.0], "_confidence": [0.5, 1.0]}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"_predicted": [0.0, 2.0]}, "_predicted: 2.0 is not from 0 to 1"),
        ({"_predicted": [0.0, 0.5]}, "_predicted: a class that is no whole number"),
        ({"_confidence": [0.0, 1.5]}, "_confidence: 1.5 is not from 0 to 1"),
        ({"_confidence": [-1e300, 1.0]}, "_confidence: -1e\\+300 is not from 0 to 1"),
        ({"_probability_0": [0.0, 7.0]}, "_probability_0: 7.0 is not from 0 to 1"),
    ],
)
def test_bad_details_are_refused(changes: dict[str, Any], why: str):
    names = ["_probability_0"] if "_probability_0" in changes else []
    good = DETAILED | {name: [0.0, 1.0] for name in names}
    assert read(TWO, 2, *names, detailed=True, columns=good).columns == good
    with pytest.raises(BadMessage, match=why):
        read(TWO, 2, *names, detailed=True, columns=good | changes)


def test_distances_have_no_end_but_a_beginning():
    task = Segmentation(["disc"])
    good = {"dice": [0.5], "hd95": [90.5], "surface_dice": [1.0], "_overlap": [5.0], "_area": [9.0]}
    assert read(task, 1, detailed=True, columns=good).columns == good
    for name in ("hd95", "_overlap", "_area"):
        with pytest.raises(BadMessage, match=f"{name}: -1.0 is not from 0 to inf"):
            read(task, 1, detailed=True, columns=good | {name: [-1.0]})
    with pytest.raises(BadMessage, match=r"surface_dice: 1.5 is not from 0 to 1"):
        read(task, 1, detailed=True, columns=good | {"surface_dice": [1.5]})


def test_means_of_everything_that_has_one():
    """A site that lets out means alone says those of all metrics, and no single image's value."""
    task = Segmentation(["disc"])
    means = {"dice": 0.5, "hd95": 12.5, "surface_dice": 0.25, "score_of_global": 0.5}
    said = read(task, 4, "score_of_global", "_share_0", detailed=True, means=means)
    assert said.means == means
    with pytest.raises(BadMessage, match=r"hd95: -2.0 is not from 0 to inf"):
        read(task, 4, "score_of_global", detailed=True, means=means | {"hd95": -2.0})
    numbers = summary({"a": said, "b": said}, task)
    assert (GLOBAL, "hd95", 12.5, 8) in numbers


def test_patients_are_numbers_as_they_come():
    for told in ([0, 1], [0, 0], []):
        assert read(TWO, 2, detailed=True, columns=DETAILED, patients=told).patients == told


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ([0], "patients: 1 values, expected 2"),
        ([1, 0], "patients: 1 where 0 to 0 can come"),
        ([0, 2], "patients: 2 where 0 to 1 can come"),
        ([0, -1], "patients: -1 where 0 to 1 can come"),
        ([0, 10**30], "patients: 1000000000000000000000000000000 where"),
        ([0, 1.0], "patients.1: should be a valid integer, not 1.0"),
        ([0, True], "patients.1: should be a valid integer, not True"),
        (["Anna", 1], "patients.0: should be a valid integer, not Anna"),
        (None, "patients: should be a valid list, not None"),
    ],
)
def test_bad_patients_are_refused(told: Any, why: str):
    with pytest.raises(BadMessage, match=why):
        read(TWO, 2, detailed=True, columns=DETAILED, patients=told)


def test_patients_go_with_single_test_images_alone():
    """Neither with means, nor of validation images."""
    for said in ({"columns": GOOD}, {"means": {"accuracy": 0.5}}):
        with pytest.raises(BadMessage, match="patients: they go with single test images' scores"):
            read(TWO, 2, **said, patients=[0, 1])
    means = {"accuracy": 0.5, "balanced_accuracy": 0.5}
    with pytest.raises(BadMessage, match="patients: they go with"):
        read(TWO, 2, detailed=True, means=means, patients=[0, 1])


@pytest.mark.parametrize("said", [{}, {"columns": None}, {"columns": []}, {"columns": {}}])
def test_columns_that_are_missing_are_refused(said: dict[str, Any]):
    with pytest.raises(BadMessage, match=r"columns.*(, expected \['dice'\]|valid dictionary)"):
        read(Segmentation(["disc"]), 2, **said)


def test_means_may_leave_out_what_a_site_cannot_have():
    means = {"accuracy": 0.5, "auc": 1.0 + 1e-15, "asked_specialist": 0.25}
    assert read(TWO, 2, "asked_specialist", means=means) == EvaluateReply(images=2, means=means)
    del means["auc"]  # images of one class
    assert read(TWO, 2, "asked_specialist", means=means) == EvaluateReply(images=2, means=means)


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
        check_scores(EvaluateReply.read({"images": 2, "means": {"accuracy": 0.5}} | said), 2, TWO)


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
    CompareReply(images=4, sums=[0.0, 4.0]).check(2, 4)
    with pytest.raises(BadMessage, match=why):
        CompareReply.read(said).check(2, 4)
