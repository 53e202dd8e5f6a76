"""Means, intervals and the corrected test over draws of the splits: by hand."""

from math import isnan, sqrt

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from konsil.errors import RunError
from konsil.evaluation.comparison import Comparison, compare_draws
from konsil.evaluation.draws import Redrawn, student
from konsil.evaluation.results import CLIENT_AVERAGE, GLOBAL, Series
from konsil.evaluation.statistics import Compared, Images
from konsil.report.series import Estimate as OverSeeds

T = 4.302652729911275  # Student's, 97.5 %, two degrees of freedom
A, B, C = Series("local", "local"), Series("fedavg", "global"), Series("fedsm", "super")


def draw(*scores: tuple[list[float], list[float]]) -> Compared:
    """Of every candidate what it scores on the images of two sites."""
    of_site = [[np.array([one[place]]) for one in scores] for place in (0, 1)]
    return Compared(
        {
            name: Images(np.arange(values[0].shape[1]), values)
            for name, values in zip(("north", "south"), of_site, strict=True)
        }
    )


# Three draws of two sites with one and with two test images. B gains .01, .02 and .03 at the
# northern site and nothing at the southern one; C always gains the same, A is the reference.
DRAWS = {
    4: draw(([0.5], [0.7, 0.9]), ([0.51], [0.7, 0.9]), ([0.6], [0.8, 1.0])),
    5: draw(([0.6], [0.4, 0.6]), ([0.62], [0.6, 0.4]), ([0.7], [0.5, 0.7])),
    9: draw(([0.4], [0.3, 0.7]), ([0.43], [0.3, 0.7]), ([0.5], [0.4, 0.8])),
}
REDRAWN = Redrawn(DRAWS, overlap=0.5)


def test_a_number_is_the_mean_over_draws_with_students_interval():
    north = REDRAWN.estimates("north")[0]
    half = T * 0.1 / sqrt(3)
    assert north == pytest.approx((0.5, 0.5 - half, 0.5 + half))
    values = {column: REDRAWN.estimates(column)[0].value for column in REDRAWN.columns}
    assert values == {
        "north": pytest.approx(0.5),
        "south": pytest.approx((0.8 + 0.5 + 0.5) / 3),
        CLIENT_AVERAGE: pytest.approx((0.65 + 0.55 + 0.45) / 3),
        GLOBAL: pytest.approx((2.1 + 1.6 + 1.4) / 9),
    }


def test_the_interval_is_that_over_seeds_of_the_report():
    values = [0.2, 0.5, 0.3, 0.9]
    over_seeds = OverSeeds(dict(enumerate(values)))
    found = student(np.array(values))
    assert found.value == pytest.approx(over_seeds.mean)
    assert found.high - found.value == pytest.approx(over_seeds.half_width)


def test_who_is_served_worst_is_looked_for_in_every_draw():
    assert REDRAWN.worst()[0].value == pytest.approx((0.5 + 0.5 + 0.4) / 3)
    assert REDRAWN.worst(less=True)[0].value == pytest.approx((0.8 + 0.6 + 0.5) / 3)
    assert REDRAWN.spread()[0].value == pytest.approx((0.3 + 0.1 + 0.1) / 3)


def test_a_difference_is_corrected_for_draws_that_share_patients():
    """s = .01, its error .01 sqrt(1/3 + 1/2); of two degrees p = 1 - t / sqrt(2 + t^2)."""
    none, b, c = REDRAWN.differences("north", 0)
    error = 0.01 * sqrt(1 / 3 + 0.5)
    assert none is None
    assert b.estimate == pytest.approx((0.02, 0.02 - T * error, 0.02 + T * error))
    t = 0.02 / error
    p = 1 - t / sqrt(2 + t * t)
    assert b.p == pytest.approx(p)
    assert p == pytest.approx(0.1598, abs=1e-4)
    assert b.corrected == pytest.approx(p)  # Holm's: the larger of two
    assert not b.found
    assert isnan(b.ranks)
    assert c.estimate == pytest.approx((0.1, 0.1, 0.1))
    assert c.found


def test_p_is_corrected_for_all_lines():
    twice = {
        seed: draw(([0.5], [0.5, 0.5]), ([better], [0.5, 0.5]), ([better], [0.4, 0.6]))
        for seed, better in enumerate((0.51, 0.52, 0.53))
    }
    _, one, two = Redrawn(twice, 0.5).differences("north", 0)
    assert one.corrected == two.corrected == pytest.approx(2 * one.p)


def test_twins_are_one_test():
    """Who gives the same answers in every draw is no further line for Holm."""
    twins = {
        seed: draw(*(([score], [0.5, 0.5]) for score in (0.5, better, 0.5, better)))
        for seed, better in enumerate((0.51, 0.52, 0.53))
    }
    _, one, of_reference, two = Redrawn(twins, 0.5).differences("north", 0)
    assert one == two
    assert one.corrected == one.p
    assert (of_reference.estimate.value, of_reference.p, of_reference.found) == (0.0, 1.0, False)


def test_without_overlap_it_is_students_test():
    (_, b, _), gained = Redrawn(DRAWS, 0.0).differences("north", 0), [0.01, 0.02, 0.03]
    plain = ttest_1samp(gained, 0)
    assert b.p == pytest.approx(plain.pvalue)
    interval = plain.confidence_interval()
    assert b.estimate == pytest.approx((0.02, interval.low, interval.high))
    assert b.p < REDRAWN.differences("north", 0)[1].p


def test_no_gain_in_any_draw_is_no_difference():
    same = REDRAWN.differences("south", 0)[1]
    assert (same.p, same.corrected, same.found) == (1, 1, False)


def test_what_is_gained_in_each_draw():
    assert REDRAWN.gains("north", 0)[1] == pytest.approx([0.01, 0.02, 0.03])
    assert REDRAWN.gains("north", 2)[0] == pytest.approx([-0.1, -0.1, -0.1])


def compared(seed: int, candidates: tuple[Series, ...] = (A, B, C)) -> Comparison:
    return Comparison(candidates, {one: [0] for one in candidates}, DRAWS[seed], 3, 2)


def test_comparisons_of_several_draws_are_one():
    found = compare_draws({seed: compared(seed) for seed in DRAWS}, 0.5)
    assert (found.images, found.patients, found.candidates) == (9, 6, (A, B, C))
    assert found.compared == REDRAWN


def test_draws_of_other_methods_are_refused():
    with pytest.raises(RunError, match="split_seed 5: other methods and roles than"):
        compare_draws({4: compared(4), 5: compared(5, (A, C, B))}, 0.5)
    other = compared(9)
    fewer = Comparison(other.candidates, other.seeds | {A: [0, 1]}, other.compared, 3, 2)
    with pytest.raises(RunError, match="split_seed 9: other seeds than with split_seed 4"):
        compare_draws({4: compared(4), 9: fewer}, 0.5)
