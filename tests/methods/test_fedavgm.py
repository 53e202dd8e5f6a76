"""Momentum at the server by hand, and what a server optimiser must leave alone."""

import numpy as np
import pytest
from methods import hand
from torch import nn

from konsil import testing as toy
from konsil.config import ServerConfig
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


def test_nesterov_by_hand():
    linear = federation(momentum=0.6, server_lr=0.5, nesterov=True)
    w, v = np.array(START), np.zeros(3)
    model = linear.weights(*START)
    shared = {"global": model, "server.global.velocity": Weights.zeros(model.layout)}
    for number in range(1, 4):
        shared = linear.round(shared, number)
        away = w - hand.fedavg_round(linear, w, number)
        v = 0.6 * v + away
        w = w - 0.5 * (0.6 * v + away)
        np.testing.assert_allclose(shared["global"].flat.numpy(), w, atol=2e-6)


def test_momentum_under_every_mean_makes_fedavg_fedavgm(make_plan, tmp_path):
    mine = {"name": "fedavgm", "momentum": 0.5}
    plain = make_plan(methods=[mine], rounds=3)
    moved = make_plan(methods=["fedavg", mine], rounds=3, server={"momentum": 0.5})
    expected = toy.train(plain, tmp_path / "plain")
    assert toy.same_parts(toy.train(moved, tmp_path / "moved", "fedavg").shared, expected.shared)
    # a method with an optimiser of its own keeps that
    assert toy.same_parts(toy.train(moved, tmp_path / "moved", "fedavgm").shared, expected.shared)


def test_auto_is_one_step_of_a_mean_for_each_site(make_plan):
    plan = make_plan(server={"momentum": "auto"}, methods=["fedavg", "centralized"])
    fedavg, pooled = (plan.method(job) for job in plan.jobs)
    assert fedavg.context.momentum == 1 - 1 / len(plan.sites)
    assert pooled.context.momentum == 0  # it is no mean


def test_auto_does_not_remember_a_whole_run_however_many_sites_there_are():
    found = [ServerConfig(momentum="auto").momentum_among(k) for k in (1, 2, 5, 10, 11, 500)]
    assert found == [0, 0.5, 0.8, 0.9, 0.9, 0.9]
    assert ServerConfig(momentum=0.95).momentum_among(3) == 0.95


@pytest.mark.parametrize("method", ["fedsoup", "scaffold", "fedprox", "ditto", "apfl"])
def test_momentum_goes_under_the_mean_of_other_methods_too(method):
    training = {"batch_size": 2}
    moved = toy.Linear(method, hand.two_sites(), training=training, server={"momentum": 0.5})
    still = toy.Linear(method, hand.two_sites(), training=training)
    model = moved.weights(*START)
    velocity = {"server.global.velocity": Weights(model.layout, model.flat * 0.1)}
    parts = {"global": model, **({"control": model - model} if method == "scaffold" else {})}
    found = moved.round({**parts, **velocity})["global"].flat
    mean = still.round(parts)["global"].flat
    np.testing.assert_allclose(found.numpy(), (mean - 0.5 * 0.1 * model.flat).numpy(), atol=2e-6)


def test_scaffolds_server_rate_goes_with_momentum():
    options = {"training": {"batch_size": 2}, "server_lr": 0.3}
    moved = toy.Linear("scaffold", hand.two_sites(), server={"momentum": 0.5}, **options)
    still = toy.Linear("scaffold", hand.two_sites(), **options)
    model = moved.weights(*START)
    parts = {"global": model, "control": model - model}
    found = moved.round({**parts, "server.global.velocity": model * 0.1})["global"].flat
    plain = still.round(parts)["global"].flat
    np.testing.assert_allclose(found, plain - 0.3 * 0.5 * 0.1 * model.flat, atol=2e-6)


def test_models_count_alike_if_asked_to():
    equal = toy.Linear("fedavg", hand.two_sites(), server={"equal": True})
    uploads = equal.uploads({"global": equal.weights(*START)})
    assert [u.weights["global"] for u in uploads.values()] == [1, 1]
    by_images = toy.Linear("fedavg", hand.two_sites())
    uploads = by_images.uploads({"global": by_images.weights(*START)})
    assert [u.weights["global"] for u in uploads.values()] == [3, 5]
    assert [equal.method.context.share(s) for s in "ab"] == [0.5, 0.5]
    assert [by_images.method.context.share(s) for s in "ab"] == [3 / 8, 5 / 8]
