"""How a site computes: precision, memory format, and `performance: auto`, which finds out."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from torch.nn.functional import cross_entropy

from konsil import api
from konsil.config import ComputeConfig, Experiment, TrainingConfig, check_experiment
from konsil.deploy.agreement import without_places
from konsil.errors import ConfigError
from konsil.federation import performance
from konsil.federation.performance import Layout, rate, tried, with_performance
from konsil.federation.plan import Plan
from konsil.ingredients.learner import Learner
from konsil.networks import NetworkSpec, arranged, build_network
from konsil.weights import BoundNetwork, Weights

MakePlan = Callable[..., Plan]
SPEC = NetworkSpec("small", 3, 2, 32, "group")


def learner(**computed: str) -> Learner:
    torch.manual_seed(0)
    compute = ComputeConfig(**computed)
    net = arranged(build_network(SPEC), compute)
    training = TrainingConfig(optimizer="sgd", lr=0.1)
    return Learner(BoundNetwork(net), training, precision=compute.precision)


def gradient(of: Learner, factor: float = 1.0) -> torch.Tensor:
    noise = torch.Generator().manual_seed(1)
    x = torch.rand(8, 3, 32, 32, generator=noise)
    of.accumulate(factor * cross_entropy(of(x), torch.arange(8) % 2))
    return of.grad.clone()


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize(
    ("precision", "memory_format", "closest", "farthest"),
    [
        ("float32", "channels_last", 0, 1e-4),
        ("bf16", "contiguous", 1e-4, 0.1),
        ("bf16", "channels_last", 1e-4, 0.1),
        ("fp16", "contiguous", 1e-6, 0.05),
    ],
)
def test_other_ways_compute_the_same_gradient_as_far_as_they_can(
    precision, memory_format, closest, farthest
):
    plain, other = learner(), learner(precision=precision, memory_format=memory_format)
    assert closest <= distance(gradient(other), gradient(plain)) < farthest
    assert other.grad.dtype == other.bound.flat.dtype == torch.float32
    assert other(torch.rand(1, 3, 32, 32)).dtype == torch.float32


def test_gradients_too_small_for_half_precision_are_not_lost():
    """What fp16 cannot hold is below 6e-8; they are computed 4096 times as large."""
    plain, half = gradient(learner(), 1e-6), gradient(learner(precision="fp16"), 1e-6)
    assert float(plain.abs().max()) < 1e-6
    assert distance(half, plain) < 0.05


def test_a_batch_whose_gradient_half_precision_cannot_hold_counts_for_nothing():
    half = learner(precision="fp16")
    first = gradient(half)
    assert torch.equal(gradient(half, 1e9), first)  # what was there stays
    half.apply()
    assert half.weights().flat.isfinite().all()


def test_features_are_float32_too():
    logits, features = learner(precision="bf16").with_features(torch.rand(2, 3, 32, 32))
    assert logits.dtype == features.dtype == torch.float32


def test_the_plan_names_what_changes_bits_and_is_what_it_was_without(make_plan: MakePlan):
    plain = make_plan()
    assert make_plan(compute={"precision": "float32"}).hash == plain.hash
    other = {"precision": "bf16", "memory_format": "channels_last", "kernels": "fast", "threads": 2}
    plans = [make_plan(compute={key: value}) for key, value in other.items()]
    assert len({plain.hash, *(plan.hash for plan in plans)}) == 5
    for plan in plans:
        assert Plan.from_json(plan.to_json()).experiment.compute == plan.experiment.compute


def test_without_the_word_nothing_is_tried(make_plan: MakePlan):
    plan = make_plan()
    assert with_performance(plan) == performance.Trial(plan.experiment, ())


def of(make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch, cores: int = 2, **keys) -> Plan:
    """A plan whose trial is quick; its measurements are what they are."""
    monkeypatch.setattr(performance, "TURN", 0.001)
    monkeypatch.setattr(performance, "TURNS", 1)
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    return make_plan(performance="auto", **keys)


def speeds(monkeypatch: pytest.MonkeyPatch, **known: float) -> None:
    """Let ways have these speeds, by the word in which they differ from the plain one."""

    def of_ways(plan: Plan, ways: list[ComputeConfig]) -> list[float]:
        words = [(w.kernels, w.memory_format, w.precision) for w in ways]
        return [max(known.get(word, 1) for word in way) for way in words]

    def of_layout(plan: Plan, compute: ComputeConfig, layout: Layout) -> float:
        return known.get(f"w{layout.workers}t{layout.threads}", 1.0)

    monkeypatch.setattr(performance, "_speeds", of_ways)
    monkeypatch.setattr(performance, "rate", of_layout)


def test_the_fastest_way_is_taken_and_told(make_plan, monkeypatch):
    plan = of(make_plan, monkeypatch, compute={"precision": "auto"})
    speeds(monkeypatch, fast=1.1, channels_last=1.2, bf16=1.4, w1t2=1.5, w2t1=1.7)
    found = tried(plan)
    compute, engine = found.experiment.compute, found.experiment.engine
    assert compute.model_dump(exclude={"device"}) == {
        "kernels": "fast",
        "memory_format": "channels_last",
        "precision": "bf16",
        "threads": 1,
    }
    assert (engine.name, engine.workers) == ("processes", 2)
    assert found.experiment.performance == "plain"
    assert found.lines[1] == "memory_format channels_last (contiguous x 1.10, channels_last x 1.20)"
    assert found.lines[3].startswith("2 worker processes of 1 thread (one process of 1 thread x 1")


def test_what_is_hardly_faster_is_not_taken(make_plan, monkeypatch):
    plan = of(make_plan, monkeypatch)
    speeds(monkeypatch, fast=1.02, channels_last=1.02, bf16=1.02, w1t2=1.02, w2t1=0.9)
    found = tried(plan).experiment
    assert found.compute.model_dump() == ComputeConfig().model_dump()
    assert found.engine.name == "inprocess"


def test_threads_may_be_faster_than_processes(make_plan, monkeypatch):
    plan = of(make_plan, monkeypatch)
    speeds(monkeypatch, w1t2=1.9, w2t1=1.7)
    found = tried(plan).experiment
    assert (found.compute.threads, found.engine.name) == (2, "inprocess")


def test_what_the_experiment_says_is_not_overruled(make_plan, monkeypatch):
    plain = {"kernels": "reference", "memory_format": "contiguous", "precision": "float32"}
    written = plain | {"threads": 1}
    plan = of(make_plan, monkeypatch, compute=written, engine={"name": "inprocess"})
    speeds(monkeypatch, fast=2, channels_last=2, bf16=2, w1t2=2, w2t1=2)
    found = tried(plan)
    assert found.experiment.compute.model_dump() == ComputeConfig().model_dump()
    assert (found.experiment.engine.name, found.lines) == ("inprocess", ())


def test_one_core_has_no_layout_to_choose(make_plan, monkeypatch):
    found = tried(of(make_plan, monkeypatch, cores=1))
    assert (found.experiment.compute.threads, found.experiment.engine.name) == (1, "inprocess")
    assert len(found.lines) == 3  # kernels, memory format, precision


def test_a_precision_that_was_not_shown_to_cost_no_dice_is_asked_for(make_plan, monkeypatch):
    """Only `precision: auto` tries fp16, the half precision of older GPUs."""
    monkeypatch.setattr(performance, "precisions", lambda device: ("float32", "fp16"))
    for compute, taken in (({}, "float32"), ({"precision": "auto"}, "fp16")):
        plan = of(make_plan, monkeypatch, cores=1, compute=compute)
        speeds(monkeypatch, fp16=3.0)
        assert tried(plan).experiment.compute.precision == taken


def test_steps_are_really_measured(make_plan, monkeypatch):
    """In this process and in two others at once."""
    plan = of(make_plan, monkeypatch)
    compute = ComputeConfig()
    assert len(performance._speeds(plan, [compute, compute])) == 2
    for layout in (Layout(1, 1), Layout(2, 1)):
        assert rate(plan, compute, layout) > 0


def test_a_trial_leaves_no_trace_in_what_is_drawn(make_plan, monkeypatch):
    plan = of(make_plan, monkeypatch, compute={"threads": 1}, engine={"name": "inprocess"})
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    performance.training_step(plan, ComputeConfig())()
    assert torch.equal(torch.rand(3), expected)


def test_a_run_that_is_resumed_computes_as_it_did(experiment, monkeypatch, tmp_path):
    monkeypatch.setattr(performance, "TURN", 0.001)
    speeds(monkeypatch, channels_last=2.0)
    e: Experiment = experiment(performance="auto", methods=["fedavg"], rounds=1)
    first = api.run(e, out=tmp_path / "run", quiet=True)
    assert first.plan.experiment.compute.memory_format == "channels_last"
    speeds(monkeypatch)  # today nothing is faster
    again = api.run(e, out=tmp_path / "run", resume=True, quiet=True)
    assert again.plan.hash == first.plan.hash
    said = yaml.safe_load((tmp_path / "run" / "plan.yaml").read_text())["experiment"]
    assert said["compute"]["memory_format"] == "channels_last"
    assert "performance" not in said
    fresh = api.run(e, out=tmp_path / "another", quiet=True)
    assert fresh.plan.hash != first.plan.hash


def test_a_precision_is_found_by_a_trial_alone(experiment):
    raw = experiment().model_dump(mode="json", exclude_unset=True)
    with pytest.raises(ConfigError, match="say performance: auto"):
        check_experiment(raw | {"compute": {"precision": "auto"}}, "test")


def test_between_hospitals_one_machine_does_not_choose_for_all(experiment):
    with pytest.raises(ConfigError, match=r"between them say compute\.kernels"):
        without_places(experiment(performance="auto"))


def test_a_trial_never_shows_in_the_weights(make_plan, monkeypatch, tmp_path: Path):
    """What is chosen is a setting: written by hand it gives the same bits."""
    speeds(monkeypatch, channels_last=2.0)
    plan = of(make_plan, monkeypatch, methods=["fedavg"], rounds=1)
    chosen = replace(plan, experiment=tried(plan).experiment)
    by_hand = make_plan(methods=["fedavg"], rounds=1, compute={"memory_format": "channels_last"})
    assert chosen.hash == by_hand.hash


def test_arranging_changes_no_weights():
    torch.manual_seed(0)
    plain = Weights.of(build_network(SPEC))
    torch.manual_seed(0)
    compute = ComputeConfig(memory_format="channels_last", kernels="fast")
    assert Weights.of(arranged(build_network(SPEC), compute)).equals(plain)
