"""The selector's rules, through real runs of FedSM on two tiny sites that differ in brightness."""

import json

import pytest
import torch

from konsil import testing as toy
from konsil.errors import ConfigError
from konsil.federation.runner import Run
from konsil.ingredients.context import Shared, Upload
from konsil.methods.selector import IMAGE_MEANS, SERVER_MEANS, adam_step
from konsil.networks import NetworkSpec, build_network
from konsil.supermodel.discriminant import HEAD_WEIGHT, ImageMeans
from konsil.weights import Layout, Weights


@pytest.fixture
def run(make_plan, outlines, tmp_path):
    def go(blocks=None, **settings):
        plan = make_plan(methods=[{"name": "fedsm", **settings}], rounds=3, **(blocks or outlines))
        folder = tmp_path / str(settings.get("selector_optimizer"))
        work = Run(plan, folder)
        work.prepare(False, lambda path: None)
        work.go()
        return folder / "fedsm" / "seed0"

    return go


def test_closed_form_tells_the_sites_apart_after_one_round(run):
    result = json.loads((run(selector_optimizer="closed_form") / "result.json").read_text())
    accuracy = {h["round"]: h["means"]["selector_accuracy"] for h in result["history"]}
    assert accuracy[1] == accuracy[3] == 1.0


def test_the_models_do_not_depend_on_how_the_selector_learns(run, classes):
    folders = [
        run(classes, selector_optimizer=rule)
        for rule in ("average_moments", "closed_form", "server_adam", "reference_full_batch")
    ]
    for name in (
        "checkpoints/last/global",
        "sites/north/best/personal",
        "sites/south/last/personal",
    ):
        first, *others = ((f / f"{name}.safetensors").read_bytes() for f in folders)
        assert all(other == first for other in others), name


def test_closed_form_refuses_a_network_that_is_trained(make_plan):
    settings = {"name": "fedsm", "selector_optimizer": "closed_form", "selector": "small"}
    with pytest.raises(ConfigError, match="closed_form solves"):
        make_plan(methods=[settings])


TRAINED = {"name": "fedsm", "selector_optimizer": "average_moments"}


def test_few_rounds_of_a_trained_selector_are_worth_a_warning(make_plan):
    solved = {"name": "fedsm", "label": "solved", "selector_optimizer": "closed_form"}
    plan = make_plan(methods=[TRAINED, solved, {"name": "fedsm", "label": "usual"}])
    trained, *others = (plan.method(job) for job in plan.jobs)
    assert "closed_form" in trained.warnings()[0]
    assert [other.warnings() for other in others] == [[], []]


def test_server_adam_takes_torchs_step_and_leaves_the_old_weights_alone():
    layout = Layout.build([("w", (3,), "trainable", "body")])
    weights = Weights(layout, torch.tensor([1.0, 2.0, 3.0]))
    gradient = Weights(layout, torch.tensor([0.5, -0.5, 0.0]))
    moments = Weights.zeros(
        Layout.build(
            [
                ("exp_avg", (3,), "trainable", "body"),
                ("exp_avg_sq", (3,), "trainable", "body"),
                ("step", (), "counter", "body"),
            ]
        )
    )
    stepped, new = adam_step(weights, gradient, moments, lr=0.1, betas=(0.9, 0.999))
    assert stepped.flat.tolist() == pytest.approx([0.9, 2.1, 3.0])  # the first step is lr * sign
    assert new["exp_avg"].tolist() == pytest.approx([0.05, -0.05, 0.0])
    assert float(new["step"]) == 1
    assert weights.flat.tolist() == [1.0, 2.0, 3.0]
    assert float(moments.flat.abs().sum()) == 0


def test_fixed_features_are_not_trainable_and_travel_with_the_selector():
    net = build_network(NetworkSpec("features", 3, 4, 32))
    layout = Layout.of(net)
    assert {e.name for e in layout.entries if e.kind == "trainable"} == {
        "net.head.weight",
        "net.head.bias",
    }
    x = torch.rand(2, 3, 32, 32)
    assert net.features(x).shape == (2, net.net.body.size)
    assert torch.equal(net(x), torch.zeros(2, 4))  # before it is solved every site is as likely


def closed_form(make_plan):
    """FedSM's server before round 1, and what two sites of three images each would send."""
    plan = make_plan(methods=[{"name": "fedsm", "selector_optimizer": "closed_form"}])
    method = plan.method(plan.jobs[0])
    shared = method.initial_parts()
    layout = method.uploads(shared)[IMAGE_MEANS]
    sent = {}
    for label, site in enumerate(plan.sites):
        seen, random = ImageMeans(layout), torch.Generator().manual_seed(label)
        features = label + torch.rand(3, layout.entries[1].shape[1], generator=random)
        seen.add(features, torch.full((3,), label))
        sent[site] = Upload().add(IMAGE_MEANS, seen.result(), weight=3)
    return method, shared, sent


def test_closed_form_remembers_the_images_of_absent_sites(make_plan):
    method, shared, sent = closed_form(make_plan)
    north, south = sent
    for number, site in ((1, north), (2, south)):
        new = Shared(shared)
        method.selector.merge(shared, toy.means({site: sent[site]}, number), new)
        shared = new
    total = sum(upload.parts[IMAGE_MEANS].flat for upload in sent.values())
    assert torch.equal(shared[SERVER_MEANS].flat, total)
    assert (shared["selector"][HEAD_WEIGHT].abs().sum(dim=1) > 0).all()  # both have been seen


def test_closed_form_refuses_means_that_no_images_have(make_plan):
    method, _, sent = closed_form(make_plan)
    north, south = sent
    assert method.wrong_upload(north, sent[north]) == ""
    assert IMAGE_MEANS in method.wrong_upload(south, sent[north])  # another site's class
    sent[north].parts[IMAGE_MEANS]["shares"][0] *= 0.9
    assert "no counts of 3 images" in method.wrong_upload(north, sent[north])


def test_the_selector_may_have_epochs_of_its_own(make_plan, tmp_path):
    longer = TRAINED | {"label": "longer", "selector_epochs": 2}
    plan = make_plan(methods=[TRAINED, longer], rounds=1)
    twice = make_plan(methods=[TRAINED], rounds=1, training={"batch_size": 3, "local_epochs": 2})
    usual, longer = (toy.train(plan, tmp_path, name).shared for name in ("fedsm", "longer"))
    whole = toy.train(twice, tmp_path / "twice").shared
    assert longer["selector"].equals(whole["selector"])
    assert longer["global"].equals(usual["global"])
    assert not longer["selector"].equals(usual["selector"])
