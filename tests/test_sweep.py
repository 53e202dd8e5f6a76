"""What a sweep tries of which method, by a grid and by Optuna, without training anything."""

import re
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from konsil.config import Experiment, check_experiment
from konsil.errors import ConfigError
from konsil.evaluation.tuning import Choice, Trial
from konsil.searching import stages, with_choices
from konsil.sweep import NO_OPTUNA, Dimension, Range, Sweep, dimension

GIVEN: dict[str, Any] = {
    "name": "eyes",
    "federation": {"synthetic": "retina"},
    "methods": [
        "local",
        {"name": "fedavg", "training": {"lr": 0.5, "warmup": 1}},
        {"name": "fedsm", "label": "mine", "lambda": 0.8},
    ],
    "rounds": 5,
    "seeds": [3, 4],
}


@pytest.fixture
def given() -> Experiment:
    return check_experiment(GIVEN, "test")


def grid(sweep: Sweep) -> list[Choice]:
    """All choices, in the order in which they are asked for."""
    return [trial.choice for trial in sweep.carry_out(lambda asked: [Trial(c) for c in asked])]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a", ["a"]),
        ("1e-4,1e-3", [1e-4, 1e-3]),  # YAML takes both for words
        ("[1e-4, 0.001, 0.0010]", [1e-4, 1e-3]),  # each once
        ("0.1, 0.3, auto", [0.1, 0.3, "auto"]),
        ("[0.9, 0.99]", [0.9, 0.99]),
        ("[[0.9, 0.99], [0.8, 0.9]]", [[0.9, 0.99], [0.8, 0.9]]),
        ("{a: 1}, b", [{"a": 1}, "b"]),
        ("null, 1", [None, 1]),
        ("1..8", Range(1, 8)),
        ("1e-4 .. 1e-2", Range(1e-4, 1e-2)),
        ("-0.5..0.5", Range(-0.5, 0.5)),
    ],
)
def test_what_values_mean(text: str, values: Any):
    assert dimension(f"training.lr={text}") == Dimension("training.lr", False, values)


@pytest.mark.parametrize(
    ("low", "high", "log", "whole"),
    [(1, 8, False, True), (1, 10, True, True), (0.1, 0.99, False, False), (1e-4, 1e-3, True, False),
     (0, 100, False, True), (-1.0, 10.0, False, False), (1, 2.5, False, False)],
)  # fmt: skip
def test_a_range_that_spans_a_decade_goes_by_its_logarithm(
    low: float, high: float, log: bool, whole: bool
):
    assert (Range(low, high).log, Range(low, high).whole) == (log, whole)


@for_all(st.floats(0.0, 1.0), st.floats(1e-6, 1.0), st.floats(1e-6, 1.0))
def test_a_number_of_a_range_is_short_and_stays_in_it(share: float, low: float, width: float):
    drawn = low + share * width
    rounded = Range(low, low + width).rounded(drawn)
    assert low <= rounded <= low + width
    assert abs(rounded - drawn) <= 0.005 * drawn
    assert rounded in (low, low + width) or len(re.sub(r"e.*|^0\.0*|\D", "", f"{rounded!r}")) <= 4


def test_a_setting_of_a_method_does_not_multiply_the_others(given: Experiment):
    tried = ["methods.mine.lambda=0.4,0.7,auto", "training.lr=0.1,0.01"]
    found = grid(Sweep.of(given, tried))
    assert [c.label for c in found if c.method == "local"] == ["local-lr0.1", "local-lr0.01"]
    assert [c.label for c in found if c.method == "fedavg"] == ["fedavg-lr0.1", "fedavg-lr0.01"]
    mine = [c.own for c in found if c.method == "mine"]
    assert mine == [
        {"training.lr": lr, "lambda": value} for lr in (0.1, 0.01) for value in (0.4, 0.7, "auto")
    ]
    (stage,) = stages(given, found, [7])
    e = stage.experiment
    assert (e.seeds, e.rounds, e.name) == ([7], 5, "eyes-run")
    by_title = {m.title: m for m in e.methods}
    assert by_title["fedavg-lr0.01"].training.model_dump(exclude_unset=True) == {
        "lr": 0.01, "warmup": 1,
    }  # fmt: skip
    assert by_title["mine-lr0.01-lambdaauto"].settings == {"lambda": "auto"}
    assert len(e.methods) == 2 + 2 + 6


def test_a_method_without_anything_to_try_is_not_tried(given: Experiment):
    found = grid(Sweep.of(given, ["methods.mine.lambda=0.4,0.7"]))
    assert [c.label for c in found] == ["mine-lambda0.4", "mine-lambda0.7"]


def test_a_methods_own_values_of_a_setting_replace_those_for_all(given: Experiment):
    tried = ["methods.mine.training.lr=0.3", "training.lr=0.1,0.2"]
    found = grid(Sweep.of(given, tried))
    rates = [(c.method, c.own["training.lr"]) for c in found]
    assert rates == [
        ("local", 0.1), ("local", 0.2), ("fedavg", 0.1), ("fedavg", 0.2), ("mine", 0.3)
    ]  # fmt: skip


def test_the_settings_of_all_are_runs_of_their_own(given: Experiment):
    tried = ["server.momentum=0,auto", "rounds=2,3"]
    found = stages(given, grid(Sweep.of(given, tried)), given.seeds)
    assert [s.folder for s in found] == [
        "momentum0-rounds2", "momentum0-rounds3", "momentumauto-rounds2", "momentumauto-rounds3"
    ]  # fmt: skip
    assert [(s.experiment.server.momentum, s.experiment.rounds) for s in found] == [
        (0, 2), (0, 3), ("auto", 2), ("auto", 3)
    ]  # fmt: skip
    assert all([m.title for m in s.experiment.methods] == ["local", "fedavg", "mine"]
               for s in found)  # fmt: skip


def test_a_value_that_cannot_be_in_a_folders_name_is_there_by_its_hash(given: Experiment):
    found = grid(Sweep.of(given, ["training.betas=[[0.9, 0.99], [0.8, 0.99]]"]))
    labels = [c.label for c in found if c.method == "local"]
    assert len({*labels}) == 2
    assert all(re.fullmatch(r"local-betas[0-9a-f]{8}", label) for label in labels)


def test_the_name_of_a_method_may_have_dots():
    raw = GIVEN | {"methods": ["fedsm", {"name": "fedsm", "label": "fedsm.b"}]}
    e = check_experiment(raw, "test")
    assert [c.own for c in grid(Sweep.of(e, ["methods.fedsm.b.lambda=0.4"]))] == [{"lambda": 0.4}]


def score(choice: Choice) -> float:
    """As if lambda had to be 0.7 and the rate 0.01."""
    off = {0.4: 0.1, 0.7: 0.0, "auto": 0.05}[choice.own.get("lambda", 0.7)]
    return 1 - off - abs(choice.own["training.lr"] - 0.01)


def asked_of(sweep: Sweep, failing: float = 2.0) -> list[list[tuple[str, Any]]]:
    """What Optuna proposes, batch by batch; rates from `failing` on diverge."""
    asked = []

    def attempt(choices: Sequence[Choice]) -> list[Trial]:
        asked.append([(c.folder, c.own) for c in choices])
        return [
            Trial(c, "r", None if c.own["training.lr"] >= failing else score(c)) for c in choices
        ]

    sweep.carry_out(attempt)
    return asked


TRIED = ["training.lr=1e-4..1", "methods.mine.lambda=0.4,0.7,auto"]


def test_proposals_follow_from_seed_and_scores_alone(given: Experiment):
    twelve = asked_of(Sweep.of(given, TRIED, 12))
    assert asked_of(Sweep.of(given, TRIED, 12)) == twelve
    assert asked_of(Sweep.of(given, TRIED, 15))[:12] == twelve  # more trials go on with them
    other = asked_of(Sweep.of(given, TRIED, 12), failing=0.1)
    assert other[0] == twelve[0]
    assert other[-1] != twelve[-1]  # what was scored decides what is asked
    assert [{folder for folder, _ in batch} for batch in twelve[:3]] == [
        {"trial1"}, {"trial2"}, {"trial3"}
    ]  # fmt: skip
    assert all("lambda" not in own for batch in twelve for _, own in batch[:2])


def test_every_rate_is_in_the_range_and_lies_anywhere_in_it(given: Experiment):
    rates = [
        own["training.lr"] for batch in asked_of(Sweep.of(given, TRIED, 10)) for _, own in batch
    ]
    assert all(1e-4 <= rate <= 1 for rate in rates)
    assert sum(rate < 1e-2 for rate in rates) > 5  # by factors: evenly drawn there would be none


def test_what_was_tried_is_not_trained_again(given: Experiment):
    sweep = Sweep.of(given, ["methods.mine.lambda=0.4,0.7"], 8)
    batches: list[int] = []

    def attempt(choices: Sequence[Choice]) -> list[Trial]:
        batches.append(len(choices))
        return [Trial(c, "r", 0.5) for c in choices]

    assert len(sweep.carry_out(attempt)) == sum(batches) == 2
    assert len(batches) == 8


def test_before_anything_is_trained_every_value_is_checked(given: Experiment):
    sweep = Sweep.of(given, [*TRIED, "server.momentum=0,0.5"], 3)
    checked = sweep.to_check()
    assert {c.own["training.lr"] for c in checked} == {1e-4, 1}
    assert {c.own.get("lambda") for c in checked} == {None, 0.4, 0.7, "auto"}
    assert {c.whole["server.momentum"] for c in checked} == {0, 0.5}


def test_chosen_methods_have_their_own_settings_and_their_old_names(given: Experiment):
    choices = [Choice("local"), Choice("mine", own={"lambda": 0.4, "training.lr": 0.1})]
    made = with_choices(given, choices, {"rounds": 2})
    assert [m.title for m in made.methods] == ["local", "mine"]
    assert (made.methods[1].settings, made.methods[1].training.lr) == ({"lambda": 0.4}, 0.1)
    assert (made.rounds, made.seeds) == (2, [3, 4])
    assert given.methods[2].settings == {"lambda": 0.8}  # the given one is as it was


@pytest.mark.parametrize(
    ("tried", "trials", "words"),
    [
        ([], None, "nothing to try"),
        (["training.lr"], None, "--try training.lr: write key=values"),
        (["training.lr="], None, "no value to try"),
        (["training.lr=[0.1"], None, "not valid YAML"),
        (["training.lr=0.1,-1"], None, r"training.lr = -1: must be greater than 0"),
        (["training.rate=1"], None, "training.rate: unknown key"),
        (["training.lr=1e-4..1e-2"], None, "a range has no grid; add --trials N"),
        (["training.lr=1e-2..1e-4"], 3, r"0.01 is not below 0.0001"),
        (["training.lr=0..1"], 3, r"training.lr = 0: must be greater than 0"),
        (["training.lr=1", "training.lr=2"], None, "--try training.lr: twice"),
        (["methods.fedsn.lambda=1"], None, "methods.NAME.SETTING, with one of local, fedavg, mine"),
        (["methods.mine=fedsm"], None, "methods.NAME.SETTING"),
        (["methods=[[local]]"], None, "--try methods=.*: cannot be tried"),
        (["seeds=1,2"], None, "--try seeds=1,2: cannot be tried; scores are compared on the same"),
        (["federation.split_seed=1,2"], None, "cannot be tried"),
        (["task.structures={a: [1]}"], None, "cannot be tried"),
        (["engine.name=inprocess"], None, "cannot be tried"),
    ],
)
def test_what_cannot_be_tried(given: Experiment, tried: list[str], trials: int | None, words: str):
    with pytest.raises(ConfigError, match=words):
        Sweep.of(given, tried, trials)


def test_without_optuna_there_are_grids_alone(given: Experiment, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=re.escape(NO_OPTUNA)):
        Sweep.of(given, TRIED, 3)
    assert Sweep.of(given, ["training.lr=1,2"]).trials is None
