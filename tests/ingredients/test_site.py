"""A site's batches, scores and state, as every method gets them."""

import math
from dataclasses import fields

import pytest
import torch
from methods import hand
from torch import nn

from konsil import testing as toy
from konsil.data import Images, TrainingData, training_data
from konsil.federation.messages import RoundReply
from konsil.federation.state import SiteState
from konsil.ingredients.site import Networks, Site
from konsil.weights import Layout, Weights


def site_of(plan, name: str = "south", number: int = 1, title: str = "") -> Site:
    method = plan.method(plan.job(f"{title}/seed0") if title else plan.jobs[0])
    networks = Networks(method.context, method.networks(), plan.experiment.compute)
    data = training_data(plan.data_folder, plan.members(name))
    return Site(name, number, networks, data, SiteState(), method.start())


def test_an_epoch_is_every_training_image_once(make_plan):
    plan = make_plan(training={"batch_size": 4, "local_epochs": 2})
    site = site_of(plan)
    n = site.images
    assert n == plan.images("south", "train") == 6
    sizes = [len(x) for x, _ in site.batches()]
    assert sizes == [4, 2, 4, 2]
    seen = torch.cat([x for x, _ in site.batches()])
    everything, _ = site.training.batch(torch.arange(n))
    for epoch in seen.split(n):
        order = [int((everything == x).flatten(1).all(1).nonzero()) for x in epoch]
        assert sorted(order) == list(range(n))


def test_batches_depend_on_seed_site_and_round_and_on_nothing_else(make_plan):
    def first(**options):
        number = options.pop("number", 1)
        name = options.pop("name", "south")
        return next(iter(site_of(make_plan(**options), name, number).batches()))[0]

    again = first()
    assert torch.equal(first(), again)
    torch.manual_seed(17)
    assert torch.equal(first(methods=["fedsm"]), again)
    assert not torch.equal(first(number=2), again)
    assert not torch.equal(first(seeds=[1]), again)
    assert not torch.equal(first(name="north"), again)


def test_augmentation_is_drawn_from_a_stream_of_its_own(make_plan):
    plain, augmented = (
        [x for x, _ in site_of(make_plan(training={"batch_size": 3, "augment": a})).batches()]
        for a in ("none", "light")
    )
    assert not all(torch.equal(a, b) for a, b in zip(plain, augmented, strict=True))
    again = site_of(make_plan(training={"batch_size": 3, "augment": "light"}))
    for a, (b, _) in zip(augmented, again.batches(), strict=True):
        assert torch.equal(a, b)


def test_a_score_is_the_mean_over_validation_images(make_plan):
    plan = make_plan()
    site = site_of(plan)
    weights = site.context.initial(site.context.network)
    columns = site.columns(weights)["dice"]
    assert len(columns) == site.validation_images == plan.images("south", "val")
    assert site.score(weights) == pytest.approx(sum(columns) / len(columns))


def test_a_site_has_no_way_to_its_test_images(make_plan):
    site = site_of(make_plan())
    held = {name for name, value in vars(site).items() if isinstance(value, Images)}
    assert held == {"training", "validation"}
    assert {f.name for f in fields(TrainingData)} == {"train", "val"}


def test_index_is_the_place_in_the_roster(make_plan, squares):
    federation = {"folder": str(squares), "image_size": 32, "sites": ["south", "north"]}
    plan = make_plan(federation=federation)
    assert [site_of(plan, name).index for name in ("south", "north")] == [0, 1]


def test_state_comes_back_bit_for_bit_and_shares_what_was_shared(make_plan, tmp_path):
    weights = site_of(make_plan()).context.initial(
        make_plan().method(make_plan().jobs[0]).context.network
    )
    other = weights * 2
    state = SiteState(
        round=3,
        private={"personal": weights, "soup": other},
        notes={"soup_size": 2},
        best={"personal": weights},
        last={"personal": weights},
        scores={"personal": [0.1 + 0.2]},
        reply=RoundReply(measures={"global": math.pi}, images=3, weights={"global": 6.0}),
        upload={"global": weights},
    )
    path = tmp_path / "state.safetensors"
    state.save(path, "plan0", durable=False)
    again = SiteState.load(path, "plan0")
    for section in SiteState.SECTIONS:
        assert toy.same_parts(getattr(state, section), getattr(again, section))
    for name in ("round", "notes", "scores", "reply"):
        assert getattr(state, name) == getattr(again, name)
    assert path.stat().st_size < 2.5 * 4 * weights.layout.size  # two models, not five


def layout(**sizes: int) -> Layout:
    return Layout.build((name, (size,), "trainable", "body") for name, size in sizes.items())


def test_parts_that_begin_at_one_place_are_still_two(tmp_path):
    """A model and a view of its first values; and empty parts, which have no place at all."""
    model = Weights(layout(w=2, b=1), torch.tensor([1.0, 2.0, 3.0]))
    private = {
        "model": model,
        "first": Weights(layout(w=2), model.flat[:2]),
        "none": Weights.zeros(layout(none=0)),
        "nothing": Weights.zeros(layout()),
    }
    path = tmp_path / "state.safetensors"
    SiteState(private=private).save(path, "plan0", durable=False)
    assert toy.same_parts(SiteState.load(path, "plan0").private, private)


def test_no_file_is_a_fresh_state(tmp_path):
    state = SiteState.load(tmp_path / "nothing.safetensors", "plan0")
    assert (state.round, state.private) == (0, {})


def test_judging_leaves_the_evaluator_out_of_training(make_plan):
    """A score in the middle of a round does not disturb what is being trained."""
    plan = make_plan()

    def trained(interrupt: bool) -> Weights:
        site = site_of(plan)
        model = site.learner("global", site.context.initial(site.context.network))
        for x, y in site.batches():
            if interrupt:
                site.score(site.context.initial(site.context.network))
            model.step(site.task.loss(model(x), y))
        return model.weights()

    assert trained(False).equals(trained(True))


def test_what_was_evaluated_is_known(make_plan):
    """Of the same weights on the same images, and of no others."""
    site = site_of(make_plan(training={"batch_size": 4}))
    first = site.context.initial(site.context.network)
    other = first * 0.5
    passes = []
    site._networks.evaluator.net.register_forward_hook(lambda *_: passes.append(1))
    expected = [site.score(first), site.score(other)]
    once = len(passes)
    assert once == 2
    assert [site.score(first.clone()), site.score(other)] == expected
    assert len(passes) == once
    elsewhere = site._networks.columns(("south", "test"), first, site.training)
    assert len(elsewhere[site.task.main_metric]) == len(site.training)
    assert len(passes) > once


def orders(purpose: str, epochs: int = 1) -> list[int]:
    linear = toy.Linear("fedavg", hand.two_clouds())
    site = linear.site("b", 1, {})
    found = site.indexed_batches(site.training, purpose, epochs)
    return [int(place) for index, _, _ in found for place in index]


def test_every_purpose_and_every_epoch_has_an_order_of_its_own():
    plain, other, two = orders(""), orders("inner"), orders("", epochs=2)
    assert sorted(plain) == sorted(other) == list(range(8))
    assert plain != other
    assert two[:8] == plain
    assert two[8:] != plain


@pytest.mark.parametrize("policy", ["average", "local"])
def test_only_statistics_that_stay_take_the_place_of_those_that_came(policy):
    def normed() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))

    linear = toy.Linear(
        "fedavg", hand.two_clouds(), model=normed, training={"running_statistics": policy}
    )
    came, own = Weights.of(normed()), Weights.of(normed())
    own["0.running_mean"].fill_(3.0)
    site = linear.site("a", 2, {})
    site.private["global.statistics"] = own
    runs = site.localised("global", came)
    assert runs["0.running_mean"].tolist() == ([3.0, 3.0] if policy == "local" else [0.0, 0.0])
    assert torch.equal(runs.trainable, came.trainable)
