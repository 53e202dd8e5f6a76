"""FedFomo's weights by hand, who is sent whose model, and local training as its lower end."""

import numpy as np
import pytest
import torch
from methods import hand
from torch import nn

from konsil import testing as toy
from konsil.ingredients.context import Shared
from konsil.methods.fedfomo import FedFomo
from konsil.weights import Weights

LR = 0.3


class ByHand:
    """Eq. 4-6 for linear models, in numpy and float64."""

    def __init__(self, linear: toy.Linear) -> None:
        self.linear, start = linear, np.array(hand.START)
        self.old = dict.fromkeys(linear.data, start)
        self.own = dict.fromkeys(linear.data, start)
        self.exchanged = dict.fromkeys(linear.data, start)
        self.mixed: list[int] = []  # how many models went into each mixture

    def usefulness(self, site: str, model: np.ndarray) -> float:
        points = hand.points(self.linear.data[site].val)
        gain = hand.loss(self.old[site], points) - hand.loss(model, points)
        return gain / (np.linalg.norm(model - self.old[site]) + 1e-5)

    def mix(self, site: str) -> np.ndarray:
        candidates = [m for s, m in self.exchanged.items() if s != site] + [self.own[site]]
        weights = np.array([max(0, self.usefulness(site, m)) for m in candidates])
        self.mixed.append(int((weights > 0).sum()))
        if weights.sum() == 0:
            return self.own[site]
        return sum(w * m for w, m in zip(weights / weights.sum(), candidates, strict=True))

    def round(self, number: int, sites: list[str]) -> None:
        sent = {}
        for site in sites:
            self.old[site] = model = self.mix(site)
            for batch in hand.batches(self.linear, site, number):
                model = model - LR * hand.gradient(model, batch)
            self.own[site] = sent[site] = model
        self.exchanged |= sent


def federation(data=None, **settings) -> toy.Linear:
    training = {"lr": LR, "batch_size": 3}
    return toy.Linear("fedfomo", data or hand.two_clouds(), training=training,
                      initial=hand.START, **settings)  # fmt: skip


def test_five_rounds_by_hand():
    """Site a misses round 3: its last model stays in the exchange."""
    linear = federation()
    byhand, shared = ByHand(linear), linear.method.start()
    for number in range(1, 6):
        sites = ["b"] if number == 3 else ["a", "b"]
        shared = linear.round(shared, number, sites)
        byhand.round(number, sites)
        for site in linear.data:
            private = linear.states[site].private
            np.testing.assert_allclose(private["old"].flat, byhand.old[site], atol=1e-4)
            np.testing.assert_allclose(private["personal"].flat, byhand.own[site], atol=1e-4)
            kept = shared[f"server.model.{site}"]
            np.testing.assert_allclose(kept.flat, byhand.exchanged[site], atol=1e-4)
    assert {1, 2} <= set(byhand.mixed)  # mixtures of both, and of one alone


def test_the_weights_of_one_mixture():
    """One validation point x = 0, y = 0: the loss is the constant's square."""
    data = {s: toy.points([[0, 0]], [0]) for s in "abc"}
    linear = federation(data)
    state = linear.states["a"]
    state.private["old"] = linear.weights(0.0, 0.0, 2.0)  # loss 4
    state.private["personal"] = linear.weights(0.0, 0.0, 1.0)  # loss 1, distance 1: 3
    received = {
        "model.b": linear.weights(3.0, 0.0, 2.0 - 4.0),  # loss 4, distance 5: 0, no help
        "model.c": linear.weights(0.0, 0.0, 0.0),  # loss 0, distance 2: 2
    }
    site = linear.site("a", 2, received)
    linear.method.receive(site, received)
    np.testing.assert_allclose(state.private["personal"].flat, [0, 0, 0.6], atol=1e-5)
    useful = state.notes["usefulness"]
    assert [useful[s] for s in "abc"] == pytest.approx([3, 0, 2], abs=1e-4)


def test_if_nothing_helps_a_site_keeps_its_own():
    data = {s: toy.points([[0, 0]], [0]) for s in "ab"}
    linear = federation(data)
    own = linear.weights(0.0, 0.0, 2.0)
    linear.states["a"].private |= {"old": linear.weights(0.0, 0.0, 1.0), "personal": own}
    received = {"model.b": linear.weights(0.0, 0.0, 3.0)}
    linear.method.receive(linear.site("a", 2, received), received)
    assert linear.states["a"].private["personal"].equals(own)


def test_a_model_whose_loss_overflows_is_left_out():
    data = {s: toy.points([[0, 0]], [0]) for s in "ab"}
    linear = federation(data)
    own = linear.weights(0.0, 0.0, 0.5)
    linear.states["a"].private |= {"old": linear.weights(0.0, 0.0, 1.0), "personal": own}
    received = {"model.b": linear.weights(0.0, 0.0, 1e30)}  # its square is not a float32
    linear.method.receive(linear.site("a", 2, received), received)
    assert linear.states["a"].notes["usefulness"]["b"] == 0
    assert linear.states["a"].private["personal"].equals(own)


def test_a_newcomer_takes_the_models_that_are_better_than_the_initial_one():
    linear = federation({s: toy.points([[0, 0]], [0]) for s in "ab"})
    shared = linear.round(linear.method.start(), 1, sites=["b"])
    parts = linear.method.sent("a", shared)
    linear.method.receive(linear.site("a", 2, parts), parts)
    assert linear.states["a"].private["personal"].equals(shared["server.model.b"])


def test_losses_are_of_validation_images():
    data = toy.points([[0, 0]], [1])
    other = toy.points([[0, 0]], [0])
    linear = federation({"a": type(data)(data.train, other.val), "b": data})
    linear.states["a"].private |= {n: linear.weights(0.0, 0.0, 0.5) for n in ("old", "personal")}
    received = {"model.b": linear.weights(0.0, 0.0, 0.9)}  # better in training, worse here
    linear.method.receive(linear.site("a", 2, received), received)
    assert linear.states["a"].notes["usefulness"]["b"] < 0


def test_statistics_are_recomputed_after_a_mixture():
    def normed() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))

    data = toy.points([[0, 0], [255, 51], [51, 255], [102, 51]], [0, 1, 1, 0])
    torch.manual_seed(0)
    linear = toy.Linear("fedfomo", {"a": data, "b": data}, model=normed)
    bad, good = Weights.of(normed()), Weights.of(normed())
    bad["1.bias"].fill_(9.0)
    linear.states["a"].private |= {"old": bad, "personal": bad}
    linear.method.receive(linear.site("a", 2, {"model.b": good}), {"model.b": good})
    mixed, x = linear.states["a"].private["personal"], data.train.images.float() / 255
    assert torch.equal(mixed.trainable, good.trainable)
    torch.testing.assert_close(mixed["0.running_mean"], x.mean(0))


# --- who is sent what ---------------------------------------------------------------------------


def of_five(**settings) -> tuple[FedFomo, Shared]:
    linear = federation({s: toy.points([[0, 0]], [0]) for s in "abcde"}, **settings)
    shared = linear.method.initial_parts()
    shared.notes["server.affinity"] = {"a": [9.0, -1.0, 3.0, 0.0, 2.0]}
    return linear.method, shared


def rounds_of(method: FedFomo, shared: Shared, count: int) -> list[str]:
    """Whose models site a is sent, round by round."""
    found = []
    for number in range(count):
        shared.notes["server.round"] = number
        found.append("".join(n.removeprefix("model.") for n in method.sent("a", shared)))
    return found


def test_by_default_all_others_are_sent_and_never_the_servers_own_parts():
    method, shared = of_five()
    assert list(method.sent("c", shared)) == [f"model.{s}" for s in "abde"]


def test_without_exploration_the_most_useful_are_sent():
    assert set(rounds_of(*of_five(models=2, epsilon=0), 5)) == {"ce"}
    assert set(rounds_of(*of_five(models=3, epsilon=0), 5)) == {"cde"}


def test_exploration_draws_others_and_the_same_ones_again():
    found = rounds_of(*of_five(models=2, epsilon=0.5), 40)
    assert found == rounds_of(*of_five(models=2, epsilon=0.5), 40)
    assert {len(set(sent)) for sent in found} == {2}
    assert set("".join(found)) == set("bcde")
    assert found.count("ce") > 10  # mostly the useful ones


def test_sites_and_seeds_explore_apart():
    ways = set()
    for seed in (0, 1):
        method, shared = of_five(models=2, epsilon=1, seed=seed)
        ways.add(tuple(rounds_of(method, shared, 20)))
    assert len(ways) == 2


def test_affinities_add_up_over_the_rounds():
    linear, total = federation(), np.zeros(2)
    shared = linear.method.start()
    for number in (1, 2, 3):
        shared = linear.round(shared, number)
        useful = linear.states["a"].notes["usefulness"]
        total += [useful["a"], useful["b"]]
        np.testing.assert_allclose(shared.notes["server.affinity"]["a"], total, rtol=1e-5)
    assert np.abs(total).min() > 0


# --- real runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_without_received_models_it_is_local_training(make_plan, tmp_path, norm):
    plan = make_plan(
        methods=["local", {"name": "fedfomo", "models": 0}],
        network={"name": "small", "norm": norm},
        rounds=3,
    )
    for title in ("local", "fedfomo"):
        toy.train(plan, tmp_path, title)
    for site in plan.sites:
        local = toy.state_of(plan, tmp_path, site, "local").last["local"]
        assert local.equals(toy.state_of(plan, tmp_path, site, "fedfomo").last["personal"])


def test_a_federation_of_one_is_local_training(make_plan, shades, tmp_path):
    federation = {"folder": str(shades), "image_size": 32, "sites": ["north"]}
    plan = make_plan(federation=federation, methods=["local", "fedfomo"])
    for title in ("local", "fedfomo"):
        toy.train(plan, tmp_path, title)
    local = toy.state_of(plan, tmp_path, "north", "local").last["local"]
    assert local.equals(toy.state_of(plan, tmp_path, "north", "fedfomo").last["personal"])


def test_the_server_keeps_single_models_on_its_disk(make_plan, tmp_path):
    plan = make_plan(methods=["fedfomo"], server={"absences": {"north": [2]}, "min_sites": 1})
    record = toy.train(plan, tmp_path)
    again = toy.server(plan, tmp_path).record  # read from the disk
    assert toy.same_record(record, again)
    assert set(again.shared) == {f"server.model.{site}" for site in plan.sites}
    assert set(again.shared.notes["server.affinity"]) == set(plan.sites)
    assert again.shared.notes["server.round"] == 2
    models = [again.shared[f"server.model.{site}"] for site in plan.sites]
    assert not models[0].equals(models[1])


def test_no_sites_model_is_handed_out_by_the_server(make_plan, tmp_path):
    plan = make_plan(methods=["fedfomo"])
    toy.whole_run(plan, tmp_path)
    folder = tmp_path / plan.jobs[0].name
    assert list((folder / "checkpoints").rglob("*.safetensors")) == []
    assert (folder / "sites" / "north" / "last" / "personal.safetensors").exists()
