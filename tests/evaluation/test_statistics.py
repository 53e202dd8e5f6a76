"""Intervals over patients, differences on equal images, tests: by hand, and under a null."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import permutation_test, wilcoxon
from sklearn.metrics import roc_auc_score

from konsil.evaluation.results import CLIENT_AVERAGE, GLOBAL
from konsil.evaluation.statistics import (
    DRAWS,
    LEVEL,
    Averaged,
    Compared,
    Images,
    _auc,
    _drawn,
    flipped,
    holm,
    signed_rank,
)


def site(patients: list[int], *values: list[list[float]], ill: list[bool] | None = None) -> Images:
    """Of every candidate a list a seed."""
    given = [np.array(one, dtype=float) for one in values]
    return Images(np.array(patients), given, None if ill is None else np.array(ill))


# Three sites, two candidates (the second with two seeds), by hand.
THREE = Compared(
    {
        "a": site([0, 0, 1], [[0.2, 0.4, 0.9]], [[0.4, 0.6, 0.8], [0.6, 0.8, 1.0]]),
        "b": site([0, 1], [[0.5, 0.7]], [[0.6, 0.6], [0.8, 0.8]]),
        "c": site([0], [[0.3]], [[0.1], [0.3]]),
    }
)


def test_means_by_hand():
    values = {column: [one.value for one in THREE.estimates(column)] for column in THREE.columns}
    assert values == {
        "a": pytest.approx([0.5, 0.7]),
        "b": pytest.approx([0.6, 0.7]),
        "c": pytest.approx([0.3, 0.2]),
        CLIENT_AVERAGE: pytest.approx([1.4 / 3, 1.6 / 3]),
        GLOBAL: pytest.approx([3.0 / 6, (2.1 + 1.4 + 0.2) / 6]),
    }
    assert [one.value for one in THREE.worst()] == pytest.approx([0.3, 0.2])
    assert [one.value for one in THREE.spread()] == pytest.approx([0.3, 0.5])


def test_the_interval_of_two_patients_by_hand():
    """Draws of b are both patients (.6), the one twice (.5) or the other twice (.7)."""
    estimate = THREE.estimates("b")[0]
    assert (estimate.low, estimate.high) == pytest.approx((0.5, 0.7))
    # a: of patient 0's two images .3 in the mean, of patient 1's one .9
    estimate = THREE.estimates("a")[0]
    assert (estimate.low, estimate.high) == pytest.approx((0.3, 0.9))


def test_one_patient_has_no_interval():
    estimate = THREE.estimates("c")[0]
    assert estimate.value == pytest.approx(0.3)
    assert math.isnan(estimate.low)
    assert math.isnan(estimate.high)
    assert not math.isnan(THREE.estimates(CLIENT_AVERAGE)[0].low)  # other sites' patients vary


def test_differences_by_hand():
    of_reference, other = THREE.differences("a", 0)
    assert of_reference is None
    assert other.estimate.value == pytest.approx(0.2)
    # patient 0 gains .3 in the mean of its images, patient 1 nothing
    assert (other.estimate.low, other.estimate.high) == pytest.approx((0.0, 0.3))
    both = THREE.differences(CLIENT_AVERAGE, 0)[1]
    assert both.estimate.value == pytest.approx(0.2 / 3)
    turned = THREE.differences(CLIENT_AVERAGE, 1)[0]
    assert turned.estimate.value == pytest.approx(-0.2 / 3)
    assert turned.p == both.p


def test_what_patients_add_to_a_difference():
    pooled = Images.pooled(list(THREE.sites.values()))
    assert len(np.unique(pooled.patients)) == 5  # patient 0 of one site is not that of another
    added = pooled.contributions(1, 0)
    assert added == pytest.approx(np.array([0.6, 0.0, 0.2, 0.0, -0.1]) / 6)
    assert added.sum() == pytest.approx(THREE.differences(GLOBAL, 0)[1].estimate.value)
    # where sites count alike, the one patient of c weighs as much as a whole site
    by_site = [own.contributions(1, 0) for own in THREE.sites.values()]
    assert [list(one) for one in by_site] == [
        pytest.approx([0.2, 0.0]),
        pytest.approx([0.1, 0.0]),
        pytest.approx([-0.1]),
    ]
    mean = THREE.differences(CLIENT_AVERAGE, 0)[1]
    assert sum(one.sum() for one in by_site) / 3 == pytest.approx(mean.estimate.value)
    assert mean.ranks == pytest.approx(wilcoxon([0.2, 0.1, -0.1]).pvalue)
    # of 8 ways to flip three signs 6 lead as far from 0 as .2 + .1 - .1, but for rounding
    assert mean.p == pytest.approx(6 / 8, abs=0.02)


def test_equals_are_no_different():
    same = Compared({"a": site([0, 1, 2], [[0.1, 0.5, 0.7]], [[0.1, 0.5, 0.7]])})
    found = same.differences("a", 0)[1]
    assert found.estimate == (0.0, 0.0, 0.0)
    assert (found.p, found.corrected, found.ranks, found.found) == (1.0, 1.0, 1.0, False)


def test_twins_are_one_test():
    """Who answers every image as another does is no further question for Holm to pay for."""
    rng = np.random.default_rng(1)
    base, better = rng.random(30), rng.random(30) + 0.2
    patients = list(range(30))
    alone = Compared({"a": site(patients, [base], [better])}).differences("a", 0)[1]
    twice = Compared({"a": site(patients, [base], [better], [base], [better])})
    assert twice.first_equal == [0, 1, 0, 1]
    of_reference, one, of_its_twin, other = twice.differences("a", 0)
    assert of_reference is None
    assert one == other == alone
    assert of_its_twin.estimate == (0.0, 0.0, 0.0)
    assert (of_its_twin.p, of_its_twin.found) == (1.0, False)
    assert twice.differences("a", 2)[1] == alone  # also against the twin


def test_no_twins_with_other_seeds():
    compared = Compared({"a": site([0, 1], [[0.1, 0.2]], [[0.1, 0.2], [0.1, 0.2]])})
    assert compared.first_equal == [0, 1]


def test_twins_are_equal_at_every_site():
    compared = Compared({"a": site([0], [[0.1]], [[0.1]]), "b": site([0], [[0.1]], [[0.3]])})
    assert compared.first_equal == [0, 1]


def test_a_gain_of_everybody_is_found():
    rng = np.random.default_rng(0)
    base = rng.random(40)
    found = Compared({"a": site(list(range(40)), [base], [base + 0.01 + 0.001 * rng.random(40)])})
    difference = found.differences("a", 0)[1]
    assert difference.found
    assert difference.estimate.low > 0
    # the terms themselves are much less sure
    low, high = found.estimates("a")[0][1:]
    assert high - low > 10 * (difference.estimate.high - difference.estimate.low)


def test_the_same_draws_for_everybody():
    images = site([0, 0, 1, 2], [[0.0] * 4])
    assert np.array_equal(_drawn("a", images), _drawn("a", images))
    assert not np.array_equal(_drawn("a", images), _drawn("b", images))
    times = _drawn("a", images)
    assert np.array_equal(times[:, 0], times[:, 1])  # a patient's images come together
    assert (times[:, 1:].sum(axis=1) == 3).all()  # as many patients as there are


# --- the mean of several comparisons --------------------------------------------------------------

# as folds: a is in both with the same patients, b in the first alone
FIRST = Compared(
    {
        "a": site([0, 0, 1], [[0.2, 0.4, 0.9]], [[0.3, 0.6, 0.9]]),
        "b": site([0, 1], [[0.5, 0.7]], [[0.5, 0.8]]),
    }
)
SECOND = Compared({"a": site([0, 0, 1], [[0.0, 0.2, 0.5]], [[0.1, 0.2, 0.9]])})


def test_a_mean_of_comparisons_by_hand():
    both = Averaged([(FIRST, CLIENT_AVERAGE), (SECOND, "a")])
    first, second = (0.5 + 0.6) / 2, 0.7 / 3
    assert both.estimates()[0].value == pytest.approx((first + second) / 2)
    gain = both.differences(0)[1].estimate.value
    assert gain == pytest.approx(((0.1 + 0.05) / 2 + 0.5 / 3) / 2)


def test_a_patient_of_several_comparisons_adds_to_the_difference_once():
    both = Averaged([(FIRST, GLOBAL), (SECOND, GLOBAL)])
    of_a = (0.3 / 5 + 0.1 / 3) / 2, (0.0 / 5 + 0.4 / 3) / 2  # patients 0 and 1
    added = both._contributions(1, 0)
    assert added == pytest.approx([*of_a, 0.0, 0.1 / 5 / 2])
    assert added.sum() == pytest.approx(both.differences(0)[1].estimate.value)
    assert both.differences(0)[1].ranks == pytest.approx(wilcoxon([*of_a, 0.01]).pvalue)


def test_a_patient_of_several_comparisons_is_drawn_alike_in_all():
    """What one adds and the other takes away is sure to be nothing."""
    turned = Compared({"a": Images(SECOND.sites["a"].patients, SECOND.sites["a"].values[::-1])})
    difference = Averaged([(SECOND, "a"), (turned, "a")]).differences(0)[1]
    assert difference.estimate == pytest.approx((0, 0, 0), abs=1e-12)


@pytest.mark.parametrize("column", ["a", "b", CLIENT_AVERAGE, GLOBAL])
def test_of_one_comparison_the_mean_is_that_one(column):
    alone = Averaged([(FIRST, column)])
    assert alone.estimates() == FIRST.estimates(column)
    assert alone.differences(1) == FIRST.differences(column, 1)


def test_who_is_not_among_them_is_not_tested_and_does_not_count_for_holm():
    three = site([0, 1, 2], [[0.1, 0.5, 0.7]], [[0.2, 0.5, 0.9]], [[0.0, 0.6, 0.9]])
    all_ = Averaged([(Compared({"a": three}), "a")])
    few = all_.differences(0, [0, 2])
    assert few[1] is None
    assert few[2].corrected == few[2].p == all_.differences(0)[2].p
    assert few[2].estimate == all_.differences(0)[2].estimate


def test_of_no_value_the_mean_is_none():
    """Neither site has images of both classes: there is no AUC, and so no mean of AUCs."""
    one_class = site([0, 1], [[0.1, 0.2]], ill=[True, True])
    found = Compared({"a": one_class, "b": one_class})
    assert math.isnan(found.estimates(CLIENT_AVERAGE)[0].value)


# --- Holm, Wilcoxon ------------------------------------------------------------------------------


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_is_between_the_test_and_bonferroni(p):
    corrected = holm(p)
    for single, value in zip(p, corrected, strict=True):
        assert single <= value <= 1
        assert value <= max(min(1, len(p) * one) for one in p if one <= single)


def test_flipped_signs_by_hand():
    """1 + 2 + 4 + 8: of sixteen ways two, all plus and all minus, lead as far as 15."""
    assert flipped(np.array([1.0, 2, 4, 8])) == pytest.approx(2 / 16, abs=0.01)
    assert flipped(np.array([1.0, 2, 4, -8])) == pytest.approx(1.0, abs=0.01)  # 1: nothing is less
    assert flipped(np.array([1.0, 1, 1e-17])) == pytest.approx(0.5, abs=0.02)
    assert flipped(np.zeros(3)) == 1.0


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000))
def test_flipped_signs_are_scipys_permutations(seed):
    added = np.random.default_rng(seed).normal(0.3, 1, 9)
    # of one sample its "pairings" flip signs; 512 of them are all there are
    exact = permutation_test((added,), np.sum, permutation_type="samples", n_resamples=np.inf)
    assert flipped(added) == pytest.approx(exact.pvalue, abs=0.03)


def test_wilcoxon_is_scipys_and_leaves_out_rounding():
    gains = np.array([0.3, -0.1, 0.2, 0.05, -0.02])
    assert signed_rank(gains) == wilcoxon(gains).pvalue
    assert signed_rank(np.array([*gains, 1e-17, 2e-17, 0.0])) == wilcoxon(gains).pvalue
    assert signed_rank(np.zeros(3)) == 1.0


# --- areas under a curve -------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), values=st.integers(2, 40))
def test_auc_of_images_that_are_there_several_times_equals_sklearn(seed, values):
    rng = np.random.default_rng(seed)
    ranked_by = rng.integers(0, values, 30) / 7  # with ties
    ill = rng.random(30) < 0.4
    ill[:2] = [True, False]
    times = rng.integers(0, 3, (5, 30)).astype(float)
    times[:, :2] = 1
    expected = [roc_auc_score(ill, ranked_by, sample_weight=one) for one in times]
    assert _auc(ranked_by, ill, times) == pytest.approx(expected, abs=1e-12)


def test_auc_is_the_mean_of_the_seeds_and_of_the_sites_that_have_one():
    ill = [True, True, False, False]
    compared = Compared(
        {
            "both": site([0, 1, 2, 3], [[3, 1, 0, 2], [3, 2, 1, 0]], ill=ill),
            "ill": site([0, 1], [[1, 2], [1, 2]], ill=[True, True]),
        }
    )
    assert compared.estimates("both")[0].value == pytest.approx((0.75 + 1) / 2)
    assert math.isnan(compared.estimates("ill")[0].value)
    assert compared.estimates(CLIENT_AVERAGE)[0].value == pytest.approx((0.75 + 1) / 2)
    pooled = [
        roc_auc_score([*ill, True, True], [*seed, 1, 2]) for seed in ([3, 1, 0, 2], [3, 2, 1, 0])
    ]
    assert compared.estimates(GLOBAL)[0].value == pytest.approx(np.mean(pooled))


def test_the_p_of_an_auc_is_the_share_of_draws_beyond_nothing():
    rng = np.random.default_rng(1)
    ill = np.arange(60) % 2 == 0
    noise, signal = rng.normal(size=60), 5.0 * ill + rng.normal(size=60)
    compared = Compared({"a": site(list(range(60)), [noise], [signal], ill=list(ill))})
    found = compared.differences("a", 0)[1]
    assert found.estimate.value > 0.3
    assert found.p == pytest.approx(2 / (DRAWS + 1))  # no draw is beyond
    assert math.isnan(found.ranks)
    assert found.found


# --- where there is nothing to be found ----------------------------------------------------------


def test_of_methods_that_are_alike_one_in_twenty_is_called_different():
    """500 federations of three sites whose second method differs by luck alone."""
    rng = np.random.default_rng(7)
    called = np.zeros(2)  # by either test
    for _ in range(500):
        sites = {}
        for n in (9, 14, 22):
            gain = np.repeat(rng.normal(0, 0.05, n), 3) + rng.normal(0, 0.02, 3 * n)
            values = [np.zeros((1, 3 * n)), gain[None]]
            sites[f"of {n}"] = Images(np.repeat(np.arange(n), 3), values)
        p = Averaged([(Compared(sites), CLIENT_AVERAGE)]).tests(1, 0, np.empty(0))
        called += np.array(p) < LEVEL
    assert (called >= 0.03 * 500).all()
    assert (called <= 0.07 * 500).all()


def test_an_interval_holds_what_is_true_in_about_95_of_100():
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(200):
        patients = np.repeat(np.arange(40), 2)
        values = 0.7 + np.repeat(rng.normal(0, 0.1, 40), 2) + rng.normal(0, 0.05, 80)
        estimate = Compared({"a": Images(patients, [values[None]])}).estimates("a")[0]
        held += estimate.low <= 0.7 <= estimate.high
    assert 0.88 <= held / 200 <= 0.99
