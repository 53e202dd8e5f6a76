"""Curves as SVG: places by hand, one scale, no more points than can be seen."""

import pytest

from konsil.watch.charts import HIGH, LAMBDA, MOST_POINTS, SELECTOR, WIDE, charts, colour_of

from konsil.watch.charts import common_scale, thinned  # isort: skip
from konsil.watch.story import Job


def job(name: str, rounds: int, **curves: dict[int, float]) -> Job:
    return Job(name, rounds, curves=curves)


def test_places_by_hand():
    """Scores from 0 to 1: with 6 % room the scale is -0.06 to 1.06."""
    (chart,) = charts([job("a/seed0", 2, **{"global": {0: 0.0, 1: 0.5, 2: 1.0}})])
    assert chart.scale == pytest.approx((0.5 - 0.03, 1.03))  # round 0 is no settled one
    (line,) = chart.lines
    low, high = chart.scale
    half = HIGH * (1 - (0.5 - low) / (high - low))
    top = HIGH * (1 - (1.0 - low) / (high - low))
    assert line.points == f"0.0,{HIGH:.1f} {WIDE / 2:.1f},{half:.1f} {WIDE:.1f},{top:.1f}"
    assert line.end == pytest.approx((WIDE, top))
    assert chart.in_words == "a/seed0: global 1.000"


def test_all_jobs_have_one_scale_and_shares_their_own():
    jobs = [
        job("a/seed0", 1, **{"global": {1: 0.2}}),
        job("b/seed0", 1, **{"global": {1: 0.6}, SELECTOR: {1: 0.99}, LAMBDA: {1: 0.1}}),
        job("c/seed0", 1),
    ]
    first, second, shares = charts(jobs)
    assert first.scale == second.scale == pytest.approx((0.2 - 0.024, 0.6 + 0.024))
    assert (shares.scale, len(shares.lines)) == ((0.0, 1.0), 2)
    assert shares.lines[0].words == "the selector is right"


def test_the_first_rounds_do_not_hide_the_rest():
    curve = dict.fromkeys(range(2), 0.0) | dict.fromkeys(range(2, 13), 0.8)
    assert common_scale([job("a/seed0", 12, **{"global": curve})]) == pytest.approx((0.79, 0.81))
    (chart,) = charts([job("a/seed0", 12, **{"global": curve})])
    assert chart.lines[0].points.startswith(f"0.0,{HIGH:.1f} ")  # drawn at the edge, not outside


def test_without_a_curve_there_is_no_chart():
    assert list(charts([job("a/seed0", 3)])) == []


@pytest.mark.parametrize("count", [1, 2, MOST_POINTS, MOST_POINTS + 1, 10 * MOST_POINTS + 7])
def test_a_long_line_is_thinned_and_keeps_its_ends(count):
    kept = thinned(list(range(count)))
    assert (kept[0], kept[-1]) == (0, count - 1)
    assert len(kept) <= MOST_POINTS + 1
    assert kept == sorted(set(kept))
    if count <= MOST_POINTS:
        assert len(kept) == count


def test_measures_that_a_method_brings_have_colours_of_their_own():
    measures = ["global", "mine", "yours", "global", "mine"]
    assert len({colour_of(m, measures) for m in ("global", "mine", "yours")}) == 3
    assert colour_of("yours", measures) == colour_of("yours", ["mine", "yours"])
