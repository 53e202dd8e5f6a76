"""A new hospital beside the model's own: by hand."""

from math import isnan, nan

import pytest

from konsil.evaluation.files import volume_dice
from konsil.evaluation.standing import ALIKE, BETTER, UNKNOWN, WORSE, Standing, standing
from konsil.evaluation.statistics import Estimate
from tests.supermodel.test_card import facts

OWN = {"a": Estimate(0.7, 0.6, 0.74), "b": Estimate(0.9, 0.86, 0.93)}


def test_the_mean_and_the_difference_by_hand():
    """Half-widths below .1 and .04, above .04 and .03: of the mean hypot / 2."""
    found = Standing(Estimate(0.75, 0.71, 0.78), OWN)
    below, above = (0.1**2 + 0.04**2) ** 0.5 / 2, (0.04**2 + 0.03**2) ** 0.5 / 2
    assert found.mean == pytest.approx((0.8, 0.8 - below, 0.8 + above))
    low, high = (0.04**2 + above**2) ** 0.5, (0.03**2 + below**2) ** 0.5
    assert found.difference == pytest.approx((-0.05, -0.05 - low, -0.05 + high))
    assert (found.verdict, found.worst, found.best) == (ALIKE, "a", "b")


@pytest.mark.parametrize(
    ("here", "verdict"),
    [
        (Estimate(0.5, 0.45, 0.55), WORSE),
        (Estimate(0.95, 0.94, 0.96), BETTER),
        (Estimate(0.95, 0.7, 0.99), ALIKE),
        (Estimate(0.95, nan, nan), UNKNOWN),
    ],
)
def test_the_verdict(here, verdict):
    assert Standing(here, OWN).verdict == verdict


def test_without_an_interval_at_one_hospital_nobody_can_say():
    found = Standing(Estimate(0.5, 0.49, 0.51), OWN | {"c": Estimate(0.9, nan, nan)})
    assert found.verdict == UNKNOWN
    assert found.difference.value == pytest.approx(0.5 - (0.7 + 0.9 + 0.9) / 3)
    assert isnan(found.mean.low)


def test_what_a_models_folder_tells():
    here = Estimate(0.6, 0.5, 0.7)
    found = standing(facts(), "auto", "dice", here)
    assert found.hospitals["north"] == Estimate(0.75, 0.7, 0.8)
    assert found.hospitals["south"].value == 0.875
    assert isnan(found.hospitals["south"].low)
    assert standing(facts(), "global", "dice", here).hospitals["north"].value == 0.5
    assert standing(facts(), "north", "dice", here) is None  # no hospital's own model was scored
    assert standing(facts(), "auto", "auc", here) is None
    assert standing(facts(scores={}, intervals={}), "auto", "dice", here) is None


def test_slices_of_a_patient_are_put_together():
    """Patient 0: 2 (2 + 6) / (8 + 8) of the disc, 1 of the cup that nobody has; 1: .25, .75."""
    columns = {
        "_overlap_disc": [2.0, 6, 1],
        "_area_disc": [8.0, 8, 8],
        "_overlap_cup": [0.0, 0, 3],
        "_area_cup": [0.0, 0, 8],
        "dice": [0.0] * 3,
    }
    assert volume_dice(columns, [0, 0, 1]) == pytest.approx([(1 + 1) / 2, (0.25 + 0.75) / 2])
    assert volume_dice(columns, [0, 1, 2]) == []  # pictures: an image is a patient
    assert volume_dice({"accuracy": [1.0, 1.0]}, [0, 0]) == []
