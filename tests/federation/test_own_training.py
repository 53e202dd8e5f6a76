"""A method's own training settings: the same bits as an experiment that has them for all."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from konsil import testing as toy
from konsil.federation.plan import Plan

# every kind of reader: learner, batches, augmentation, schedule, server and site that keep models
OWN = {
    "lr": 0.01,
    "batch_size": 2,
    "local_epochs": 2,
    "optimizer": "sgd",
    "momentum": 0.5,
    "schedule": "cosine",
    "clip": 1.0,
    "augment": "light",
    "validate_every": 2,
    "keep": "last",
    "running_statistics": "local",
}
MakePlan = Callable[..., Plan]


@pytest.fixture
def usual(classes: dict[str, Any]) -> dict[str, Any]:
    return classes


def left_by(plan: Plan, folder: Path) -> dict[str, dict[str, bytes]]:
    """What a run has left of every method."""
    toy.whole_run(plan, folder)
    found: dict[str, dict[str, bytes]] = {}
    for name, content in toy.what_remains(folder).items():
        without_name_of_the_plan = content.replace(plan.hash.encode(), b"")
        found.setdefault(name.partition("/")[0], {})[name] = without_name_of_the_plan
    return found


def test_one_methods_settings_are_the_experiments_to_the_bit(make_plan: MakePlan, tmp_path: Path):
    for_all = left_by(make_plan(methods=["fedsm"], training=OWN, rounds=2), tmp_path / "all")
    without = left_by(make_plan(methods=["local"], rounds=2), tmp_path / "without")
    for engine in ("inprocess", "processes"):
        methods = ["local", {"name": "fedsm", "training": OWN}]
        plan = make_plan(methods=methods, rounds=2, engine={"name": engine, "workers": 1})
        own = left_by(plan, tmp_path / engine)
        assert own["fedsm"] == for_all["fedsm"]
        assert own["local"] == without["local"]  # its neighbour notices nothing


@pytest.mark.parametrize("key", OWN)
def test_every_setting_reaches_the_job(make_plan: MakePlan, key: str):
    plan = make_plan(methods=["local", {"name": "fedavg", "training": {key: OWN[key]}}])
    local, fedavg = (plan.method(job).context.training for job in plan.jobs)
    assert getattr(fedavg, key) == OWN[key] != getattr(local, key)
