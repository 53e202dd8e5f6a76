"""Which round's model counts, by hand."""

import pytest
import torch

from konsil import testing as toy
from konsil.config import TrainingConfig
from konsil.federation.keeping import kept, smoothed
from konsil.weights import Layout, Weights

LAYOUT = Layout.build([("w", (1,), "trainable", "body")])


@pytest.fixture
def usual(classes):
    """Where outlines do not matter, what costs less."""
    return classes


def after(scores: list[float], **training) -> float:
    """What is kept of models that are the numbers of their rounds: 0, 1, ..."""
    config, model = TrainingConfig(**training), None
    for number in range(len(scores)):
        new = Weights(LAYOUT, torch.tensor([float(number)]))
        model = kept(config, model, new, scores[: number + 1])
    return float(model.flat)


@pytest.mark.parametrize(
    ("rule", "expected"), [("best", 1.0), ("last", 4.0), ("smoothed", 4.0), ("ema", 2.5)]
)
def test_one_high_score_among_rising_ones(rule, expected):
    scores = [0.1, 0.9, 0.5, 0.6, 0.8]
    assert after(scores, keep=rule) == pytest.approx(expected)


def test_where_scores_fall_for_good_the_smoothed_rule_notices_and_the_last_does_not():
    scores = [0.5, 0.8, 0.8, 0.8, 0.8, 0.3, 0.3, 0.3]
    assert after(scores, keep="smoothed") == 4
    assert after(scores, keep="last") == 7


def test_the_first_scores_are_no_mean_yet():
    """A lucky first round, or the untrained model's own score, does not stand for ever."""
    assert after([0.9, 0.5, 0.5, 0.5, 0.5, 0.5, 0.6], keep="smoothed") == 6
    assert after([0.9, 0.8, 0.7, 0.6], keep="smoothed") == 3
    marks = smoothed([0.9, 0.5, 0.5, 0.5, 0.9, 0.5])
    assert marks[4] > marks[5]  # from here on marks are compared
    assert after([0.9, 0.5, 0.5, 0.5, 0.9, 0.5], keep="smoothed") == 4


def test_one_lucky_score_does_not_count_against_the_mean_that_rises_after_it():
    scores = [0.5] * 5 + [0.9, 0.7, 0.7]
    assert smoothed(scores)[5:] == pytest.approx([0.6084, 0.6316, 0.6480], abs=1e-4)
    assert after(scores, keep="best") == 5
    assert after(scores, keep="smoothed") == 7


def test_of_equals_the_later_counts():
    assert after([0.5, 0.5, 0.5], keep="best") == 2
    assert after([0.5, 0.5, 0.5], keep="smoothed") == 2


def test_running_means_by_hand():
    assert smoothed([1.0, 0.0, 0.0]) == pytest.approx([1.0, 0.16 / 0.36, 0.128 / 0.488])
    assert smoothed([0.7] * 5) == pytest.approx([0.7] * 5)


def test_a_running_mean_of_models_by_hand():
    """Of rounds 1 to 4, with a memory of a half: 1, then 1.5, 2.25, 3.125."""
    assert after([0.0] * 5, keep="ema", ema=0.5) == pytest.approx(3.125)
    assert after([0.0] * 5, keep="ema", ema=0.0) == 4  # no memory: the last


@pytest.mark.parametrize("rule", ["last", "smoothed", "ema"])
def test_server_and_sites_keep_by_the_same_rule(make_plan, tmp_path, rule):
    plan = make_plan(
        methods=["fedsm"], rounds=3, training={"batch_size": 3, "lr": 1e-2, "keep": rule}
    )
    record = toy.train(plan, tmp_path)
    config = plan.experiment.training
    assert len(record.scores["global"]) == 4
    for site in plan.sites:
        state = toy.state_of(plan, tmp_path, site)
        assert len(state.scores["personal"]) == 4
        if rule == "last":
            assert state.best["personal"].equals(state.last["personal"])
        if rule == "ema":
            assert not state.best["personal"].equals(state.last["personal"])
    same = record.best["global"].equals(record.shared["global"])
    assert same == {"last": True, "ema": False, "smoothed": True}[rule]  # four scores: no mean yet
    assert config.keep == rule


def test_a_killed_run_keeps_the_same(make_plan, tmp_path):
    plan = make_plan(methods=["fedsm"], rounds=3, training={"batch_size": 3, "keep": "ema"})
    whole = toy.train(plan, tmp_path / "whole")
    server = toy.server(plan, tmp_path / "cut")
    for number in (1, 2):
        server._round(number)
    again = toy.train(plan, tmp_path / "cut")
    assert toy.same_record(whole, again)
    for site in plan.sites:
        first, second = (
            toy.state_of(plan, tmp_path / name, site).best for name in ("whole", "cut")
        )
        assert toy.same_parts(first, second)
