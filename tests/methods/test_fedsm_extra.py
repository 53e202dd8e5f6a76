"""Two phases: the models of FedSM, labels by hand, what travels when, and who was away."""

import numpy as np
import pytest
import torch
from methods import hand

from konsil import testing as toy
from konsil.federation.engines import InProcessEngine
from konsil.federation.server import Record
from konsil.federation.state import SiteState
from konsil.ingredients.site import Networks, Site
from konsil.methods.fedsm_extra import TOLD, apart, frozen, losses_of
from konsil.supermodel import SuperModel
from konsil.weights import Weights

ROUNDS = 6  # four of models, one of handing in, one of the selector
BLOCK = {"name": "fedsm-extra"}


def extra(make_plan, rounds=ROUNDS, **options):
    return make_plan(methods=[BLOCK | options], rounds=rounds)


def record_after(plan, folder, rounds: int) -> Record:
    server = toy.server(plan, folder)
    for number in range(server.record.round + 1, rounds + 1):
        server._round(number)
    return server.record


@pytest.mark.parametrize(
    ("rounds", "share", "first"),
    [(150, 1 / 3, 100), (6, 1 / 3, 4), (3, 1 / 3, 1), (2, 1 / 3, 2), (9, 0, 9), (10, 0.5, 5),
     (3, 0.9, 1), (10, 0.96, 1)],
)  # fmt: skip
def test_how_many_rounds_each_phase_has(make_plan, rounds, share, first):
    plan = extra(make_plan, rounds, selector_share=share)
    method = plan.method(plan.jobs[0])
    assert method.first_phase == first
    assert any("not trained" in w for w in method.warnings()) == (first == rounds)


def test_three_rounds_by_hand():
    """FedSM's models and the pull, labels by the smallest error, one step of the selector."""
    linear, shared = hand.two_phases("fedsm-extra")
    w_s = hand.rows(shared["selector"])
    models = hand.fedsm_round(linear, np.array([1.0, -1.0, 0.5]), 0.7)
    for number in (1, 2, 3):
        shared = linear.round(shared, number)
    for name, expected in zip(("global", frozen("a"), frozen("b")), models, strict=True):
        np.testing.assert_allclose(shared[name].flat.numpy(), expected, atol=1e-6)
    stepped, all_labels = {}, set()
    for site, data in linear.data.items():
        x, y = hand.points(data.train)
        labels = np.argmin([(x @ w - y) ** 2 for w in models], axis=0)
        assert linear.states[site].notes["labels.train"] == labels.tolist()
        slope = (hand.softmax(x @ w_s.T) - np.eye(3)[labels]).T @ x / len(x)
        stepped[site] = w_s - 0.1 * slope
        all_labels |= set(labels.tolist())
    found = hand.rows(shared["selector"])
    np.testing.assert_allclose(found, hand.mean(linear, stepped), atol=1e-6)
    assert len(all_labels) > 1  # or there would be nothing to tell apart


def test_phase_1_is_fedsm_without_its_selector(make_plan, tmp_path):
    """Bit for bit: shared parts after phase 1, and every site's specialist."""
    plan = make_plan(methods=[BLOCK, "fedsm"], rounds=ROUNDS)
    mine, theirs = (toy.server(plan, tmp_path, t) for t in ("fedsm-extra", "fedsm"))
    for number in range(1, 5):
        mine._round(number)
        theirs._round(number)
    for part in ("global", "personal"):
        assert mine.record.shared[part].equals(theirs.record.shared[part])
    for site in plan.sites:
        states = [toy.state_of(plan, tmp_path, site, t) for t in ("fedsm-extra", "fedsm")]
        assert states[0].private["personal"].equals(states[1].private["personal"])
        assert "selector.moments" not in states[0].upload


def test_what_travels_in_which_phase(make_plan, tmp_path):
    plan = extra(make_plan, rounds=9)  # six of models, one of handing in, two of the selector
    method = plan.method(plan.jobs[0])
    server = toy.server(plan, tmp_path)
    selector, specialists = {"selector", "selector.moments"}, {frozen(s) for s in plan.sites}
    seen = []
    for number in range(1, 10):
        shared = server.record.shared
        seen.append((set(method.sent("north", shared)), set(method.uploads(shared))))
        server._round(number)
    assert method.first_phase == 6
    assert seen[0] == seen[5] == ({"global", "personal"}, {"global", "personal"})
    assert seen[6] == ({"global", "personal"}, {"specialist"})
    assert seen[7] == ({"global"} | specialists | selector, selector)  # once ...
    assert seen[8] == (selector, selector)  # ... and never again


def test_specialists_are_handed_in_after_the_pull_and_frozen(make_plan, tmp_path):
    plan = extra(make_plan, **{"lambda": 0.7})
    before = record_after(plan, tmp_path, 4)
    own = {s: toy.state_of(plan, tmp_path, s).private["personal"] for s in plan.sites}
    after = record_after(plan, tmp_path, 5)
    mean = before.shared["personal"].flat
    for site in plan.sites:  # lambda = 0.7 with two sites: lambda' = 0.4
        expected = 0.4 * own[site].flat + 0.6 * mean
        torch.testing.assert_close(after.shared[frozen(site)].flat, expected)
    toy.train(plan, tmp_path)
    for site in plan.sites:
        last = toy.state_of(plan, tmp_path, site).last["personal"]
        assert last.equals(after.shared[frozen(site)])


def test_the_best_models_are_frozen_ones(make_plan, tmp_path):
    """Of phase 1 may be better by validation, but the selector has never studied them."""
    plan = make_plan(methods=[BLOCK], rounds=5, training={"batch_size": 2, "lr": 0.5})
    record = toy.train(plan, tmp_path)
    earlier = [h["means"]["personal"] for h in record.history if h["round"] < 3]
    frozen_one = record.history[-1]["means"]["personal"]
    assert max(earlier) > frozen_one  # or the test would show nothing
    assert record.best["global"].equals(record.shared["global"])
    for site in plan.sites:
        best = toy.state_of(plan, tmp_path, site).best["personal"]
        assert best.equals(record.shared[frozen(site)])


def test_without_a_second_phase_the_best_are_fedsms(make_plan, tmp_path):
    plan = make_plan(methods=[BLOCK | {"selector_share": 0}, "fedsm"], rounds=3)
    mine, theirs = (toy.train(plan, tmp_path, t) for t in ("fedsm-extra", "fedsm"))
    assert mine.best["global"].equals(theirs.best["global"])
    for site in plan.sites:
        states = [toy.state_of(plan, tmp_path, site, t) for t in ("fedsm-extra", "fedsm")]
        assert toy.same_parts(states[0].best, states[1].best)


def test_a_label_is_the_model_of_the_smallest_loss(make_plan, tmp_path):
    """By the definition: every model on every image; the global model wins ties."""
    plan = extra(make_plan)
    toy.train(plan, tmp_path)
    record = toy.server(plan, tmp_path).record
    models = [record.shared["global"], *(record.shared[frozen(s)] for s in plan.sites)]
    worker = InProcessEngine(plan, tmp_path).worker
    method = plan.method(plan.jobs[0])
    networks = Networks(method.context, method.networks(), plan.experiment.compute)
    for name in plan.sites:
        notes = toy.state_of(plan, tmp_path, name).notes
        data = worker.training_data(name)
        site = Site(name, ROUNDS, networks, data, SiteState(), {})
        for split, images in (("train", data.train), ("validation", data.val)):
            assert len(notes[f"labels.{split}"]) == len(images)
            for i, label in enumerate(notes[f"labels.{split}"]):
                one = [images.batch(torch.tensor([i]))]
                losses = [float(losses_of(site, m, iter(one))) for m in models]
                assert losses[label] == pytest.approx(min(losses), abs=1e-6)


def test_of_equal_models_the_global_one_wins(make_plan, tmp_path):
    """In a federation where nobody has learned anything, every label is 0."""
    plan = make_plan(methods=[BLOCK | {"lambda": 1.0}], rounds=3,
                     training={"batch_size": 3, "lr": 1e-30})  # fmt: skip
    toy.train(plan, tmp_path)
    for site in plan.sites:
        labels = toy.state_of(plan, tmp_path, site).notes["labels.train"]
        assert set(labels) == {0}


@pytest.mark.parametrize("source", ["train", "validation"])
@pytest.mark.parametrize(
    "optimizer", ["average_moments", "server_adam", "closed_form", "reference_full_batch"]
)
def test_every_teacher_and_every_selector_rule(make_plan, tmp_path, source, optimizer):
    plan = make_plan(
        methods=[BLOCK | {"labels_from": source, "selector_optimizer": optimizer}], rounds=4
    )
    rows = toy.whole_run(plan, tmp_path)
    assert {r.role for r in rows} == {"global", "personal", "super"}
    model = SuperModel.load(tmp_path / plan.jobs[0].name / "supermodel")
    assert model.rule.name == "argmax"
    start = plan.method(plan.jobs[0]).start()["selector"]
    last = tmp_path / plan.jobs[0].name / "checkpoints" / "last" / "selector.safetensors"
    assert not Weights.load(last).equals(start)


def test_a_site_away_while_specialists_are_handed_in(make_plan, tmp_path):
    plan = make_plan(
        methods=[BLOCK], rounds=ROUNDS, server={"absences": {"north": [5]}, "min_sites": 1}
    )
    toy.train(plan, tmp_path)
    record = toy.server(plan, tmp_path).record
    assert record.shared[frozen("north")].equals(record.shared[frozen("south")])  # their mean
    last = toy.state_of(plan, tmp_path, "north").last["personal"]
    assert last.equals(record.shared[frozen("north")])


def test_a_site_that_missed_the_frozen_models_gets_them_later(make_plan, tmp_path):
    plan = make_plan(methods=[BLOCK], rounds=9, server={"absences": {"north": [8]}, "min_sites": 1})
    record = record_after(plan, tmp_path, 8)
    assert record.shared.notes[TOLD] == ["south"]
    method = plan.method(plan.jobs[0])
    assert frozen("south") in method.sent("north", record.shared)
    assert frozen("south") not in method.sent("south", record.shared)
    toy.train(plan, tmp_path)
    assert "labels.train" in toy.state_of(plan, tmp_path, "north").notes


def test_ft_is_fine_tuned_before_it_is_handed_in(make_plan, outlines, tmp_path):
    block = BLOCK | {"personaliser": {"name": "ft", "epochs": 3}}
    training = {"batch_size": 2, "lr": 1e-2}
    plan = make_plan(methods=[block], rounds=ROUNDS, training=training, **outlines)
    toy.train(plan, tmp_path)
    record = toy.server(plan, tmp_path).record
    assert any(not record.shared[frozen(s)].equals(record.shared["global"]) for s in plan.sites)


@pytest.mark.parametrize("personaliser", ["softpull", {"name": "ft", "epochs": 2}])
def test_specialists_are_frozen_with_the_statistics_they_run_with(
    make_plan, tmp_path, personaliser
):
    """With `running_statistics: local`, what others study is what the site itself answers with."""
    block = BLOCK | {"personaliser": personaliser}
    if personaliser == "softpull":
        block |= {"lambda": 0.5}  # the plain average: only statistics differ
    plan = make_plan(
        methods=[block],
        rounds=4,
        network={"name": "small", "norm": "batch"},
        training={"batch_size": 3, "running_statistics": "local"},
    )
    record = toy.train(plan, tmp_path)
    north, south = (record.shared[frozen(site)] for site in plan.sites)
    if personaliser == "softpull":
        assert torch.equal(north.trainable, south.trainable)
    statistics = north.layout.statistics
    assert not torch.equal(north.flat[statistics], south.flat[statistics])
    for site, model in zip(plan.sites, (north, south), strict=True):
        assert toy.state_of(plan, tmp_path, site).last["personal"].equals(model)


def test_the_selectors_moments_weigh_as_much_as_the_selector(make_plan, tmp_path):
    plan = extra(make_plan, labels_from="validation")
    record_after(plan, tmp_path, ROUNDS)
    for site in plan.sites:
        weights = toy.state_of(plan, tmp_path, site).reply.weights
        images = plan.images(site, "val")
        assert weights == {"selector": images, "selector.moments": images}
        assert images != plan.images(site, "train")


def test_the_super_model_names_the_global_model_by_output_0(make_plan, tmp_path):
    plan = extra(make_plan)
    toy.whole_run(plan, tmp_path)
    model = SuperModel.load(tmp_path / plan.jobs[0].name / "supermodel")
    x = torch.rand(4, 3, 32, 32)
    for wanted in range(3):
        selector = model.models["selector"].clone()
        selector["net.head.weight"].zero_()
        selector["net.head.bias"].copy_(torch.eye(3)[wanted])
        fixed = SuperModel(model.facts, model.models | {"selector": selector})
        answer = fixed.answer(x)
        name = ["global", *plan.sites][wanted]
        assert torch.equal(answer.logits, model.logits_of(name, x))
        assert answer.route.site.tolist() == [wanted - 1] * 4
        assert answer.route.specialist.tolist() == [wanted > 0] * 4


def test_parts_of_the_selector_are_told_apart():
    mine, others = apart({"selector": 1, "selector.moments": 2, "selectors": 3, "global": 4})
    assert mine == {"selector": 1, "selector.moments": 2}
    assert others == {"selectors": 3, "global": 4}
