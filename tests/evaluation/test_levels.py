"""Local, global and unseen levels by hand; which images are in the global set."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from konsil.errors import RunError
from konsil.evaluation.levels import LOCAL, OF_ALL, UNSEEN, Levels, Tuned, drawn_images, levels
from konsil.evaluation.results import Series
from konsil.evaluation.scores import write_scores

FEDAVG, FEDSOUP = Series("fedavg", "global"), Series("fedsoup", "personal")
IMAGES = {"a": 2, "b": 3, "c": 4}


def rows_of(
    method: Series, scores: dict[str, dict[str, list[float]]], seed=0, epochs=0, left_out=None
) -> list[dict[str, Any]]:
    """`scores`: whose model -> whose images -> what it scores on each."""
    return [
        {
            **{"method": method.method, "role": method.role, "seed": seed, "epochs": epochs},
            **{"model": model, "site": site, "left_out": left_out, "structure": None},
            **{"image": image, "patient": image, "accuracy": value},
        }
        for model, by_site in scores.items()
        for site, values in by_site.items()
        for image, value in enumerate(values)
    ]


def written(tmp_path: Path, *rows: list[dict[str, Any]], **options: Any) -> Levels:
    path = tmp_path / "personalised.parquet"
    write_scores(path, [row for own in rows for row in own])
    return levels(path, options.pop("metric", "accuracy"), **options)


def values(found: Levels) -> dict[str, list[float]]:
    return {where: [one.value for one in own.estimates()] for where, own in found.where.items()}


# what the models of two sites score at both, in one run
ONE = {
    "a": {"a": [1.0, 0.0], "b": [0.0, 0.5, 1.0]},
    "b": {"a": [0.25, 0.75], "b": [1.0, 1.0, 0.4]},
}


def test_one_run_by_hand(tmp_path):
    found = written(tmp_path, rows_of(FEDAVG, ONE))
    assert found.per_site == 2  # as many as a has
    chosen = drawn_images("b", 3, 2)
    of_a = np.mean([1.0, 0.0, *np.array(ONE["a"]["b"])[chosen]])
    of_b = np.mean([0.25, 0.75, *np.array(ONE["b"]["b"])[chosen]])
    assert values(found) == {
        LOCAL: [pytest.approx((0.5 + 0.8) / 2)],
        OF_ALL: [pytest.approx((of_a + of_b) / 2)],
    }


def test_seeds_count_alike(tmp_path):
    other = {model: {site: [1.0] * len(v) for site, v in of.items()} for model, of in ONE.items()}
    one = values(written(tmp_path, rows_of(FEDAVG, ONE)))
    both = written(tmp_path, rows_of(FEDAVG, ONE), rows_of(FEDAVG, other, seed=1))
    assert both.seeds == {Tuned(FEDAVG, 0): [0, 1]}
    for where, (value,) in values(both).items():
        assert value == pytest.approx((one[where][0] + 1) / 2)


def scores_of(sites: str, images: dict[str, int], rng: np.random.Generator):
    return {k: {s: list(rng.random(n)) for s, n in images.items()} for k in sites}


def test_folds_by_hand(tmp_path):
    """Three folds of three sites; every mean is over sites' models first, then over folds."""
    rng = np.random.default_rng(0)
    folds = {out: scores_of("abc".replace(out, ""), IMAGES, rng) for out in "abc"}
    found = written(tmp_path, *(rows_of(FEDAVG, of, left_out=out) for out, of in folds.items()))
    assert found.per_site == 2  # in every fold, also in the one without a
    chosen = {site: drawn_images(site, n, 2) for site, n in IMAGES.items()}
    local, of_all, unseen = [], [], []
    for out, models in folds.items():
        local.append(np.mean([np.mean(own[k]) for k, own in models.items()]))
        there = [np.mean([np.array(own[s])[chosen[s]] for s in models]) for own in models.values()]
        of_all.append(np.mean(there))
        unseen.append(np.mean([np.mean(own[out]) for own in models.values()]))
    assert values(found) == {
        LOCAL: [pytest.approx(np.mean(local))],
        OF_ALL: [pytest.approx(np.mean(of_all))],
        UNSEEN: [pytest.approx(np.mean(unseen))],
    }


def test_an_auc_ranks_one_models_answers_to_all_sites_images(tmp_path):
    """Not the images of each site by themselves, and not two models' answers in one row."""
    rng = np.random.default_rng(1)
    ill = {"a": [0, 1, 1, 0], "b": [1, 0, 0, 1]}
    ranked = scores_of("ab", dict.fromkeys("ab", 4), rng)
    ranked["b"] = {site: [10 + v for v in own] for site, own in ranked["b"].items()}
    rows = rows_of(FEDAVG, ranked)
    for row in rows:
        row |= {"score": row["accuracy"], "target": float(ill[row["site"]][row["image"]])}
    found = written(tmp_path, rows, metric="auc")
    every = [
        roc_auc_score(ill["a"] + ill["b"], ranked[model]["a"] + ranked[model]["b"])
        for model in "ab"
    ]
    at_home = [roc_auc_score(ill[site], ranked[site][site]) for site in "ab"]
    assert values(found) == {
        LOCAL: [pytest.approx(np.mean(at_home))],
        OF_ALL: [pytest.approx(np.mean(every))],
    }


def test_differences_are_between_equally_many_epochs(tmp_path):
    rows = []
    for epochs, gain in ((0, 0.1), (3, -0.2)):
        rows += rows_of(FEDAVG, ONE, epochs=epochs)
        better = {k: {s: [v + gain for v in own] for s, own in of.items()} for k, of in ONE.items()}
        rows += rows_of(FEDSOUP, better, epochs=epochs)
    found = written(tmp_path, rows)
    assert found.epochs == [0, 3]
    for where in (LOCAL, OF_ALL):
        gains = dict(zip(found.candidates, found.differences(where, FEDAVG), strict=True))
        assert gains[Tuned(FEDAVG, 0)] is gains[Tuned(FEDAVG, 3)] is None
        assert gains[Tuned(FEDSOUP, 0)].estimate == pytest.approx((0.1, 0.1, 0.1))
        assert gains[Tuned(FEDSOUP, 3)].estimate == pytest.approx((-0.2, -0.2, -0.2))
        # Holm counts the one line with equally many epochs, and no other
        assert all(one is None or one.corrected == one.p for one in gains.values())


def test_table_1_has_models_right_after_their_last_local_training(tmp_path):
    rows = [row for e in (0, 1, 7) for m in (FEDAVG, FEDSOUP) for row in rows_of(m, ONE, epochs=e)]
    found = written(tmp_path, rows)
    assert [found.candidates[k] for k in found.published] == [Tuned(FEDSOUP, 0), Tuned(FEDAVG, 1)]
    assert written(tmp_path, rows, epochs=[0]).published == []


def test_only_what_is_asked_for(tmp_path):
    rows = [*rows_of(FEDAVG, ONE), *rows_of(FEDAVG, ONE, epochs=2), *rows_of(FEDSOUP, ONE)]
    found = written(tmp_path, rows, epochs=[0], methods=["fedsoup"])
    assert found.candidates == [Tuned(FEDSOUP, 0)]


def test_a_fold_that_lacks_a_method_is_named(tmp_path):
    folds = {
        out: scores_of("abc".replace(out, ""), IMAGES, np.random.default_rng(0)) for out in "ab"
    }
    rows = [row for out, of in folds.items() for row in rows_of(FEDAVG, of, left_out=out)]
    rows += rows_of(FEDSOUP, folds["a"], left_out="a")
    with pytest.raises(RunError, match=r"fedsoup: not every .* \(without b\): finish the runs"):
        _ = written(tmp_path, rows).where


# --- the global set -------------------------------------------------------------------------------


@given(st.text(min_size=1), st.integers(1, 60), st.data())
def test_fewer_images_are_among_more(site, images, data):
    more = data.draw(st.integers(1, images))
    fewer = data.draw(st.integers(1, more))
    drawn = drawn_images(site, images, more)
    assert sorted(set(drawn)) == list(drawn)
    assert len(drawn) == more
    assert set(drawn) < set(range(images)) or more == images
    assert set(drawn_images(site, images, fewer)) <= set(drawn)


def test_every_site_draws_for_itself():
    assert len({tuple(drawn_images(site, 40, 10)) for site in "abcdef"}) == 6


def test_more_than_the_smallest_has_is_refused(tmp_path):
    assert written(tmp_path, rows_of(FEDAVG, ONE), per_site=1).per_site == 1
    with pytest.raises(RunError, match="--per-site 3: a has 2 test images"):
        written(tmp_path, rows_of(FEDAVG, ONE), per_site=3)
