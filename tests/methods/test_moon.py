"""The contrast and its gradient by hand, and which models it is taken with."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from methods import hand
from torch import Tensor, nn

from konsil import testing as toy
from konsil.methods.moon import contrastive_loss
from konsil.weights import Weights

START = (0.5, -0.3, 0.2, 0.8, 1.0, -0.7)  # two features, and a head


class Tiny(nn.Module):
    """z = tanh(A x), y = b z: six numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(2, 2, bias=False)
        self.head = nn.Linear(2, 1, bias=False)

    def with_features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.tanh(self.body(x))
        return self.head(z), z

    def forward(self, x: Tensor) -> Tensor:
        return self.with_features(x)[0]


class Normed(Tiny):
    """With a layer that behaves differently in training."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.body, self.head = nn.Linear(2, 2), nn.Linear(2, 1)

    def with_features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return super().with_features(self.norm(x))


def federation(method: str = "moon", model: Callable = Tiny, **settings) -> toy.Linear:
    training = {"batch_size": 3, "local_epochs": 2, "lr": 0.3, **settings.pop("training", {})}
    return toy.Linear(method, hand.two_sites(), training=training, model=model, **settings)


def features(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.tanh(x @ w[:4].reshape(2, 2).T)


def cosine(z: np.ndarray, other: np.ndarray) -> np.ndarray:
    size = np.linalg.norm(z, axis=1) * np.linalg.norm(other, axis=1)
    return (z * other).sum(1) / np.maximum(size, 1e-8)


def contrast(z: np.ndarray, z_g: np.ndarray, z_prev: np.ndarray, tau: float) -> float:
    """Eq. 3 as it is printed."""
    near, far = np.exp(cosine(z, z_g) / tau), np.exp(cosine(z, z_prev) / tau)
    return float(np.mean(-np.log(near / (near + far))))


def task_loss(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> float:
    return float(np.mean((features(w, x) @ w[4:] - y) ** 2))


def both_losses(x, y, w_g, w_prev, mu: float, tau: float, w: np.ndarray) -> float:
    z, z_g, z_prev = (features(weights, x) for weights in (w, w_g, w_prev))
    return task_loss(x, y, w) + mu * contrast(z, z_g, z_prev, tau)


def slope(f: Callable[[np.ndarray], float], w: np.ndarray, h: float = 1e-6) -> np.ndarray:
    """The gradient by central differences."""
    return np.array([(f(w + h * e) - f(w - h * e)) / (2 * h) for e in np.eye(len(w))])


def test_the_contrast_by_hand():
    z = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    # image 1: cosines 1 and 0.6; image 2: 0 and -1
    z_g, z_prev = torch.tensor([[6.0, 8.0], [0.0, 2.0]]), torch.tensor([[1.0, 0.0], [-5.0, 0.0]])
    expected = (np.log(1 + np.exp(-0.4 / 0.5)) + np.log(1 + np.exp(-1 / 0.5))) / 2
    assert float(contrastive_loss(z, z_g, z_prev, 0.5)) == pytest.approx(expected, abs=1e-6)
    assert float(contrastive_loss(z, z, z, 0.5)) == pytest.approx(np.log(2))


def test_the_contrast_of_dead_features_has_a_gradient():
    """A ReLU may give zeros for an image; its cosine must not be NaN."""
    z = torch.zeros(1, 3, requires_grad=True)
    contrastive_loss(z, torch.rand(1, 3), torch.zeros(1, 3), 0.5).backward()
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("tau", [0.5, 1.3])
def test_three_rounds_by_hand(tau):
    mu, lr = 10.0, 0.3
    linear = federation(mu=mu, tau=tau)
    w_g, shared = np.array(START), {"global": linear.weights(*START)}
    previous = dict.fromkeys(linear.data, w_g)
    plain = w_g  # the same without the contrast
    for number in (1, 2, 3):
        sent, without = {}, {}
        for site in linear.data:
            w, v = w_g, plain
            for ones, y in hand.batches(linear, site, number):
                task = partial(task_loss, ones[:, :2], y)
                both = partial(both_losses, ones[:, :2], y, w_g, previous[site], mu, tau)
                w, v = w - lr * slope(both, w), v - lr * slope(task, v)
            sent[site], without[site] = w, v
        w_g, plain, previous = hand.mean(linear, sent), hand.mean(linear, without), sent
        shared = linear.round(shared, number)
        np.testing.assert_allclose(shared["global"].flat.numpy(), w_g, atol=1e-5)
        for site in linear.data:
            mine = linear.states[site].private["previous"].flat.numpy()
            np.testing.assert_allclose(mine, previous[site], atol=1e-5)
        if number == 1:  # both others are the global model: the term has no gradient
            np.testing.assert_allclose(plain, w_g, atol=1e-8)
    assert np.abs(plain - w_g).max() > 1e-2  # the contrast is worth testing


@pytest.mark.parametrize("model", [Tiny, Normed])
def test_the_first_round_is_fedavgs(model):
    start = Weights.of(model())
    moon, fedavg = federation(model=model), federation("fedavg", model=model)
    mine, theirs = (f.round({"global": start})["global"] for f in (moon, fedavg))
    torch.testing.assert_close(mine.flat, theirs.flat)


def test_the_other_models_are_frozen():
    """Not even their running statistics change while they are asked."""
    linear = federation(model=Normed)
    shared = {"global": Weights.of(Normed())}
    for number in (1, 2):
        before = {s: linear.states[s].private.get("previous") for s in linear.data}
        merged = linear.round(shared, number)
        assert linear.networks.frozen("global").weights().equals(shared["global"])
        last = list(linear.data)[-1]
        asked = linear.networks.frozen("previous").weights()
        assert asked.equals(shared["global"] if number == 1 else before[last])
        shared = merged


def test_a_site_that_was_away_goes_on_from_its_own_last_model():
    linear = federation()
    shared = {"global": linear.weights(*START)}
    shared = linear.round(shared, 1)
    kept = linear.states["b"].private["previous"]
    shared = linear.round(shared, 2, ["a"])
    assert linear.states["b"].private["previous"].equals(kept)
    linear.round(shared, 3)
    assert linear.networks.frozen("previous").weights().equals(kept)  # b was the last to ask


def test_work():
    assert federation().method.work() == pytest.approx(5 / 3)
    assert federation(mu=0).method.work() == 1


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_mu_0_is_fedavg(make_plan, tmp_path, norm):
    plan = make_plan(
        methods=["fedavg", {"name": "moon", "label": "off", "mu": 0}, "moon"],
        network={"name": "small", "norm": norm},
        training={"batch_size": 3, "lr": 1e-2},
    )
    fedavg, off, moon = (toy.train(plan, tmp_path, m) for m in ("fedavg", "off", "moon"))
    assert toy.same_record(fedavg, off)
    assert not moon.shared["global"].equals(fedavg.shared["global"])
    assert set(toy.state_of(plan, tmp_path, "north", "off").private) == {"global.moments"}


def test_statistics_that_stay_at_the_site(make_plan, tmp_path):
    """The global model is then asked as the site runs it: with the site's statistics."""
    plan = make_plan(
        methods=["moon"],
        network={"name": "small", "norm": "batch"},
        training={"batch_size": 3, "running_statistics": "local"},
    )
    server = toy.server(plan, tmp_path)
    server._round(1)
    global_model, kept = server.record.shared["global"], {}
    for site in plan.sites:
        kept[site] = toy.state_of(plan, tmp_path, site).private["global.statistics"]
    server._round(2)
    last = plan.sites[-1]
    asked = server.engine.worker._networks.frozen("global").weights()
    assert asked.equals(global_model.with_statistics_of(kept[last]))
