"""`network.initial`: what begins with a file, what does not, and which files are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from konsil import testing as toy
from konsil.errors import ConfigError, RoundFailed
from konsil.federation.engines import InProcessEngine
from konsil.federation.plan import Plan
from konsil.federation.runner import Run, differences
from konsil.networks import NetworkSpec, build_network
from konsil.report.plan import beginning
from konsil.weights import Weights

MakePlan = Callable[..., Plan]
SPEC = NetworkSpec("small", 3, 2, 32, normalise=True)


@pytest.fixture
def usual(classes: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return classes


def write(path: Path, spec: NetworkSpec = SPEC) -> Weights:
    """A file with weights that no seed of a plan draws; a tiny step changes none: none is zero."""
    torch.manual_seed(1234)
    weights = Weights.of(build_network(spec))
    weights.flat[weights.flat == 0] = 0.5
    weights.save(path)
    return weights


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write(tmp_path / "begin.safetensors")
    return tmp_path / "begin.safetensors"


def small(file: Path) -> dict[str, Any]:
    return {"network": {"name": "small", "initial": str(file)}}


# --- what begins with it ------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "fedsm", "scaffold", "fedsoup", "fedfomo"])
def test_the_first_shared_models_are_the_files(make_plan: MakePlan, file: Path, method: str):
    plan = make_plan(methods=[method], seeds=[0, 7], **small(file))
    models = 0
    for job in plan.jobs:  # another seed has the same beginning
        for name, part in plan.method(job).start().items():
            if name in toy.checks.MODELS:
                assert part.equals(Weights.load(file))
                models += 1
    assert models or method == "fedfomo"  # which shares none before round 1


@pytest.mark.parametrize("method", ["local", "fedfomo"])
def test_private_models_begin_with_it_too(
    make_plan: MakePlan, file: Path, tmp_path: Path, method: str
):
    plan = make_plan(methods=[method], training={"lr": 1e-30, "optimizer": "sgd"}, **small(file))
    toy.server(plan, tmp_path / "run")._round(1)
    for site in plan.sites:
        private = toy.state_of(plan, tmp_path / "run", site).private
        assert any(part.equals(Weights.load(file)) for part in private.values())


def test_the_selector_is_drawn_even_if_it_is_the_same_kind_of_network(
    make_plan: MakePlan, file: Path
):
    """Two sites, two classes, no normalisation: both networks have one specification."""
    blocks = {"methods": [{"name": "fedsm", "selector_optimizer": "average_moments"}]}
    blocks["task"] = {"name": "classification", "normalise": False}
    plain, begun = make_plan(**blocks), make_plan(**blocks, **small(file))
    before, after = (plan.method(plan.jobs[0]).start() for plan in (plain, begun))
    method = begun.method(begun.jobs[0])
    assert method.networks()["selector"].spec == method.context.network
    assert after["selector"].equals(before["selector"])
    assert after["global"].equals(Weights.load(file))


def test_another_network_of_a_method_is_drawn(make_plan: MakePlan, file: Path):
    context = (plan := make_plan(**small(file))).context(plan.jobs[0], plan.sites)
    other = replace(context.network, norm="batch")
    assert context.initial(other).equals(context.drawn(other))


def test_without_it_a_plan_and_its_draw_are_as_before(make_plan: MakePlan):
    plan = make_plan()
    assert "initial_weights" not in plan.to_json()
    assert "initial" not in plan.to_json()["experiment"]["network"]
    context = plan.context(plan.jobs[0], plan.sites)
    assert context.initial(context.network).equals(context.drawn(context.network))
    assert beginning(plan) == []


def test_entries_of_another_number_of_outputs_are_drawn(
    make_plan: MakePlan, outlines: dict[str, Any], tmp_path: Path
):
    """MONAI's U-Net has two layers with as many channels as outputs: the last two."""
    spec = NetworkSpec("unet", 3, 2, 32, normalise=True, width=2)
    given, file = write(tmp_path / "two.safetensors", spec), tmp_path / "two.safetensors"
    network = {**outlines["network"], "initial": str(file)}
    plan = make_plan(**{**outlines, "network": network})
    context = plan.context(plan.jobs[0], plan.sites)
    begun, drawn = context.initial(context.network), context.drawn(context.network)
    random = {
        "net.model.2.0.conv.weight",
        "net.model.2.0.conv.bias",
        "net.model.2.1.conv.unit0.conv.weight",
        "net.model.2.1.conv.unit0.conv.bias",
    }
    for entry in begun.layout.entries:
        source = drawn if entry.name in random else given
        assert torch.equal(begun[entry.name], source[entry.name])
    first, second = beginning(plan)
    assert first == f"the network begins with two.safetensors (sha256 {plan.initial_weights[:8]})"
    assert "another number of outputs than 1" in second
    assert all(name in second for name in random)


# --- the plan -----------------------------------------------------------------------------------


def test_the_hash_holds_the_content_and_not_the_place(
    make_plan: MakePlan, file: Path, tmp_path: Path
):
    elsewhere, other = tmp_path / "moved" / "x.safetensors", tmp_path / "other.safetensors"
    elsewhere.parent.mkdir()
    shutil.copy(file, elsewhere)
    (Weights.load(file) * 2.0).save(other)
    plain, plan, moved, changed = (
        make_plan(**blocks) for blocks in ({}, small(file), small(elsewhere), small(other))
    )
    assert plan.hash == moved.hash
    assert differences(plan.to_json(), moved.to_json()) == []
    assert len({plain.hash, plan.hash, changed.hash}) == 3
    for another in (plain, changed):
        assert differences(plan.to_json(), another.to_json()) == ["initial_weights"]
    again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert (again.hash, again.to_json()) == (plan.hash, plan.to_json())


def test_a_path_is_expanded_and_made_absolute(
    make_plan: MakePlan, file: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(file.parent)
    monkeypatch.setenv("HERE", str(file.parent))
    for said in ("begin.safetensors", "$HERE/begin.safetensors"):
        assert make_plan(**small(Path(said))).experiment.network.initial == file


def test_a_run_is_resumed_with_the_file_moved(make_plan: MakePlan, file: Path, tmp_path: Path):
    """A site that is away in round 1 begins, after the stop, with the file as well."""
    blocks = {"methods": ["local", {"name": "fedsm", "lambda": 1}], "rounds": 2}
    blocks["server"] = {"absences": {"north": [1]}}
    plan = make_plan(**blocks, **small(file))
    toy.whole_run(plan, tmp_path / "calm")
    Run(plan, tmp_path / "run").prepare(False, lambda path: None)
    for title in ("local", "fedsm"):
        toy.server(plan, tmp_path / "run", title)._round(1)
    moved = file.rename(tmp_path / "moved.safetensors")
    toy.whole_run(make_plan(**blocks, **small(moved)), tmp_path / "run", resume=True)
    assert toy.what_remains(tmp_path / "run") == toy.what_remains(tmp_path / "calm")


def test_worker_processes_give_the_same_bits(make_plan: MakePlan, file: Path, tmp_path: Path):
    blocks = {"methods": ["local", "fedavg"], "rounds": 1, **small(file)}
    toy.whole_run(make_plan(**blocks), tmp_path / "here")
    many = make_plan(**blocks, engine={"name": "processes", "workers": 1})
    toy.whole_run(many, tmp_path / "there")
    assert toy.what_remains(tmp_path / "there") == toy.what_remains(tmp_path / "here")


def test_a_file_that_has_changed_is_not_begun_with(make_plan: MakePlan, file: Path, tmp_path: Path):
    plan = make_plan(methods=["local"], **small(file))
    (Weights.load(file) * 2.0).save(file)
    again = Plan.from_json(plan.to_json())  # as a worker process does
    with pytest.raises(ConfigError, match=r"begin\.safetensors: this file has changed since"):
        toy.server(again, tmp_path)._round(1)
    with pytest.raises(RoundFailed):  # there the server goes on with what it has read
        toy.train(plan, tmp_path, engine=InProcessEngine(again, tmp_path))


# --- files that are refused ---------------------------------------------------------------------


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _foreign(path: Path) -> None:
    save_file({"weight": torch.zeros(2)}, path)


def _not_finite(path: Path) -> None:
    weights = Weights.load(path)
    weights["net.head.bias"][1] = float("nan")
    weights.save(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (Path.unlink, "no such file; give a file that Konsil wrote"),
    "a folder": (_folder, "cannot be read (Is a directory)"),
    "empty": (lambda path: path.write_bytes(b""), "not weights that Konsil wrote"),
    "cut": (_cut, "not weights that Konsil wrote"),
    "another program's": (_foreign, "not weights that Konsil wrote"),
    "not finite": (_not_finite, "net.head.bias has values that are not finite"),
    "another network": (
        lambda path: write(path, replace(SPEC, norm="batch")),
        "the file has net.body.1.running_mean",
    ),
    "other channels": (
        lambda path: write(path, replace(SPEC, in_channels=1)),
        "(trainable, 16 x 3 x 3 x 3), the file has net.body.0.weight (trainable, 16 x 1 x 3 x 3)",
    ),
    "a part of a network": (
        lambda path: (w := Weights.load(path)).only({w.layout.entries[0].name}).save(path),
        "the file has no further entry",
    ),
}


@pytest.mark.parametrize(("spoil", "words"), BAD.values(), ids=BAD)
def test_a_file_that_does_not_fit_is_refused_before_training(
    make_plan: MakePlan, file: Path, spoil: Callable[[Path], Any], words: str
):
    spoil(file)
    with pytest.raises(ConfigError) as caught:
        make_plan(**small(file))
    assert str(caught.value).startswith(f"network.initial: {file}: ")
    assert words in str(caught.value)
    assert "or leave initial out" in str(caught.value)


def test_the_key_wants_a_path(make_plan: MakePlan):
    with pytest.raises(ConfigError, match=r"network\.initial = 3: must be a path"):
        make_plan(network={"name": "small", "initial": 3})
