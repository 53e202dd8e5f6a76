"""The arithmetic of linear models in numpy and float64, for tests that redo a method by hand."""

from __future__ import annotations

import numpy as np
import torch
from methods import toy

from konsil.data import Images, TrainingData

Batch = tuple[np.ndarray, np.ndarray]
START = (0.5, -0.5, 0.2)


def cloud(rng: np.random.Generator, n: int, shift: int) -> TrainingData:
    """Noisy targets, and validation points that training does not have."""

    def draw() -> Images:
        x = rng.integers(0, 256, (n, 2))
        y = (x[:, :1] + shift > rng.integers(0, 256, (n, 1))).astype(np.uint8)
        return Images(torch.from_numpy(x.astype(np.uint8)), torch.from_numpy(y))

    return TrainingData(draw(), draw())


def two_sites() -> dict[str, TrainingData]:
    """Unequal, and unlike."""
    rng = np.random.default_rng(1)
    return {"a": cloud(rng, 5, 0), "b": cloud(rng, 8, 120)}


def with_ones(x: np.ndarray) -> np.ndarray:
    return np.hstack([x, np.ones((len(x), 1))])


def validation(data: TrainingData) -> Batch:
    x = data.val.images.numpy() / 255.0
    return with_ones(x), data.val.targets.numpy()[:, 0].astype(float)


def batches(linear: toy.Linear, site: str, round: int, purpose: str = "") -> list[Batch]:
    """The batches of a round as the site gets them."""
    found = linear.site(site, round, {}).batches(purpose)
    return [(with_ones(x.double().numpy()), y.double().numpy()[:, 0]) for x, y in found]


def loss(w: np.ndarray, batch: Batch) -> float:
    """Mean squared error."""
    x, y = batch
    return float(np.mean((x @ w - y) ** 2))


def gradient(w: np.ndarray, batch: Batch) -> np.ndarray:
    x, y = batch
    return 2 / len(x) * x.T @ (x @ w - y)


def hessian(batch: Batch) -> np.ndarray:
    x, _ = batch
    return 2 / len(x) * x.T @ x


def fedavg(linear: toy.Linear, models: dict[str, np.ndarray]) -> np.ndarray:
    """The mean weighted by training images."""
    n = {site: len(linear.data[site].train) for site in models}
    return sum(n[s] * models[s] for s in models) / sum(n.values())
