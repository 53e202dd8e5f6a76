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


def test_patients_are_drawn_and_not_their_images():
    """Of two patients, drawn twice: 0 of the first alone, 1 of the second, 1/3 or 3/4 of both."""
    columns = {"dice": [0.0, 0.0, 1.0]}
    assert intervals_of(columns, ["dice"], [0, 0, 1]) == {"dice": [0.0, 1.0]}
    halves = {"dice": [0.0, 0.3, 0.9, 0.5]}  # each patient's images: 0.15 and 0.7 in the mean
    assert intervals_of(halves, ["dice"], [0, 0, 1, 1])["dice"] == pytest.approx([0.15, 0.7])
    many = {"dice": [0.0] * 9 + [1.0] * 27, "other": [1.0] * 36}  # 4 patients with 9 images each
    told = intervals_of(many, ["dice"], [k // 9 for k in range(36)])["dice"]
    alone = intervals_of(many, ["dice"])["dice"]
    assert told[0] < alone[0] < 0.75 < alone[1] < told[1]


def test_a_patient_with_many_images_counts_by_them():
    """9 images of 0 and one of 1: the mean where each patient is drawn once is .1, not .5."""
    low, high = intervals_of({"x": [0.0] * 9 + [1.0] + [0.1] * 10}, ["x"],
                             [0] * 9 + [1] + list(range(2, 12)))["x"]  # fmt: skip
    assert high < 0.5
    assert low == pytest.approx(0.0, abs=0.06)


def test_patients_of_one_image_each_are_images():
    values = np.random.default_rng(2).random(12).tolist()
    assert intervals_of({"x": values}, ["x"], range(12)) == intervals_of({"x": values}, ["x"])


def test_what_has_none():
    """One image, the material of another metric, and a metric of all images together."""
    columns = {"accuracy": [1.0], "_score": [0.1, 0.2]}
    assert intervals_of(columns, ["accuracy", "auc"]) == {}
    assert intervals_of({"dice": [0.1, 0.2]}, ["dice"], [0, 0]) == {}  # of one patient
