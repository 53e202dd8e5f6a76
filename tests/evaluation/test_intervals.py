"""How sure a mean over images is."""

import numpy as np
import pytest

from konsil.evaluation.intervals import intervals_of


def test_values_that_are_all_alike_leave_no_doubt():
    assert intervals_of({"dice": [0.5] * 7}, ["dice"]) == {"dice": [0.5, 0.5]}


def test_of_zeros_and_ones_as_statistics_knows_it():
    """The mean of 100 fair coins has a standard error of .05: .5 - .098 to .5 + .098."""
    low, high = intervals_of({"accuracy": [0.0, 1.0] * 50}, ["accuracy"])["accuracy"]
    assert low == pytest.approx(0.402, abs=0.011)
    assert high == pytest.approx(0.598, abs=0.011)


def test_it_holds_the_true_mean_about_19_times_in_20():
    draw = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        low, high = intervals_of({"x": draw.beta(8, 2, 40).tolist()}, ["x"])["x"]
        held += low <= 0.8 <= high
    assert 180 <= held <= 198


def test_the_same_values_have_the_same_interval_and_more_images_a_narrower_one():
    few = np.random.default_rng(1).random(10).tolist()
    assert intervals_of({"x": few}, ["x"]) == intervals_of({"x": few, "y": few}, ["x"])
    both = intervals_of({"few": few}, ["few"]) | intervals_of({"many": few * 9}, ["many"])
    width = {name: high - low for name, (low, high) in both.items()}
    assert width["many"] == pytest.approx(width["few"] / 3, rel=0.1)


def test_what_has_none():
    """One image, the material of another metric, and a metric of all images together."""
    columns = {"accuracy": [1.0], "_score": [0.1, 0.2]}
    assert intervals_of(columns, ["accuracy", "auc"]) == {}
