"""FedAdam and FedYogi by hand, and where they agree with each other and with FedAvg."""

import numpy as np
import pytest
import torch
from methods import hand

from konsil import testing as toy
from konsil.weights import Weights

START = (1.0, -1.0, 0.5)


def federation(method: str, **settings) -> toy.Linear:
    training = {"batch_size": 2, **settings.pop("training", {})}
    return toy.Linear(method, hand.two_sites(), training=training, **settings)


def beginning(linear: toy.Linear) -> dict[str, Weights]:
    model = linear.weights(*START)
    return {"global": model, **linear.method.server().start("global", model)}


def second_moment(method: str, v: np.ndarray, squares: np.ndarray, beta2: float) -> np.ndarray:
    if method == "fedadam":
        return beta2 * v + (1 - beta2) * squares
    return v - (1 - beta2) * squares * np.sign(v - squares)


@pytest.mark.parametrize(
    "settings", [{}, {"server_lr": 0.2, "beta1": 0.5, "beta2": 0.8, "tau": 0.1}]
)
@pytest.mark.parametrize("method", ["fedadam", "fedyogi"])
def test_four_rounds_by_hand(method, settings):
    s = {"server_lr": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3, **settings}
    linear = federation(method, **settings)
    w, m, v = np.array(START), np.zeros(3), np.full(3, s["tau"] ** 2)
    shared = beginning(linear)
    shrinks = []
    for number in range(1, 5):
        shared = linear.round(shared, number)
        delta = hand.fedavg_round(linear, w, number) - w
        shrinks.append(delta**2 < v)
        m = s["beta1"] * m + (1 - s["beta1"]) * delta
        v = second_moment(method, v, delta**2, s["beta2"])
        w = w + s["server_lr"] * m / (np.sqrt(v) + s["tau"])
        np.testing.assert_allclose(shared["global"].flat.numpy(), w, atol=1e-5)
        np.testing.assert_allclose(shared["server.global.m"].flat.numpy(), m, atol=1e-6)
        np.testing.assert_allclose(shared["server.global.v"].flat.numpy(), v, atol=1e-6)
    if settings:  # both branches of Yogi's sign are seen
        assert 0 < np.sum(shrinks) < np.size(shrinks)


@pytest.mark.parametrize("policy", ["persist", "reset", "average"])
@pytest.mark.parametrize("method", ["fedadam", "fedyogi"])
def test_the_sites_optimizer_state_goes_where_the_policy_says(method, policy):
    linear = federation(method, training={"optimizer": "adam"}, optimizer_state=policy)
    hand.check_optimizer_state(linear, beginning(linear), policy)


@pytest.mark.parametrize("method", ["fedadam", "fedyogi"])
def test_moments_begin_at_the_server_with_v_tau_squared(make_plan, method):
    plan = make_plan(methods=[{"name": method, "tau": 0.5}])
    parts = plan.method(plan.jobs[0]).start()
    assert (parts["server.global.m"].flat == 0).all()
    assert (parts["server.global.v"].flat == 0.25).all()


def test_the_two_take_the_same_first_step_from_v_0():
    """tau^2 of 1e-30 is 0 in float32."""
    after = []
    for method in ("fedadam", "fedyogi"):
        linear = federation(method, tau=1e-30)
        after.append(linear.round(beginning(linear)))
    assert toy.same_parts(*after)


def test_where_the_second_moments_agree_and_where_not():
    adam, yogi = (federation(m, beta2=0.75).method.server() for m in ("fedadam", "fedyogi"))
    squares = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0])
    v = torch.tensor([0.0, 1.0, 2.0, 0.5, 8.0])  # 0, D^2, 2 D^2; below, far above
    assert adam.second_moment(v, squares).tolist() == [0.25, 1.0, 1.75, 0.625, 6.25]
    assert yogi.second_moment(v, squares).tolist() == [0.25, 1.0, 1.75, 0.75, 7.75]


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedadam", {"beta2": 0, "server_lr": 1e4}),  # v forgets tau^2 at once
        ("fedyogi", {"server_lr": 2e4}),  # v stays near tau^2
    ],
)
def test_a_large_tau_without_memory_comes_to_fedavg(method, settings):
    linear = federation(method, beta1=0, tau=1e4, **settings)
    fedavg = federation("fedavg")
    shared, theirs = beginning(linear), {"global": fedavg.weights(*START)}
    for number in (1, 2, 3):
        shared, theirs = linear.round(shared, number), fedavg.round(theirs, number)
        np.testing.assert_allclose(shared["global"].flat, theirs["global"].flat, atol=1e-4)


@pytest.mark.parametrize("method", ["fedadam", "fedyogi"])
def test_where_nothing_moves_nothing_is_divided_by_zero(method):
    linear = toy.Linear(method, {"a": toy.points([[0, 0]], [0])}, tau=1e-30)
    model = linear.weights(0.0, 0.0, 0.0)  # already right: every gradient is zero
    moments = linear.method.server().start("global", model)
    assert linear.round({"global": model, **moments})["global"].flat.tolist() == [0, 0, 0]
