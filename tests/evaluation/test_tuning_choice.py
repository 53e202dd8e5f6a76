"""The choice among training settings, worked out by hand."""

import pytest

from konsil.errors import RunError
from konsil.evaluation.results import CLIENT_AVERAGE, GLOBAL, Row
from konsil.evaluation.tuning import Choice, Trial, choose, validation_score


def row(
    role: str, value: float, split: str = "val", site: str = CLIENT_AVERAGE, **more: str
) -> Row:
    return Row(more.get("method", "a"), 0, role, split, site, more.get("metric", "dice"), value, 9)


def trial(lr: float, score: float | None, method: str = "a") -> Trial:
    return Trial(Choice(method, shown={"lr": lr}), "global", score)


@pytest.mark.parametrize(
    ("roles", "counts"),
    [
        (["global", "personal", "super"], "super"),
        (["global", "personal"], "personal"),
        (["personal", "super", "global"], "super"),
        (["global"], "global"),
        (["local"], "local"),
        (["centralized"], "centralized"),
    ],
)
def test_the_role_that_counts(roles: list[str], counts: str):
    rows = [row(role, 0.1 * number) for number, role in enumerate(roles)]
    assert validation_score(rows, "a", "dice") == (counts, 0.1 * roles.index(counts))


def test_only_the_client_average_of_validation_images_of_the_main_metric_counts():
    others = [
        row("global", 0.9, split="test"),
        row("global", 0.9, site=GLOBAL),
        row("global", 0.9, site="north"),
        row("global", 0.9, metric="dice_cup"),
        row("global", 0.9, method="b"),
        row("super", 0.9, metric="selector_accuracy"),  # no score of the task
        row("super", 0.9, split="test"),
    ]
    assert validation_score([*others, row("global", 0.3)], "a", "dice") == ("global", 0.3)
    assert validation_score(others, "a", "dice") == ("", None)


def test_a_score_is_the_mean_over_seeds_and_a_seed_that_failed_leaves_none():
    rows = [row("global", value)._replace(seed=seed) for seed, value in enumerate((0.2, 0.4, 0.9))]
    assert validation_score(rows, "a", "dice", 3) == ("global", pytest.approx(0.5))
    assert validation_score(rows[:2], "a", "dice", 3) == ("global", None)


def test_the_highest_score_wins_in_every_method():
    trials = [trial(0.1, 0.5), trial(0.2, 0.7), trial(0.3, 0.6)]
    trials += [trial(0.1, 0.9, "b"), trial(0.2, 0.8, "b")]
    assert choose(trials) == {"a": trials[1], "b": trials[3]}


def test_of_equals_the_first_wins():
    equal = [trial(0.2, 0.7), trial(0.1, 0.7), trial(0.3, 0.7)]
    assert choose(equal)["a"] is equal[0]
    assert choose([*equal, trial(0.9, 0.71)])["a"].values == {"lr": 0.9}


def test_a_trial_without_a_score_cannot_win():
    assert choose([trial(0.1, None), trial(0.2, 0.0)])["a"].values == {"lr": 0.2}
    with pytest.raises(RunError, match="b: no combination of settings has a validation score"):
        choose([trial(0.1, 0.5), trial(0.1, None, "b")])
