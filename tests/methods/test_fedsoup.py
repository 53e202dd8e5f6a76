"""A and B of the listing by hand over several rounds, and what the soup may see."""

import numpy as np
import pytest
import torch
from methods import hand
from torch import nn

from konsil import testing as toy
from konsil.data import TrainingData
from konsil.weights import Weights


class ByHand:
    """FedSoup of PAPERS B1 for linear models, in numpy and float64."""

    def __init__(self, data: dict[str, TrainingData], lr: float) -> None:
        self.data, self.lr = data, lr
        self.soup = {s: np.zeros(3) for s in data}
        self.m = dict.fromkeys(data, 0)
        self.personal: dict[str, np.ndarray] = {}

    def score(self, site: str, w: np.ndarray) -> float:
        return 1 - hand.loss(w, hand.points(self.data[site].val))

    def local(self, site: str, theta_g: np.ndarray, souping: bool) -> np.ndarray:
        theta_l = theta_g - self.lr * hand.gradient(theta_g, hand.points(self.data[site].train))
        if souping:
            m, s = self.m[site], self.soup[site]
            a = (theta_l + m * s) / (m + 1)
            b = (theta_l + m * s + theta_g) / (m + 2)
            if self.score(site, b) >= self.score(site, a):
                self.soup[site], self.m[site] = (m * s + theta_g) / (m + 1), m + 1
                theta_l = b
            else:
                theta_l = a
        self.personal[site] = theta_l
        return theta_l

    def round(self, theta_g: np.ndarray, souping: bool) -> np.ndarray:
        sent = {s: self.local(s, theta_g, souping) for s in self.data}
        n = {s: len(d.train) for s, d in self.data.items()}
        return sum(n[s] * sent[s] for s in sent) / sum(n.values())


def test_five_rounds_by_hand():
    """With a step that overshoots, so that some global models are taken and some are not."""
    rng, lr, rounds = np.random.default_rng(1), 1.0, 5
    data = {"a": hand.cloud(rng, 5, 0), "b": hand.cloud(rng, 9, 120)}
    linear = toy.Linear("fedsoup", data, rounds=rounds, start=0.2,
                        training={"lr": lr, "batch_size": 16})  # fmt: skip
    byhand, theta_g = ByHand(data, lr), np.array(hand.START)
    shared = {"global": linear.weights(*theta_g)}
    sizes = []
    for number in range(1, rounds + 1):
        shared = linear.round(shared, number)
        theta_g = byhand.round(theta_g, souping=number > 1)
        np.testing.assert_allclose(shared["global"].flat.numpy(), theta_g, atol=1e-5)
        for site in data:
            state = linear.states[site]
            assert state.notes.get("soup_size", 0) == byhand.m[site]
            np.testing.assert_allclose(
                state.private["personal"].flat.numpy(), byhand.personal[site], atol=1e-5
            )
            if byhand.m[site]:  # a running mean: appended, not replaced
                soup = state.private["soup"].flat.numpy()
                np.testing.assert_allclose(soup, byhand.soup[site], atol=1e-5)
        sizes.append(tuple(byhand.m.values()))
    assert sizes[0] == (0, 0)  # not started
    assert sizes[-1] == (2, 3)  # soups of several models, and some were turned down


def perfect() -> TrainingData:
    """y = x1 exactly: nothing is left to learn, so all models tie."""
    return toy.points([[0, 0], [255, 255], [255, 0]], [0, 1, 1])


@pytest.mark.parametrize(("ties", "expected"), [("accept", 4), ("reject", 0)])
def test_ties(ties, expected):
    linear = toy.Linear("fedsoup", {"a": perfect()}, start=0.0, ties=ties)
    shared = {"global": linear.weights(1.0, 0.0, 0.0)}
    for number in range(1, 5):
        shared = linear.round(shared, number)
    assert linear.states["a"].notes.get("soup_size", 0) == expected
    assert shared["global"].flat.tolist() == pytest.approx([1, 0, 0])


@pytest.mark.parametrize(
    ("start", "rounds", "first"), [(0.75, 4, 4), (0.75, 8, 7), (0.0, 4, 1), (0.5, 4, 3)]
)
def test_the_soup_starts_after_its_share_of_the_rounds(start, rounds, first):
    linear = toy.Linear("fedsoup", {"a": perfect()}, rounds=rounds, start=start)
    shared = {"global": linear.weights(1.0, 0.0, 0.0)}
    souped = []
    for number in range(1, rounds + 1):
        shared = linear.round(shared, number)
        if linear.states["a"].notes.get("soup_size", 0):
            souped.append(number)
    assert souped == list(range(first, rounds + 1))


def test_start_1_never_starts():
    linear = toy.Linear("fedsoup", {"a": perfect()}, rounds=4, start=1.0)
    shared = {"global": linear.weights(1.0, 0.0, 0.0)}
    for number in range(1, 5):
        shared = linear.round(shared, number)
    assert "soup" not in linear.states["a"].private


def test_the_choice_is_made_on_validation_images_alone():
    """Training pulls to w1 = 1; validation decides whether the untrained model is welcome."""
    train = toy.points([[255, 0]], [1]).train
    for val, welcome in ((toy.points([[255, 0]], [0]).val, True), (train, False)):
        linear = toy.Linear("fedsoup", {"a": TrainingData(train, val)}, start=0.0)
        linear.round({"global": linear.weights(0.0, 0.0, 0.0)})
        assert (linear.states["a"].notes.get("soup_size", 0) == 1) == welcome


def test_the_patched_model_is_what_is_uploaded():
    linear = toy.Linear("fedsoup", {"a": toy.points([[255, 0]], [1])}, start=0.0)
    val = toy.points([[255, 0]], [0]).val
    linear.data["a"] = TrainingData(linear.data["a"].train, val)
    sent = linear.uploads({"global": linear.weights(0.0, 0.0, 0.0)})["a"].parts["global"]
    # the step alone goes to (0.2, 0, 0.2); its mean with theta_g is half of that
    np.testing.assert_allclose(sent.flat.numpy(), [0.1, 0, 0.1], atol=1e-6)
    assert sent.equals(linear.states["a"].private["personal"])


# --- batch norm ---------------------------------------------------------------------------------


def normed() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))


@pytest.mark.parametrize("recompute", [True, False])
def test_statistics_are_recomputed_after_an_average(recompute):
    data = toy.points([[0, 0], [255, 51], [51, 255], [102, 51]], [0, 1, 1, 0])
    linear = toy.Linear(
        "fedsoup", {"a": data}, start=0.0, model=normed, recompute_statistics=recompute,
        training={"lr": 1e-6, "batch_size": 4},
    )  # fmt: skip
    shared = {"global": Weights.of(normed())}
    sent = linear.uploads(shared)["a"].parts["global"]
    x = data.train.images.float() / 255
    if recompute:
        torch.testing.assert_close(sent["0.running_mean"], x.mean(0))
        torch.testing.assert_close(sent["0.running_var"], x.var(0))
    else:  # momentum 0.1 from (0, 1), halved by the average with theta_g if that is accepted
        share = 0.05 if linear.states["a"].notes.get("soup_size") else 0.1
        torch.testing.assert_close(sent["0.running_mean"], share * x.mean(0))


# --- real runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_a_soup_that_never_starts_is_fedavg(make_plan, tmp_path, norm):
    plan = make_plan(
        methods=["fedavg", {"name": "fedsoup", "start": 1.0}],
        network={"name": "small", "norm": norm},
    )
    records = [toy.train(plan, tmp_path, title) for title in ("fedavg", "fedsoup")]
    assert records[0].shared["global"].equals(records[1].shared["global"])
    assert records[0].best["global"].equals(records[1].best["global"])


def test_the_soup_lives_at_the_site_and_does_not_travel(make_plan, tmp_path):
    plan = make_plan(methods=[{"name": "fedsoup", "start": 0.0}])
    server = toy.server(plan, tmp_path)
    for number in (1, 2):
        server._round(number)
    assert set(server.record.shared) == {"global"}
    states = [toy.state_of(plan, tmp_path, site) for site in plan.sites]
    assert [set(s.upload) for s in states] == [{"global"}] * 2
    assert all(s.upload["global"].equals(s.private["personal"]) for s in states)


@pytest.mark.parametrize("policy", ["persist", "reset", "average"])
def test_the_sites_optimizer_state_goes_where_the_policy_says(policy):
    training = {"optimizer": "adam"}
    linear = toy.Linear("fedsoup", hand.two_sites(), training=training, optimizer_state=policy)
    hand.check_optimizer_state(linear, {"global": linear.weights(*hand.START)}, policy)
