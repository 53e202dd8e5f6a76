"""The plan before round 1: of every method, in words that fit a terminal."""

import pytest
from rich.console import Console

from konsil.ingredients.method import METHODS
from konsil.report.plan import print_plan


def printed(plan, width: int = 100) -> str:
    console = Console(record=True, width=width, file=open("/dev/null", "w"))  # noqa: SIM115
    print_plan(console, plan)
    return console.export_text()


def test_every_method_can_be_planned(make_plan):
    text = printed(make_plan(methods=sorted(METHODS.all())))
    assert all(name in text for name in METHODS.all())


def test_who_needs_single_models_says_so(make_plan):
    text = " ".join(printed(make_plan(methods=["fedfomo"]), width=300).split())
    assert "one by one" in text
    text = " ".join(printed(make_plan(methods=["fedavg"]), width=300).split())
    assert "one by one" not in text


def test_a_methods_own_training_is_printed(make_plan):
    own = {"name": "fedavg", "label": "mine", "training": {"lr": 0.002, "local_epochs": 2}}
    text = printed(make_plan(methods=["fedavg", own]))
    assert "adam 0.001" in text
    assert "mine's own: local_epochs 2, lr 0.002\n" in text
    assert "fedavg's own" not in text


def test_the_servers_momentum_is_printed(make_plan):
    assert "the server's momentum 0.5," in printed(make_plan(server={"momentum": "auto"}))
    assert "the server's momentum" not in printed(make_plan())


@pytest.mark.parametrize(
    ("structure", "training", "warned"),
    [
        ("Left_lung", {"augment": "strong"}, True),
        ("lung (right)", {"augment": "light"}, True),
        ("left", {"augment": "light", "augment_flips": "none"}, False),
        ("left", {"augment": "none"}, False),
        ("cleft", {"augment": "strong"}, False),  # no side of anything
    ],
)
def test_flips_that_mix_up_two_sides_are_said(make_plan, structure, training, warned):
    task = {"structures": {structure: [255]}}
    text = " ".join(printed(make_plan(task=task, training=training)).split())
    assert ("training.augment_flips=none" in text) is warned
