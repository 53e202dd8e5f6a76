"""The arithmetic of linear federations once more, in numpy and float64: to check methods by."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from methods import toy

from konsil.data import TrainingData

Batch = tuple[np.ndarray, np.ndarray]


def two_sites() -> dict[str, TrainingData]:
    """Unequal sites that want different things: three images and five."""
    return {
        "a": toy.points([[0, 255], [204, 51], [102, 0]], [1, 0, 1]),
        "b": toy.points([[255, 0], [255, 255], [0, 51], [51, 153], [0, 0]], [1, 0, 1, 1, 0]),
    }


def batches(linear: toy.Linear, site: str, round: int) -> list[Batch]:
    """A site's batches of a round: inputs with a constant 1, and targets."""
    return [
        (np.hstack([x.double().numpy(), np.ones((len(x), 1))]), y.double().numpy()[:, 0])
        for x, y in linear.site(site, round, {}).batches()
    ]


def gradient(w: np.ndarray, batch: Batch) -> np.ndarray:
    """Of the mean squared error of w1 x1 + w2 x2 + w3."""
    x, y = batch
    return 2 / len(x) * x.T @ (x @ w - y)


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


def fedavg_round(linear: toy.Linear, w: np.ndarray, round: int, lr: float = 0.1) -> np.ndarray:
    """FedAvg's mean after one round of SGD."""
    sent = {}
    for site in linear.data:
        sent[site] = w
        for batch in batches(linear, site, round):
            sent[site] = sent[site] - lr * gradient(sent[site], batch)
    return mean(linear, sent)
