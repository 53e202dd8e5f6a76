"""Controls by hand over several rounds, what they are for, and where they must not be."""

import numpy as np
import pytest
from methods import hand
from torch import nn

from konsil import testing as toy
from konsil.weights import Weights

START = (1.0, -1.0, 0.5)
CORRECTIONS = ["gradient", "direction"]
LR = 0.1


def federation(method: str = "scaffold", optimizer: str = "sgd", **settings) -> toy.Linear:
    """Batches of two: the sites take two and three steps an epoch."""
    training = {"optimizer": optimizer, "batch_size": 2, "lr": LR}
    training |= settings.pop("training", {})
    return toy.Linear(method, hand.two_sites(), training=training, **settings)


def beginning(linear: toy.Linear) -> dict[str, Weights]:
    x = linear.weights(*START)
    return {"global": x, "control": Weights.zeros(x.layout)}


class ByHand:
    """Algorithm 1 for linear models, in numpy and float64."""

    def __init__(self, linear: toy.Linear, correction: str, optimizer: str, server_lr: float):
        self.linear, self.correction, self.server_lr = linear, correction, server_lr
        self.optimizers = {s: hand.OPTIMIZERS[optimizer](LR) for s in linear.data}
        n = {s: len(d.train) for s, d in linear.data.items()}
        self.p = {s: n[s] / sum(n.values()) for s in n}
        self.x, self.c = np.array(START), np.zeros(3)
        self.c_k = {s: np.zeros(3) for s in linear.data}

    def round(self, number: int, sites: list[str]) -> None:
        y, changes = {}, {}
        for site in sites:
            y[site], new = self.local(site, number)
            changes[site] = new - self.c_k[site]
            self.c_k[site] = new
        self.x = self.x + self.server_lr * (hand.mean(self.linear, y) - self.x)
        self.c = self.c + sum(self.p[s] * changes[s] for s in sites)

    def local(self, site: str, number: int) -> tuple[np.ndarray, np.ndarray]:
        y, raw, c_k = self.x, [], self.c_k[site]
        for batch in hand.batches(self.linear, site, number):
            raw.append(hand.gradient(y, batch))
            if self.correction == "gradient":
                y = self.optimizers[site].step(y, raw[-1] - c_k + self.c)
            else:
                y = self.optimizers[site].step(y, raw[-1]) - LR * (self.c - c_k)
        if self.correction == "gradient":
            return y, np.mean(raw, axis=0)
        return y, c_k - self.c + (self.x - y) / (len(raw) * LR)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_five_rounds_by_hand(correction, optimizer, server_lr):
    """Also with a newcomer in round 2, and a site that is away in round 4."""
    linear = federation(optimizer=optimizer, correction=correction, server_lr=server_lr)
    byhand, shared = ByHand(linear, correction, optimizer, server_lr), beginning(linear)
    for number, sites in enumerate([["a"], ["a", "b"], ["a", "b"], ["b"], ["a", "b"]], 1):
        shared = linear.round(shared, number, sites)
        byhand.round(number, sites)
        np.testing.assert_allclose(shared["global"].flat.numpy(), byhand.x, atol=1e-5)
        np.testing.assert_allclose(shared["control"].flat.numpy(), byhand.c, atol=1e-5)
        for site in sites:
            mine = linear.states[site].private["control"].flat.numpy()
            np.testing.assert_allclose(mine, byhand.c_k[site], atol=1e-5)


@pytest.mark.parametrize("epochs", [1, 3])
def test_with_sgd_the_two_corrections_are_the_same(epochs):
    after = []
    for correction in CORRECTIONS:
        linear = federation(correction=correction, training={"local_epochs": epochs})
        shared = beginning(linear)
        for number in range(1, 5):
            shared = linear.round(shared, number)
        after.append((shared, linear.states))
    (one, states), (other, others) = after
    for name in one:
        np.testing.assert_allclose(one[name].flat, other[name].flat, atol=1e-5)
    for site in states:
        mine, theirs = (s[site].private["control"].flat for s in (states, others))
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


def test_with_adam_they_are_not():
    """A mean step of Adam is no gradient: mixing the two rules would be wrong."""
    controls = []
    for correction in CORRECTIONS:
        linear = federation(optimizer="adam", correction=correction)
        controls.append(linear.round(beginning(linear))["control"])
    assert not np.allclose(controls[0].flat, controls[1].flat, atol=0.1)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("correction", CORRECTIONS)
def test_c_is_the_mean_of_the_sites_controls(correction, optimizer):
    """Whoever was away: c = sum_k p_k c_k, or the corrections would not cancel."""
    linear = federation(optimizer=optimizer, correction=correction)
    shared = beginning(linear)
    for number, sites in enumerate([["a", "b"], ["a", "b"], ["b"], ["a"], ["a", "b"]], 1):
        shared = linear.round(shared, number, sites)
        own = {s: linear.states[s].private["control"].flat.numpy() for s in linear.data}
        np.testing.assert_allclose(shared["control"].flat, hand.mean(linear, own), atol=1e-5)
    assert shared["control"].norm() > 0.01


def test_it_goes_to_the_optimum_of_all_where_fedavg_does_not():
    """Many local steps pull FedAvg's fixed point away from the optimum of the pooled images."""
    linear = federation("fedavg")
    pooled = [batch for site in linear.data for batch in hand.batches(linear, site, 1)]
    x, y = (np.concatenate(arrays) for arrays in zip(*pooled, strict=True))
    optimum = np.linalg.lstsq(x, y, rcond=None)[0]
    away = {}
    for method in ("fedavg", "scaffold"):
        training = {"batch_size": 8, "local_epochs": 10, "lr": 0.3}  # full batches: no noise
        linear = federation(method, training=training)
        shared = beginning(linear) if method == "scaffold" else {"global": linear.weights(*START)}
        for number in range(1, 101):
            shared = linear.round(shared, number)
        away[method] = np.abs(shared["global"].flat.numpy() - optimum).max()
    assert away["fedavg"] > 0.02
    assert away["scaffold"] < 1e-4


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("correction", CORRECTIONS)
def test_the_first_round_is_fedavgs(correction, optimizer):
    scaffold = federation(optimizer=optimizer, correction=correction)
    fedavg = federation("fedavg", optimizer)
    mine = scaffold.round(beginning(scaffold))["global"]
    assert mine.equals(fedavg.round({"global": fedavg.weights(*START)})["global"])


def test_only_trainable_values_have_a_control():
    """Statistics are averaged as in FedAvg, whatever the server's rate is."""

    def normed() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))

    start = Weights.of(normed())
    means = {}
    for method, settings in (("fedavg", {}), ("scaffold", {"server_lr": 0.5})):
        linear = federation(method, model=normed, training={"batch_size": 8}, **settings)
        trainable = start.only({"0.weight", "0.bias", "1.weight", "1.bias"})
        control = {"control": Weights.zeros(trainable.layout)} if method == "scaffold" else {}
        means[method] = linear.round({"global": start, **control})
    control, model = means["scaffold"]["control"], means["scaffold"]["global"]
    assert {e.name for e in control.layout.entries} == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert all(e.kind == "trainable" for e in control.layout.entries)
    for name in ("0.running_mean", "0.running_var", "0.num_batches_tracked"):
        assert (model[name] == means["fedavg"]["global"][name]).all()
    half = (start.trainable + means["fedavg"]["global"].trainable) / 2
    np.testing.assert_allclose(model.trainable, half, atol=1e-6)


def test_controls_of_a_real_network_leave_statistics_out(make_plan):
    plan = make_plan(methods=["scaffold"], network={"name": "small", "norm": "batch"})
    parts = plan.method(plan.jobs[0]).start()
    assert parts["control"].layout.size == parts["global"].layout.trainable
    assert parts["global"].layout.size > parts["global"].layout.trainable


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_frozen_controls_are_fedavg(make_plan, tmp_path, optimizer, norm):
    frozen = [
        {"name": "scaffold", "label": c, "correction": c, "freeze_controls": True}
        for c in CORRECTIONS
    ]
    free = [{"name": "scaffold", "label": f"free-{c}", "correction": c} for c in CORRECTIONS]
    plan = make_plan(
        methods=["fedavg", *frozen, *free],
        network={"name": "small", "norm": norm},
        training={"batch_size": 3, "optimizer": optimizer, "lr": 1e-2},
    )
    fedavg = toy.train(plan, tmp_path, "fedavg")
    for correction in CORRECTIONS:
        record = toy.train(plan, tmp_path, correction)
        assert record.shared["global"].equals(fedavg.shared["global"])
        assert record.best["global"].equals(fedavg.best["global"])
        assert record.shared["control"].norm() == 0
        changed = toy.train(plan, tmp_path, f"free-{correction}").shared
        assert not changed["global"].equals(fedavg.shared["global"])
        assert changed["control"].norm() > 0
