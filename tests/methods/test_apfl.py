"""APFL by hand, and what it is at both ends of alpha."""

import numpy as np
import pytest
import torch
from methods import hand
from torch import nn

from konsil import testing as toy
from konsil.weights import Weights

LR = 0.3


@pytest.mark.parametrize("alpha_lr", [None, 2.0])
def test_three_rounds_by_hand(alpha_lr):
    """With the large rate alpha runs into a wall of [0, 1]."""
    linear = toy.Linear("apfl", hand.two_clouds(), training={"lr": LR, "batch_size": 3},
                        alpha=0.4, alpha_lr=alpha_lr)  # fmt: skip
    w = np.array(hand.START)
    shared = {"global": linear.weights(*w)}
    v, a, seen = {"a": w, "b": w}, {"a": 0.4, "b": 0.4}, set()
    for number in (1, 2, 3):
        shared = linear.round(shared, number)
        local = {}
        for site in v:
            local[site] = w
            for batch in hand.batches(linear, site, number):
                g = hand.gradient(a[site] * v[site] + (1 - a[site]) * local[site], batch)
                moved = a[site] - (alpha_lr or LR) * (v[site] - local[site]) @ g
                v[site] = v[site] - LR * a[site] * g
                local[site] = local[site] - LR * hand.gradient(local[site], batch)
                a[site] = float(np.clip(moved, 0, 1))
                seen.add(a[site] == moved)
            state = linear.states[site]
            np.testing.assert_allclose(state.private["personal"].flat.numpy(), v[site], atol=1e-5)
            assert state.notes["alpha"] == pytest.approx(a[site], abs=1e-4)
        w = hand.mean(linear, local)
        np.testing.assert_allclose(shared["global"].flat.numpy(), w, atol=1e-5)
        for site in v:  # vbar with the mean that the site receives
            opinion = linear.method.answers(linear.site(site, number + 1, shared), shared)
            expected = a[site] * v[site] + (1 - a[site]) * w
            np.testing.assert_allclose(opinion["personal"].flat.numpy(), expected, atol=1e-4)
    assert a["a"] != a["b"]
    assert (False in seen) == (alpha_lr is not None)  # clipped, or never


def test_alpha_stays_where_it_is_unless_adaptive():
    linear = toy.Linear("apfl", hand.two_clouds(), alpha=0.4, adaptive=False)
    shared = {"global": linear.weights(*hand.START)}
    for number in (1, 2):
        shared = linear.round(shared, number)
    assert [state.notes["alpha"] for state in linear.states.values()] == [0.4, 0.4]


def test_an_absent_site_keeps_its_model_and_alpha():
    linear = toy.Linear("apfl", hand.two_clouds(), training={"batch_size": 3})
    shared = linear.round({"global": linear.weights(*hand.START)}, 1)
    before, alpha = linear.states["a"].private["personal"], linear.states["a"].notes["alpha"]
    shared = linear.round(shared, 2, sites=["b"])
    assert alpha != 0.5
    assert linear.states["a"].notes["alpha"] == alpha
    opinion = linear.method.answers(linear.site("a", 3, shared), shared)["personal"]
    expected = alpha * before.flat + (1 - alpha) * shared["global"].flat  # with the newest mean
    torch.testing.assert_close(opinion.flat, expected)


def test_statistics_are_those_of_the_mixture():
    """A network's statistics are moved by forward passes as vbar; w's are another network's."""

    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))

    data = toy.points([[0, 0], [255, 51], [51, 255], [102, 51]], [0, 1, 1, 0])
    torch.manual_seed(0)
    linear = toy.Linear("apfl", {"a": data}, model=normed, alpha=0.25, adaptive=False,
                        training={"batch_size": 4})  # fmt: skip
    w, v = Weights.of(normed()), Weights.of(normed())
    linear.states["a"].private["personal"] = v
    shared = linear.round({"global": w})
    vbar = 0.25 * v.trainable + 0.75 * w.trainable
    first, bias = vbar[:4].view(2, 2), vbar[4:6]
    hidden = data.train.images.float() / 255 @ first.T + bias
    opinion = linear.method.answers(linear.site("a", 2, shared), shared)["personal"]
    torch.testing.assert_close(opinion["1.running_mean"], 0.1 * hidden.mean(0))
    assert not torch.allclose(shared["global"]["1.running_mean"], opinion["1.running_mean"])


# --- real runs ----------------------------------------------------------------------------------


def run(make_plan, folder, other: str, norm: str = "instance", **settings):
    plan = make_plan(
        methods=[other, {"name": "apfl", **settings}],
        network={"name": "small", "norm": norm},
    )
    return plan, {title: toy.train(plan, folder, title) for title in (other, "apfl")}


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_alpha_0_is_fedavg(make_plan, tmp_path, norm):
    plan, records = run(make_plan, tmp_path, "fedavg", norm, alpha=0, adaptive=False)
    w = records["fedavg"].shared["global"]
    for site in plan.sites:
        personal = toy.state_of(plan, tmp_path, site, "apfl").last["personal"]
        assert torch.equal(personal.trainable, w.trainable)
        assert personal.equals(w) == (norm == "instance")  # statistics stay the site's own


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_alpha_1_is_local_training(make_plan, tmp_path, norm):
    plan, _ = run(make_plan, tmp_path, "local", norm, alpha=1, adaptive=False)
    for site in plan.sites:
        local = toy.state_of(plan, tmp_path, site, "local").last["local"]
        assert local.equals(toy.state_of(plan, tmp_path, site, "apfl").last["personal"])


def test_the_global_model_is_fedavgs_in_any_case(make_plan, tmp_path):
    plan, records = run(make_plan, tmp_path, "fedavg")
    assert records["fedavg"].shared["global"].equals(records["apfl"].shared["global"])
    assert records["fedavg"].best["global"].equals(records["apfl"].best["global"])
    assert toy.state_of(plan, tmp_path, "north", "apfl").notes["alpha"] != 0.5


def test_inside_fedsm_it_is_the_same(make_plan, tmp_path):
    """Table 6 of FedSM."""
    plan = make_plan(methods=["apfl", {"name": "fedsm", "personaliser": "apfl"}])
    for title in ("apfl", "fedsm"):
        toy.train(plan, tmp_path, title)
    for site in plan.sites:
        states = [toy.state_of(plan, tmp_path, site, title) for title in ("apfl", "fedsm")]
        assert states[0].last["personal"].equals(states[1].last["personal"])
        assert states[0].notes["alpha"] == states[1].notes["alpha"]
