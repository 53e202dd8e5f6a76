import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from konsil.errors import ConfigError
from konsil.federation.plan import POOLED_SITE, Job, Plan
from konsil.federation.runner import differences
from konsil.ingredients.method import METHODS, method
from konsil.methods.fedavg import FedAvg

MakePlan = Callable[..., Plan]


def federation(squares: Path, **more: Any) -> dict[str, Any]:
    return {"folder": str(squares), "image_size": 32, **more}


def test_a_plan_has_a_job_for_every_method_and_seed(make_plan: MakePlan):
    plan = make_plan(methods=["fedavg", {"name": "fedavg", "label": "b"}], seeds=[0, 7])
    assert [job.name for job in plan.jobs] == ["fedavg/seed0", "fedavg/seed7", "b/seed0", "b/seed7"]
    assert plan.job("b/seed7") == Job("b", 7)
    assert plan.method_config(plan.job("b/seed7")).label == "b"


def test_centralized_training_pools_the_sites(make_plan: MakePlan):
    plan = make_plan(methods=["centralized"])
    assert plan.method(plan.jobs[0]).context.sites == (POOLED_SITE,)
    assert plan.members(POOLED_SITE) == ("north", "south")
    assert plan.images(POOLED_SITE, "train") == sum(c["train"] for c in plan.counts.values())
    assert plan.images("north", "val") == plan.counts["north"]["val"]


def test_the_hash_does_not_see_what_changes_no_number(
    make_plan: MakePlan, squares: Path, tmp_path: Path
):
    plan = make_plan()
    shutil.copytree(squares, tmp_path / "elsewhere")
    assert make_plan().hash == plan.hash
    assert make_plan(name="other").hash == plan.hash
    for engine in ({"name": "processes", "workers": 2}, {"durable": True}):
        assert make_plan(engine=engine).hash == plan.hash
    for place in (
        federation(squares, cache=str(tmp_path / "c")),
        federation(tmp_path / "elsewhere"),
    ):
        assert make_plan(federation=place).hash == plan.hash


def test_defaults_written_out_are_the_same_plan(make_plan: MakePlan):
    plan = make_plan(methods=["fedsm"])
    explicit = make_plan(
        methods=[{"name": "fedsm", "label": "fedsm", "lambda": 0.7}],
        task={"loss": "dice_ce"},
        training={"batch_size": 3, "lr": 1e-3},
        seeds=[0],
    )
    assert explicit.hash == plan.hash


CHANGES: dict[str, dict[str, Any]] = {
    "rounds": {"rounds": 3},
    "training.lr": {"training": {"batch_size": 3, "lr": 0.01}},
    "training.batch_size": {"training": {"batch_size": 4}},
    "seeds": {"seeds": [1]},
    "compute.threads": {"compute": {"threads": 2}},
    "methods.fedsm.lambda": {"methods": [{"name": "fedsm", "lambda": 0.8}]},
    "methods": {"methods": ["fedsm", "fedavg"]},
    "network.width": {"network": {"name": "unet", "width": 3}},
    "network.norm": {"network": {"name": "unet", "width": 2, "norm": "batch"}},
    "task.loss": {"task": {"loss": "dice"}},
    "task.normalise": {"task": {"normalise": False}},
    "server.absences.north": {"server": {"absences": {"north": [1]}}},
}


@pytest.mark.parametrize(("key", "blocks"), CHANGES.items(), ids=CHANGES)
def test_the_hash_sees_everything_numerical_and_the_difference_is_named(
    make_plan: MakePlan, key: str, blocks: dict[str, Any]
):
    plan, other = make_plan(methods=["fedsm"]), make_plan(**{"methods": ["fedsm"], **blocks})
    assert other.hash != plan.hash
    assert differences(plan.to_json(), other.to_json()) == [f"experiment.{key}"]


def test_a_methods_own_training_is_its_jobs_alone(make_plan: MakePlan):
    own = {"name": "fedavg", "label": "b", "training": {"lr": 0.01, "warmup": 1}}
    plan = make_plan(methods=["fedavg", own], seeds=[0, 1])
    usual = plan.experiment.training
    for job in plan.jobs:
        expected = usual.model_copy(update={"lr": 0.01, "warmup": 1} if job.method == "b" else {})
        assert plan.training(job) == plan.method(job).context.training == expected


def test_the_strength_of_augmentation_follows_the_number_of_steps(make_plan: MakePlan):
    """Ten training images in batches of three, two rounds of one epoch: 20/3 steps of 5000."""
    training = {"batch_size": 3, "augment": "strong", "augment_strength": "auto"}
    own = {"name": "fedavg", "training": {"local_epochs": 3}}
    methods = ["centralized", "local", own]
    plan = make_plan(training=training, methods=methods)
    images = sum(plan.images(site, "train") for site in plan.sites)
    steps = 2 * images / 3
    found = [plan.method(job).context.training.augment_strength for job in plan.jobs]
    assert found == pytest.approx([steps / 5000, steps / 5000, 3 * steps / 5000])
    longer = make_plan(training=training, rounds=5000)
    assert longer.training(longer.jobs[0]).augment_strength == 1.0


def test_the_hash_sees_a_methods_own_training_where_it_differs(make_plan: MakePlan):
    plan = make_plan()
    for same in ({}, {"lr": 1e-3}, {"batch_size": 3, "betas": [0.9, 0.999]}):
        other = make_plan(methods=[{"name": "fedavg", "training": same}])
        assert other.to_json() == plan.to_json()
    other = make_plan(methods=[{"name": "fedavg", "training": {"lr": 0.01, "batch_size": 3}}])
    assert other.hash != plan.hash
    assert other.resolved()["methods"][0]["training"] == {"lr": 0.01}
    assert differences(plan.to_json(), other.to_json()) == ["experiment.methods.fedavg.training"]
    again = Plan.from_json(json.loads(json.dumps(other.to_json())))
    assert (again.hash, again.to_json()) == (other.hash, other.to_json())
    assert again.training(again.jobs[0]).lr == 0.01


def test_the_hash_sees_the_split_and_the_images(make_plan: MakePlan, squares: Path, tmp_path: Path):
    plan = make_plan()
    seed = make_plan(federation=federation(squares, split_seed=1))
    one = make_plan(federation=federation(squares, sites=["south"]))
    assert len({plan.hash, seed.hash, one.hash}) == 3
    assert "experiment.federation.split_seed" in differences(plan.to_json(), seed.to_json())
    copy = tmp_path / "copy"
    shutil.copytree(squares, copy)
    path = copy / "north" / "images" / "003.png"
    pixels = np.array(Image.open(path))
    pixels[0, 0, 0] ^= 1
    Image.fromarray(pixels).save(path)
    changed = make_plan(federation=federation(copy))
    assert changed.hash != plan.hash
    assert differences(plan.to_json(), changed.to_json()) == ["fingerprint"]


def test_the_hash_sees_the_version(make_plan: MakePlan):
    from dataclasses import replace

    plan = make_plan()
    assert replace(plan, version="0.0.0").hash != plan.hash


def test_a_plan_survives_json(make_plan: MakePlan):
    plan = make_plan(
        methods=["centralized", {"name": "fedsm", "label": "half", "lambda": 0.5}, "fedsoup"],
        seeds=[1, 2],
        server={"absences": {"north": [1]}},
        engine={"name": "processes"},
    )
    again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again.hash == plan.hash
    assert again.jobs == plan.jobs
    assert again.to_json() == plan.to_json()
    for job in plan.jobs:
        assert again.method(job).settings == plan.method(job).settings
        assert again.method(job).context.network == plan.method(job).context.network


def test_differences_leave_out_what_may_differ(make_plan: MakePlan, squares: Path, tmp_path: Path):
    plan = make_plan()
    moved = make_plan(
        name="other",
        engine={"name": "processes"},
        federation=federation(squares, cache=str(tmp_path / "cache")),
    )
    assert differences(plan.to_json(), moved.to_json()) == []


def test_differences_name_several_keys_in_order(make_plan: MakePlan):
    plan = make_plan()
    other = make_plan(rounds=5, training={"batch_size": 5, "momentum": 0.5, "optimizer": "sgd"})
    assert differences(plan.to_json(), other.to_json()) == [
        "experiment.rounds",
        "experiment.training.batch_size",
        "experiment.training.momentum",
        "experiment.training.optimizer",
    ]


@pytest.fixture
def nosy() -> Iterator[None]:
    """A method whose server looks at single models."""

    @method("nosy", paper="nobody")
    class Nosy(FedAvg):
        needs = "individual"

    yield
    METHODS.remove("nosy")


def test_a_promise_of_means_only_refuses_who_needs_more(make_plan: MakePlan, nosy: None):
    blocks = {"methods": ["fedavg", {"name": "nosy", "label": "mine"}]}
    assert make_plan(**blocks)
    with pytest.raises(ConfigError, match=r"methods\.mine: at the server nosy needs .*means_only"):
        make_plan(**blocks, server={"means_only": True})


def test_a_promise_of_means_only_changes_no_number(make_plan: MakePlan):
    plan, promised = make_plan(), make_plan(server={"means_only": True})
    assert promised.hash == plan.hash
    assert differences(plan.to_json(), promised.to_json()) == []
