import numpy as np
import pytest
import torch

from konsil import testing as toy

A = toy.points([[0, 255]], [1])  # one image: x = (0, 1), y = 1
B = toy.points([[255, 0], [255, 255], [0, 0]], [1, 0, 1])  # three images


def step(w: np.ndarray, x: np.ndarray, y: np.ndarray, lr: float = 0.1) -> np.ndarray:
    """One step of gradient descent on the mean squared error of w1 x1 + w2 x2 + w3."""
    x = np.hstack([x, np.ones((len(x), 1))])
    return w - lr * 2 / len(x) * x.T @ (x @ w - y)


def test_two_sites_by_hand():
    linear = toy.Linear("fedavg", {"a": A, "b": B})
    shared = {"global": linear.weights(1.0, -1.0, 0.5)}
    merged = linear.round(shared)["global"].flat

    # a: error -1 + 0.5 - 1 = -1.5, gradient -3 (0, 1, 1)
    at_a = np.array([1.0, -1.0 + 0.3, 0.5 + 0.3])
    assert np.allclose(at_a, step(np.array([1, -1, 0.5]), np.array([[0, 1]]), np.array([1])))
    # b: errors 0.5, 0.5, -0.5; gradient 2/3 (1, 0.5, 0.5)
    at_b = np.array([1 - 0.2 / 3, -1 - 0.1 / 3, 0.5 - 0.1 / 3])
    expected = (1 * at_a + 3 * at_b) / 4
    np.testing.assert_allclose(merged.numpy(), expected, atol=1e-6)


def test_what_was_sent_is_not_changed():
    linear = toy.Linear("fedavg", {"a": A, "b": B})
    shared = {"global": linear.weights(1.0, -1.0, 0.5)}
    linear.round(shared)
    assert shared["global"].flat.tolist() == [1.0, -1.0, 0.5]


@pytest.mark.parametrize("policy", ["persist", "reset", "average"])
def test_optimizer_state_goes_where_the_policy_says(policy):
    linear = toy.Linear(
        "fedavg", {"a": A, "b": B}, training={"optimizer": "adam"}, optimizer_state=policy
    )
    shared = {"global": linear.weights(1.0, -1.0, 0.5)}
    uploads = linear.uploads(shared)
    assert ("global.moments" in linear.states["a"].private) == (policy == "persist")
    assert ("global.moments" in uploads["a"].parts) == (policy == "average")
    if policy == "average":
        moments = toy.means(uploads)["global.moments"]
        sent = [uploads[s].parts["global.moments"]["exp_avg"] for s in "ab"]
        torch.testing.assert_close(moments["exp_avg"], (sent[0] + 3 * sent[1]) / 4)
        assert float(moments["step"]) == 1


@pytest.mark.parametrize("policy", ["persist", "reset"])
def test_second_round_of_adam_by_hand(policy):
    linear = toy.Linear("fedavg", {"a": A}, training={"optimizer": "adam"}, optimizer_state=policy)
    shared = {"global": linear.weights(1.0, -1.0, 0.5)}
    for number in (1, 2):
        shared = linear.round(shared, number)
    w, m, v = np.array([1, -1, 0.5]), np.zeros(3), np.zeros(3)
    x = np.array([0, 1, 1])
    for t in (1, 2):
        g = 2 * (w @ x - 1) * x
        if policy == "reset":
            m, v, t = np.zeros(3), np.zeros(3), 1
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        w = w - 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    np.testing.assert_allclose(shared["global"].flat.numpy(), w, atol=1e-5)


def test_mean_of_a_real_run_is_the_sites_weighted_by_images(make_plan, tmp_path):
    plan = make_plan(rounds=1)
    record = toy.train(plan, tmp_path)
    after = toy.server(plan, tmp_path).record  # read again from the disk
    assert toy.same_record(record, after)
    # the finish has replaced the sites' uploads: ask for the round again in a fresh folder
    fresh = toy.server(plan, tmp_path / "again")
    fresh._round(1)
    sent = {s: toy.state_of(plan, tmp_path / "again", s).upload["global"] for s in plan.sites}
    n = {s: plan.images(s, "train") for s in plan.sites}
    assert len(set(n.values())) == 2  # unequal sites, or the weights would not be tested
    expected = sum(n[s] * sent[s].flat.double() for s in plan.sites) / sum(n.values())
    assert torch.equal(record.shared["global"].flat, expected.float())
