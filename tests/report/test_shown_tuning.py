"""The table and the picture of a search."""

import pytest
from rich.console import Console

from konsil.evaluation.tuning import Trial, choose
from konsil.report.style import look
from konsil.report.tuning import draw_tuning, edge_notes, tuning_table

COLOURS = {"fedavg": "#0072B2", "mine[b]": "#D55E00"}


@pytest.fixture
def trials() -> list[Trial]:
    scores = {"fedavg": [0.5, 0.7, 0.6], "mine[b]": [0.5, 0.6, None]}
    roles = {"fedavg": "global", "mine[b]": "super"}
    rates = (0.001, 0.002, 0.004)
    return [
        Trial(m, rate, 1, 4, roles[m] if score else "", score)
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
        axes = draw_tuning(trials, choose(trials), "dice", COLOURS).axes[0]
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines["fedavg global"].get_xdata()) == [0.001, 0.002, 0.004]
    assert list(lines["mine[b] super"].get_ydata()) == [0.5, 0.6]  # where it failed there is none
    rings = [line.get_xydata().tolist() for line in axes.get_lines() if line.get_markersize() > 9]
    assert rings == [[[0.002, 0.7]], [[0.002, 0.6]], []]
    assert axes.get_xscale() == "log"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.001", "0.002", "0.004"]


def test_epochs_are_told_apart_and_alone_are_the_axis():
    both = [Trial("fedavg", lr, n, 4, "global", lr * n) for n in (1, 2) for lr in (0.1, 0.2)]
    with look():
        axes = draw_tuning(both, choose(both), "dice", COLOURS).axes[0]
        names = {line.get_label() for line in axes.get_lines()}
        assert {"fedavg global, local_epochs 1", "fedavg global, local_epochs 2"} <= names
        axes = draw_tuning(both[::2], choose(both[::2]), "dice", COLOURS).axes[0]
    assert (axes.get_xscale(), axes.get_xlabel()) == ("linear", "local epochs")
    assert list(axes.get_lines()[0].get_xdata()) == [1, 2]
