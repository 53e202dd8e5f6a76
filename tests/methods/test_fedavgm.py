"""Momentum at the server by hand, and what a server optimiser must leave alone."""

import numpy as np
import pytest
from methods import hand
from torch import nn

from konsil import testing as toy
from konsil.weights import Weights

START = (1.0, -1.0, 0.5)


def federation(method: str = "fedavgm", **settings) -> toy.Linear:
    training = {"batch_size": 2, **settings.pop("training", {})}
    return toy.Linear(method, hand.two_sites(), training=training, **settings)


@pytest.mark.parametrize(("momentum", "server_lr"), [(0.9, 1.0), (0.5, 0.3)])
def test_four_rounds_by_hand(momentum, server_lr):
    linear = federation(momentum=momentum, server_lr=server_lr)
    w, v = np.array(START), np.zeros(3)
    model = linear.weights(*START)
    shared = {"global": model, "server.global.velocity": Weights.zeros(model.layout)}
    for number in range(1, 5):
        shared = linear.round(shared, number)
        v = momentum * v + (w - hand.fedavg_round(linear, w, number))
        w = w - server_lr * v
        np.testing.assert_allclose(shared["global"].flat.numpy(), w, atol=2e-6)
        np.testing.assert_allclose(shared["server.global.velocity"].flat.numpy(), v, atol=2e-6)


METHODS = {"fedavgm": ["velocity"], "fedadam": ["m", "v"], "fedyogi": ["m", "v"]}


@pytest.mark.parametrize("name", METHODS)
def test_statistics_take_the_mean_and_moments_stay_at_the_server(name):
    def normed() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))

    start = Weights.of(normed())
    settings = {"server_lr": 0.3, "training": {"batch_size": 8}}
    linear = federation(name, model=normed, **settings)
    fedavg = federation("fedavg", model=normed, training={"batch_size": 8})
    trainable = start.only({e.name for e in start.layout.entries if e.kind == "trainable"})
    moments = linear.method.server().start("global", start)
    assert set(moments) == {f"server.global.{m}" for m in METHODS[name]}
    mine = linear.round({"global": start, **moments})
    mean = fedavg.round({"global": start})["global"]
    for entry in ("0.running_mean", "0.running_var", "0.num_batches_tracked"):
        assert (mine["global"][entry] == mean[entry]).all()
    assert not np.allclose(mine["global"].trainable, mean.trainable, atol=1e-4)
    assert set(linear.method.sent("a", mine)) == {"global"}
    assert set(mine) == {"global", *moments}
    for moment in moments:
        assert mine[moment].layout.key == trainable.layout.key


@pytest.mark.parametrize("name", METHODS)
def test_real_moments_have_no_statistics(make_plan, name):
    plan = make_plan(methods=[name], network={"name": "small", "norm": "batch"})
    parts = plan.method(plan.jobs[0]).start()
    for moment in METHODS[name]:
        assert parts[f"server.global.{moment}"].layout.size == parts["global"].layout.trainable


@pytest.mark.parametrize("policy", ["persist", "average"])
@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_without_momentum_it_is_fedavg(make_plan, tmp_path, norm, policy):
    still = {"name": "fedavgm", "momentum": 0, "server_lr": 1, "optimizer_state": policy}
    plan = make_plan(
        methods=[{"name": "fedavg", "optimizer_state": policy}, still,
                 {"name": "fedavgm", "label": "moving"}],
        network={"name": "small", "norm": norm},
        training={"batch_size": 3, "lr": 1e-2},
    )  # fmt: skip
    fedavg, fedavgm, moving = (
        toy.train(plan, tmp_path, m) for m in ("fedavg", "fedavgm", "moving")
    )
    velocity = fedavgm.shared.pop("server.global.velocity")
    assert toy.same_record(fedavg, fedavgm)
    assert velocity.norm() > 0
    assert not moving.shared["global"].equals(fedavg.shared["global"])
