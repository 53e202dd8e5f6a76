"""What a search tries, and the experiment that it writes."""

from pathlib import Path
from typing import Any

import pytest

from konsil.config import Experiment, check_experiment, read_experiment
from konsil.errors import ConfigError
from konsil.evaluation.tuning import Trial, choose
from konsil.tuning import Search, write_tuned

GIVEN: dict[str, Any] = {
    "name": "eyes",
    "federation": {"synthetic": "retina"},
    "methods": [
        "fedavg",
        {"name": "fedsm", "label": "mine", "lambda": 0.8, "training": {"lr": 0.5, "warmup": 1}},
    ],
    "rounds": 5,
    "seeds": [3, 4],
    "training": {"batch_size": 4, "lr": 0.25},
}


@pytest.fixture
def given() -> Experiment:
    return check_experiment(GIVEN, "test")


def trial(search: Search, method: str, **values: float) -> Trial:
    """The trial with these values, which is all that a search has chosen of the method."""
    choices = [c for c in search.choices() if c.method == method]
    (choice,) = [c for c in choices if c.shown.items() >= values.items()]
    return Trial(choice, "global", 0.5)


def test_every_method_is_tried_with_every_rate(given: Experiment):
    (stage,) = Search.of(given, [0.02, 0.01, 0.02], []).stages()
    e = stage.experiment
    assert [(m.name, m.title, m.training.lr) for m in e.methods] == [
        ("fedavg", "fedavg-lr0.01", 0.01),
        ("fedavg", "fedavg-lr0.02", 0.02),
        ("fedsm", "mine-lr0.01", 0.01),
        ("fedsm", "mine-lr0.02", 0.02),
    ]
    mine = e.methods[2]
    assert (mine.settings, mine.training.warmup) == ({"lambda": 0.8}, 1)  # its own stay
    assert (e.rounds, e.seeds, e.training) == (5, [3], given.training)


@pytest.mark.parametrize(
    ("usual", "epochs", "rounds"),
    [(1, 1, 5), (1, 2, 3), (1, 3, 2), (1, 20, 1), (2, 1, 10), (2, 2, 5), (2, 4, 3)],
)
def test_every_combination_sees_as_many_images(usual: int, epochs: int, rounds: int):
    training = {"local_epochs": usual}
    search = Search.of(check_experiment(GIVEN | {"training": training}, "test"), [], [epochs], 7)
    (stage,) = search.stages()
    assert (stage.experiment.rounds, stage.experiment.seeds) == (rounds, [7])
    assert {m.training.local_epochs for m in stage.experiment.methods} == {epochs}
    assert [m.title for m in stage.experiment.methods] == ["fedavg", "mine"]


def test_each_number_of_epochs_is_a_run_of_its_own(given: Experiment):
    stages = Search.of(given, [0.1], [2, 1, 2]).stages()
    assert [(s.folder, s.experiment.rounds) for s in stages] == [("epochs1", 5), ("epochs2", 3)]


def test_of_equals_the_smaller_rate_then_the_fewer_epochs(given: Experiment):
    search = Search.of(given, [0.2, 0.1], [4, 2])
    equal = [Trial(choice, "global", 0.7) for choice in search.choices()]
    for best in choose(equal).values():
        assert (best.values["lr"], best.values["local_epochs"]) == (0.1, 2)
    better = Trial(equal[1].choice, "global", 0.71)
    assert choose([equal[0], better, *equal[2:]])["fedavg"] is better


@pytest.mark.parametrize(
    ("rates", "epochs", "words"),
    [
        ([], [], "nothing to choose from: give --lr or --local-epochs"),
        ([0.1, -1], [], r"--lr: .*\n  lr = -1: must be greater than 0"),
        ([float("nan")], [], r"lr = nan: must be a finite number"),
        ([], [0], r"--local-epochs: .*\n  local_epochs = 0: must be greater than or equal to 1"),
    ],
)
def test_what_cannot_be_tried(given: Experiment, rates: Any, epochs: Any, words: str):
    with pytest.raises(ConfigError, match=words):
        Search.of(given, rates, epochs)


def test_the_tuned_file_is_the_given_one_with_what_was_chosen(given: Experiment, tmp_path: Path):
    search = Search.of(given, [0.01, 0.02], [])
    chosen = [trial(search, "fedavg", lr=0.01), trial(search, "mine", lr=0.02)]
    lines = write_tuned(search, chosen, tmp_path)
    assert lines == [f"tuned experiment: {tmp_path / 'tuned.yaml'}"]
    tuned = read_experiment(tmp_path / "tuned.yaml")
    fedsm = GIVEN["methods"][1] | {"training": {"lr": 0.02, "warmup": 1}}
    methods = [{"name": "fedavg", "training": {"lr": 0.01}}, fedsm]
    expected = GIVEN | {"name": "eyes-tuned", "methods": methods}
    assert tuned == check_experiment(expected, "test")


def test_equal_epochs_bring_their_rounds(given: Experiment, tmp_path: Path):
    search = Search.of(given, [], [1, 2])
    write_tuned(search, [trial(search, m, local_epochs=2) for m in ("fedavg", "mine")], tmp_path)
    tuned = read_experiment(tmp_path / "tuned.yaml")
    assert tuned.rounds == 3
    assert [m.training.local_epochs for m in tuned.methods] == [2, 2]
    assert tuned.methods[0].training.model_fields_set == {"local_epochs"}  # lr was not searched
    assert [path.name for path in tmp_path.iterdir()] == ["tuned.yaml"]


def test_different_epochs_are_also_written_with_equal_work(given: Experiment, tmp_path: Path):
    search = Search.of(given, [0.01, 0.02], [1, 2])
    chosen = [
        trial(search, "fedavg", lr=0.01, local_epochs=1),
        trial(search, "mine", lr=0.02, local_epochs=2),
    ]
    lines = write_tuned(search, chosen, tmp_path)
    assert read_experiment(tmp_path / "tuned.yaml").rounds == 5
    for epochs, rounds, title in ((1, 5, "fedavg"), (2, 3, "mine")):
        e = read_experiment(tmp_path / f"tuned-epochs{epochs}.yaml")
        assert (e.name, e.rounds) == (f"eyes-tuned-epochs{epochs}", rounds)
        assert [m.title for m in e.methods] == [title]
        assert any(f"{rounds} rounds: {title}" in line for line in lines)
    assert "more images where there are more local epochs" in lines[0]
