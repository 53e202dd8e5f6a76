"""The table and the picture of a search."""

import pytest
from rich.console import Console

from konsil.evaluation.tuning import Choice, Trial, choose
from konsil.report.style import look
from konsil.report.tuning import draw_tuning, edge_notes, tuning_table

COLOURS = {"fedavg": "#0072B2", "mine[b]": "#D55E00"}


def trial(method: str, lr: float, epochs: int, role: str, score: float | None) -> Trial:
    shown = {"lr": lr, "local_epochs": epochs, "rounds": 4}
    return Trial(Choice(method, shown=shown), role, score)


@pytest.fixture
def trials() -> list[Trial]:
    scores = {"fedavg": [0.5, 0.7, 0.6], "mine[b]": [0.5, 0.6, None]}
    roles = {"fedavg": "global", "mine[b]": "super"}
    rates = (0.001, 0.002, 0.004)
    return [
        trial(m, rate, 1, roles[m] if score else "", score)
        for m in scores
        for rate, score in zip(rates, scores[m], strict=True)
    ]


def test_the_table_marks_what_is_chosen_and_what_failed(trials: list[Trial]):
    console = Console(record=True, width=90, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(tuning_table(trials, choose(trials), "dice"))
    text = console.export_text()
    lines = [line.split() for line in text.splitlines()]
    assert ["fedavg", "global", "0.002", "1", "4", "0.7000", "chosen"] in lines
    assert ["fedavg", "global", "0.004", "1", "4", "0.6000"] in lines
    assert ["mine[b]", "super", "0.002", "1", "4", "0.6000", "chosen"] in lines
    assert ["mine[b]", "0.004", "1", "4", "–"] in lines
    assert sum("chosen" in line for line in lines) == 2
    assert "test image was opened" in " ".join(text.split())


def test_a_choice_at_the_end_of_the_rates_is_noted(trials: list[Trial]):
    assert list(edge_notes(trials, choose(trials))) == []
    assert list(edge_notes(trials[:2], choose(trials[:2]))) == [
        "fedavg: 0.002 is at the end of the rates tried; a larger may be better"
    ]
    assert "a smaller may be better" in next(edge_notes(trials[1:3], choose(trials[1:3])))
    assert list(edge_notes(trials[:1], choose(trials[:1]))) == []  # nothing was tried


def test_the_picture_has_a_line_a_method_and_a_ring_around_the_choice(trials: list[Trial]):
    with look():
        axes = draw_tuning(trials, choose(trials), "dice", COLOURS, ["lr"]).axes[0]
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines["fedavg global"].get_xdata()) == [0.001, 0.002, 0.004]
    assert list(lines["mine[b] super"].get_ydata()) == [0.5, 0.6]  # where it failed there is none
    rings = [line.get_xydata().tolist() for line in axes.get_lines() if line.get_markersize() > 9]
    assert rings == [[[0.002, 0.7]], [[0.002, 0.6]], []]
    assert axes.get_xscale() == "log"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.001", "0.002", "0.004"]


def test_every_key_has_a_panel_whose_line_is_the_best_at_each_value():
    both = [trial("fedavg", lr, n, "global", lr * n) for n in (1, 2) for lr in (0.1, 0.2)]
    keys = ["lr", "local_epochs"]
    with look():
        rates, epochs = draw_tuning(both, choose(both), "dice", COLOURS, keys).axes
    assert [axes.get_xlabel() for axes in (rates, epochs)] == ["learning rate", "local epochs"]
    assert [axes.get_xscale() for axes in (rates, epochs)] == ["log", "linear"]
    assert rates.get_lines()[0].get_xydata().tolist() == [[0.1, 0.2], [0.2, 0.4]]
    assert epochs.get_lines()[0].get_xydata().tolist() == [[1, 0.2], [2, 0.4]]
    dots = sorted(map(tuple, rates.collections[0].get_offsets().tolist()))
    assert dots == [(0.1, 0.1), (0.1, 0.2), (0.2, 0.2), (0.2, 0.4)]  # every trial


def test_a_key_of_one_value_has_no_panel():
    both = [trial("fedavg", 0.1, n, "global", 0.1 * n) for n in (1, 2)]
    with look():
        (axes,) = draw_tuning(both, choose(both), "dice", COLOURS, ["lr", "local_epochs"]).axes
    assert axes.get_xlabel() == "local epochs"


def test_words_stand_behind_numbers_and_a_method_without_the_key_has_no_line():
    own = [
        Trial(Choice("fedavg", shown={"lambda": value}), "global", score)
        for value, score in (("auto", 0.3), (0.7, 0.2), (0.1, 0.1))
    ]
    other = Trial(Choice("mine[b]", shown={"momentum": 0.5}), "super", 0.9)
    trials = [*own, other]
    with look():
        (axes,) = draw_tuning(trials, choose(trials), "dice", COLOURS, ["lambda"]).axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.1", "0.7", "auto"]
    assert axes.get_lines()[0].get_xydata().tolist() == [[0, 0.1], [1, 0.2], [2, 0.3]]
    assert not any("mine" in str(line.get_label()) for line in axes.get_lines())
