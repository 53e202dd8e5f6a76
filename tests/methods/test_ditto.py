"""Ditto by hand, and the two methods between which it lies."""

import numpy as np
import pytest
from methods import hand

from konsil import testing as toy

LR, LAMBDA = 0.3, 0.7


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("coupling", ["coupled", "decoupled"])
def test_three_rounds_by_hand(optimizer, coupling):
    """With SGD the two couplings are one; through Adam they are not."""
    training = {"optimizer": optimizer, "lr": LR, "batch_size": 3}
    linear = toy.Linear("ditto", hand.two_clouds(), training=training, coupling=coupling,
                        **{"lambda": LAMBDA})  # fmt: skip
    w = np.array(hand.START)
    shared, v = {"global": linear.weights(*w)}, {"a": w, "b": w}
    own, common = ({s: hand.OPTIMIZERS[optimizer](LR) for s in v} for _ in range(2))
    for number in (1, 2, 3):
        shared = linear.round(shared, number)
        local = {}
        for site in v:
            local[site] = w
            for batch in hand.batches(linear, site, number):
                pull, gradient = LAMBDA * (v[site] - w), hand.gradient(v[site], batch)
                if coupling == "coupled":
                    v[site] = own[site].step(v[site], gradient + pull)
                else:
                    v[site] = own[site].step(v[site], gradient) - LR * pull
                local[site] = common[site].step(local[site], hand.gradient(local[site], batch))
            mine = linear.states[site].private["personal"].flat.numpy()
            np.testing.assert_allclose(mine, v[site], atol=1e-5)
        w = hand.mean(linear, local)
        np.testing.assert_allclose(shared["global"].flat.numpy(), w, atol=1e-5)
    assert np.abs(v["a"] - v["b"]).max() > 0.01  # models of their own


@pytest.mark.parametrize("coupling", ["coupled", "decoupled"])
def test_without_a_pull_it_is_local_training(make_plan, tmp_path, coupling):
    plan = make_plan(
        methods=["local", {"name": "ditto", "lambda": 0, "coupling": coupling}],
        network={"name": "small", "norm": "batch"},
    )
    for title in ("local", "ditto"):
        toy.train(plan, tmp_path, title)
    for site in plan.sites:
        local = toy.state_of(plan, tmp_path, site, "local").last["local"]
        assert local.equals(toy.state_of(plan, tmp_path, site, "ditto").last["personal"])


def test_with_a_pull_it_is_not_local_training_and_its_global_model_is_fedavgs(make_plan, tmp_path):
    plan = make_plan(methods=["local", "fedavg", {"name": "ditto", "lambda": 1}])
    records = {m: toy.train(plan, tmp_path, m) for m in ("local", "fedavg", "ditto")}
    assert records["fedavg"].shared["global"].equals(records["ditto"].shared["global"])
    assert records["fedavg"].best["global"].equals(records["ditto"].best["global"])
    for site in plan.sites:
        local = toy.state_of(plan, tmp_path, site, "local").last["local"]
        assert not local.equals(toy.state_of(plan, tmp_path, site, "ditto").last["personal"])


def test_an_absent_site_keeps_its_model_and_goes_on_with_it():
    linear = toy.Linear("ditto", hand.two_clouds(), training={"lr": LR}, **{"lambda": LAMBDA})
    shared = linear.round({"global": linear.weights(*hand.START)}, 1)
    before = linear.states["a"].private["personal"]
    shared = linear.round(shared, 2, sites=["b"])
    assert linear.states["a"].private["personal"].equals(before)
    w = shared["global"].flat.double().numpy()
    linear.round(shared, 3)
    v = before.flat.double().numpy()
    (batch,) = hand.batches(linear, "a", 3)
    expected = v - LR * (hand.gradient(v, batch) + LAMBDA * (v - w))  # pulled to the newest mean
    after = linear.states["a"].private["personal"].flat.numpy()
    np.testing.assert_allclose(after, expected, atol=1e-5)


def test_a_newcomer_begins_with_the_global_model():
    linear = toy.Linear("ditto", hand.two_clouds(), **{"lambda": LAMBDA})
    shared = linear.round({"global": linear.weights(*hand.START)}, 1, sites=["b"])
    site = linear.site("a", 2, shared)
    linear.method.receive(site, shared)
    assert linear.method.answers(site, shared)["personal"].equals(shared["global"])


def test_a_sites_own_model_may_have_more_epochs_or_fewer(make_plan, tmp_path):
    """Its own are as many epochs of local training, the global model's are FedAvg's as ever."""
    plan = make_plan(
        methods=["fedavg", {"name": "ditto", "lambda": 0, "personal_epochs": 3}], rounds=2
    )
    longer = make_plan(methods=["local"], rounds=2, training={"batch_size": 3, "local_epochs": 3})
    toy.train(longer, tmp_path / "longer")
    fedavg = toy.train(plan, tmp_path, "fedavg").shared["global"]
    assert toy.train(plan, tmp_path, "ditto").shared["global"].equals(fedavg)
    for site in plan.sites:
        local = toy.state_of(longer, tmp_path / "longer", site).last["local"]
        assert local.equals(toy.state_of(plan, tmp_path, site, "ditto").last["personal"])
    fewer = make_plan(
        methods=[{"name": "ditto", "personal_epochs": 1}],
        training={"batch_size": 3, "local_epochs": 2},
    )
    assert fewer.method(fewer.jobs[0]).work() == 1.5
