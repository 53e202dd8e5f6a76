"""The arithmetic of linear federations once more, in numpy and float64: to check methods by."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from konsil import testing as toy
from konsil.data import Images, TrainingData
from konsil.ingredients.context import Shared
from konsil.weights import Layout, Parts, Weights

Batch = tuple[np.ndarray, np.ndarray]
START = (0.5, -0.5, 0.2)


def two_sites() -> dict[str, TrainingData]:
    """Unequal sites that want different things: three images and five."""
    return {
        "a": toy.points([[0, 255], [204, 51], [102, 0]], [1, 0, 1]),
        "b": toy.points([[255, 0], [255, 255], [0, 51], [51, 153], [0, 0]], [1, 0, 1, 1, 0]),
    }


def cloud(rng: np.random.Generator, n: int, shift: int) -> TrainingData:
    """Noisy targets, and validation points that training does not have."""

    def draw() -> Images:
        x = rng.integers(0, 256, (n, 2))
        y = (x[:, :1] + shift > rng.integers(0, 256, (n, 1))).astype(np.uint8)
        return Images(torch.from_numpy(x.astype(np.uint8)), torch.from_numpy(y))

    return TrainingData(draw(), draw())


def two_clouds() -> dict[str, TrainingData]:
    """Unequal, and unlike."""
    rng = np.random.default_rng(1)
    return {"a": cloud(rng, 5, 0), "b": cloud(rng, 8, 120)}


def with_ones(x: np.ndarray) -> np.ndarray:
    """Inputs with a constant 1."""
    return np.hstack([x, np.ones((len(x), 1))])


def batches(linear: toy.Linear, site: str, round: int, purpose: str = "") -> list[Batch]:
    """The batches of a round as the site gets them: inputs with a constant 1, and targets."""
    found = linear.site(site, round, {}).batches(purpose)
    return [(with_ones(x.double().numpy()), y.double().numpy()[:, 0]) for x, y in found]


def points(images: Images) -> Batch:
    """All points of a split, in their order."""
    return with_ones(images.images.numpy() / 255), images.targets.numpy()[:, 0].astype(float)


def loss(w: np.ndarray, batch: Batch) -> float:
    """The mean squared error of w1 x1 + w2 x2 + w3."""
    x, y = batch
    return float(np.mean((x @ w - y) ** 2))


def gradient(w: np.ndarray, batch: Batch) -> np.ndarray:
    """Of the loss."""
    x, y = batch
    return 2 / len(x) * x.T @ (x @ w - y)


def hessian(batch: Batch) -> np.ndarray:
    """Of the loss, whatever w is."""
    x, _ = batch
    return 2 / len(x) * x.T @ x


def mean(linear: toy.Linear, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Weighted by images, over the sites that are there."""
    n = {site: len(linear.data[site].train) for site in values}
    return sum(n[site] * values[site] for site in values) / sum(n.values())


class SGD:
    """w <- w - eta g."""

    def __init__(self, lr: float) -> None:
        self.lr = lr

    def step(self, w: np.ndarray, g: np.ndarray) -> np.ndarray:
        return w - self.lr * g


class Adam:
    """With torch's defaults; its moments go on over rounds."""

    def __init__(self, lr: float) -> None:
        self.lr, self.t, self.m, self.v = lr, 0, 0.0, 0.0

    def step(self, w: np.ndarray, g: np.ndarray) -> np.ndarray:
        self.t += 1
        self.m, self.v = 0.9 * self.m + 0.1 * g, 0.999 * self.v + 0.001 * g**2
        m, v = self.m / (1 - 0.9**self.t), self.v / (1 - 0.999**self.t)
        return w - self.lr * m / (np.sqrt(v) + 1e-8)


OPTIMIZERS = {"sgd": SGD, "adam": Adam}


def check_optimizer_state(linear: toy.Linear, shared: Parts, policy: str) -> None:
    """After a round of Adam the global model's moments are where the policy wants them."""
    uploads = linear.uploads(shared)
    assert ("global.moments" in linear.states["a"].private) == (policy == "persist")
    assert ("global.moments" in uploads["a"].parts) == (policy == "average")


def trained(
    linear: toy.Linear, w: np.ndarray, round: int, lr: float = 0.1
) -> dict[str, np.ndarray]:
    """What one round of SGD makes of w at every site."""
    found = {}
    for site in linear.data:
        found[site] = w
        for batch in batches(linear, site, round):
            found[site] = found[site] - lr * gradient(found[site], batch)
    return found


def fedavg_round(linear: toy.Linear, w: np.ndarray, round: int, lr: float = 0.1) -> np.ndarray:
    """FedAvg's mean after one round of SGD."""
    return mean(linear, trained(linear, w, round, lr))


def fedsm_round(linear: toy.Linear, w: np.ndarray, lambda_: float) -> list[np.ndarray]:
    """FedSM's models after round 1 of SGD with two sites: the global one, and two by Eq. 11."""
    a, b = trained(linear, w, 1).values()
    pulled = [lambda_ * a + (1 - lambda_) * b, lambda_ * b + (1 - lambda_) * a]
    return [fedavg_round(linear, w, 1), *pulled]


# --- two phases ---------------------------------------------------------------------------------


def two_phases(method: str) -> tuple[toy.Linear, Shared]:
    """Two linear sites, one round of models, one of handing in, one of a linear selector."""
    linear = toy.Linear(
        method, two_sites(), rounds=3, selector=lambda: nn.Linear(2, 3), **{"lambda": 0.7},
        selector_optimizer="literal_reset_known_to_fail",
    )  # fmt: skip
    model = linear.weights(1.0, -1.0, 0.5)
    layout = Layout.of(linear.selector())
    selector = Weights(layout, torch.linspace(-0.4, 0.4, layout.size))
    return linear, Shared({"global": model, "personal": model, "selector": selector})


def rows(selector: Weights) -> np.ndarray:
    """Its weights, a row for each of the three models: two coefficients and the constant."""
    flat = selector.flat.double().numpy()
    return np.hstack([flat[:6].reshape(3, 2), flat[6:, None]])


def softmax(logits: np.ndarray) -> np.ndarray:
    p = np.exp(logits)
    return p / p.sum(axis=1, keepdims=True)
