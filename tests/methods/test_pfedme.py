"""pFedMe by hand, and the values at which one of its two models stands still."""

import numpy as np
import pytest
import torch
from methods import hand
from torch import nn

from konsil import testing as toy
from konsil.errors import ConfigError
from konsil.weights import Weights

LR, INNER_LR, LAMBDA, STEPS = 0.2, 0.1, 4.0, 3


def federation(**settings) -> toy.Linear:
    usual = {"lambda": LAMBDA, "inner_lr": INNER_LR, "inner_steps": STEPS}
    training = {"lr": LR, "batch_size": 3}
    return toy.Linear("pfedme", hand.two_clouds(), training=training, **(usual | settings))


@pytest.mark.parametrize("beta", [1.0, 0.6, 1.5])
def test_three_rounds_by_hand(beta):
    linear, w = federation(beta=beta), np.array(hand.START)
    shared = {"global": linear.weights(*w)}
    for number in (1, 2, 3):
        shared = linear.round(shared, number)
        local = {}
        for site in linear.data:
            local[site] = theta = w  # theta begins the round anew
            for batch in hand.batches(linear, site, number):  # and goes on from batch to batch
                for _ in range(STEPS):
                    pull = LAMBDA * (theta - local[site])
                    theta = theta - INNER_LR * (hand.gradient(theta, batch) + pull)
                local[site] = local[site] - LR * LAMBDA * (local[site] - theta)
            kept = linear.states[site].private["theta"].flat.numpy()
            np.testing.assert_allclose(kept, theta, atol=1e-5)
        w = (1 - beta) * w + beta * hand.mean(linear, local)
        np.testing.assert_allclose(shared["global"].flat.numpy(), w, atol=1e-5)


def test_one_inner_step_of_rate_one_over_lambda_is_fedavg_on_one_batch():
    """w - eta lambda (w - theta) = w - eta lambda inner_lr grad f(w)."""
    one_batch = {"lr": LR, "batch_size": 16}
    settings = {"lambda": 4.0, "inner_lr": 0.25, "inner_steps": 1}
    ours = toy.Linear("pfedme", hand.two_clouds(), training=one_batch, **settings)
    fedavg = toy.Linear("fedavg", hand.two_clouds(), training=one_batch)
    shared = {"global": ours.weights(*hand.START)}
    ends = [linear.round(shared)["global"].flat for linear in (ours, fedavg)]
    torch.testing.assert_close(ends[0], ends[1])


def test_a_site_answers_with_theta_and_before_any_training_with_the_mean():
    linear = federation()
    shared = {"global": linear.weights(*hand.START)}
    site = linear.site("a", 1, shared)
    assert linear.method.answers(site, shared)["personal"].equals(shared["global"])
    shared = linear.round(shared, 1)
    theta = linear.states["a"].private["theta"]
    shared = linear.round(shared, 2, sites=["b"])  # a is absent and keeps its own
    opinions = linear.method.answers(linear.site("a", 3, shared), shared)
    assert opinions["personal"].equals(theta)
    assert opinions["global"].equals(shared["global"])


def test_a_pull_that_overshoots_is_refused():
    with pytest.raises(ConfigError, match=r"lambda = 4: times inner_lr = 0\.5"):
        federation(inner_lr=0.5)
    with pytest.raises(ConfigError, match="2 or more"):  # the experiment's rate counts too
        federation(inner_lr=None, **{"lambda": 10.0})
    federation(inner_lr=0.499)
    adam = {"optimizer": "adam", "lr": 0.5}  # whose steps have a length of their own
    toy.Linear("pfedme", hand.two_clouds(), training=adam)


@pytest.mark.parametrize("running_statistics", ["average", "local"])
def test_the_shared_model_has_the_statistics_of_theta(running_statistics):
    """Its own network never sees an image: at the initial statistics it would be useless."""

    def normed() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))

    data = toy.points([[0, 0], [255, 51], [51, 255], [102, 51]], [0, 1, 1, 0])
    training = {"batch_size": 4, "running_statistics": running_statistics}
    linear = toy.Linear("pfedme", {"a": data}, model=normed, training=training)
    shared = linear.round({"global": Weights.of(normed())})
    private, mean = linear.states["a"].private, (data.train.images.float() / 255).mean(0)
    moved = (1 - 0.9**5) * mean  # five passes over one batch
    torch.testing.assert_close(private["theta"]["0.running_mean"], moved)
    torch.testing.assert_close(shared["global"]["0.running_mean"], moved)
    site = linear.site("a", 2, shared)
    as_run = site.localised("global", shared["global"])
    torch.testing.assert_close(as_run["0.running_mean"], moved)


# --- real runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_beta_0_never_moves_the_global_model(make_plan, tmp_path, norm):
    plan = make_plan(
        methods=[{"name": "pfedme", "beta": 0}],
        network={"name": "small", "norm": norm},
    )
    initial = toy.server(plan, tmp_path).record.shared["global"]
    assert toy.train(plan, tmp_path).shared["global"].equals(initial)


def test_beta_1_is_the_mean(make_plan, tmp_path):
    plan = make_plan(methods=["pfedme"], rounds=1)
    server = toy.server(plan, tmp_path)
    server._round(1)
    sent = {s: toy.state_of(plan, tmp_path, s).upload["global"] for s in plan.sites}
    n = {s: plan.images(s, "train") for s in plan.sites}
    mean = sum(n[s] * sent[s].flat.double() for s in sent) / sum(n.values())
    assert torch.equal(server.record.shared["global"].flat, mean.float())


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_lambda_0_leaves_w_and_theta_is_fedavgs_local_model(make_plan, tmp_path, norm):
    plan = make_plan(
        methods=["fedavg", {"name": "pfedme", "lambda": 0, "inner_steps": 1}],
        network={"name": "small", "norm": norm},
        rounds=1,
    )
    servers = {title: toy.server(plan, tmp_path, title) for title in ("fedavg", "pfedme")}
    initial = servers["pfedme"].record.shared["global"]
    for server in servers.values():
        server._round(1)
    assert torch.equal(servers["pfedme"].record.shared["global"].trainable, initial.trainable)
    for site in plan.sites:
        local = toy.state_of(plan, tmp_path, site, "fedavg").upload["global"]
        assert toy.state_of(plan, tmp_path, site, "pfedme").private["theta"].equals(local)


def test_theta_forgets_its_moments_and_w_keeps_its_own(make_plan, tmp_path):
    plan = make_plan(methods=["pfedme"])
    toy.train(plan, tmp_path)
    private = toy.state_of(plan, tmp_path, "north").private
    assert set(private) == {"theta", "global.moments"}


def test_inside_fedsm_it_is_the_same(make_plan, tmp_path):
    """Table 6 of FedSM: only the name of its shared part is another."""
    plan = make_plan(methods=["pfedme", {"name": "fedsm", "personaliser": "pfedme"}])
    records = {title: toy.train(plan, tmp_path, title) for title in ("pfedme", "fedsm")}
    assert records["pfedme"].shared["global"].equals(records["fedsm"].shared["personal"])
    for site in plan.sites:
        alone, inside = (toy.state_of(plan, tmp_path, site, title).last for title in records)
        assert alone["personal"].equals(inside["personal"])
