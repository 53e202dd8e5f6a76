"""Networks of three weights with a body and a head, or a norm layer, and their steps by hand.

Batches hold all images of a site, so that the order of the images does not matter.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import nn

from konsil import testing as toy
from konsil.data import TrainingData
from konsil.federation.plan import Plan
from konsil.weights import Weights

LR = 0.1
BODY, HEAD = np.array([1.0, 1.0, 0.0]), np.array([0.0, 0.0, 1.0])
START = (0.5, -0.25, 0.8)
SITES = {
    "a": toy.points([[0, 255], [255, 102]], [1, 0]),
    "b": toy.points([[255, 0], [255, 255], [0, 51]], [1, 0, 1]),
}
# Validation points for which more fine-tuning is not always better
VAL = toy.points([[102, 0], [0, 255]], [1, 1]).val
TUNED_SITES = {name: TrainingData(data.train, VAL) for name, data in SITES.items()}
N = {name: len(data.train) for name, data in SITES.items()}


def network() -> nn.Module:
    """f(x) = h (a1 x1 + a2 x2): a body of two weights and a head of one."""
    return nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 1, bias=False))


def arrays(data: TrainingData, split: str = "train") -> tuple[np.ndarray, np.ndarray]:
    images = getattr(data, split)
    return images.images.numpy() / 255.0, images.targets.numpy()[:, 0].astype(float)


def slope(w: np.ndarray, data: TrainingData) -> np.ndarray:
    """The gradient of the mean squared error."""
    x, y = arrays(data)
    seen = x @ w[:2]
    error = w[2] * seen - y
    return 2 / len(y) * np.array([*(error @ (w[2] * x)), error @ seen])


def hessian(w: np.ndarray, data: TrainingData) -> np.ndarray:
    """Of the mean squared error; unlike a linear model's it is another one everywhere."""
    x, y = arrays(data)
    seen = x @ w[:2]
    first = np.column_stack([w[2] * x, seen])
    second = np.zeros((3, 3))
    second[:2, 2] = second[2, :2] = (w[2] * seen - y) @ x
    return 2 / len(y) * (first.T @ first + second)


def step(w: np.ndarray, data: TrainingData, moved: np.ndarray, lr: float = LR) -> np.ndarray:
    """One step of gradient descent on the mean squared error of the weights that `moved` marks."""
    return w - lr * moved * slope(w, data)


def score(w: np.ndarray, data: TrainingData) -> float:
    x, y = arrays(data, "val")
    return float(1 - np.mean((w[2] * (x @ w[:2]) - y) ** 2))


def tuned(
    w: np.ndarray, data: TrainingData, moved: np.ndarray, epochs: int, lr: float = LR
) -> tuple[np.ndarray, int]:
    """The best of 0 to `epochs` epochs on validation points, and its epoch."""
    found = [w]
    for _ in range(epochs):
        found.append(step(found[-1], data, moved, lr))
    best = int(np.argmax([score(w, data) for w in found]))
    return found[best], best


def mean(values: dict[str, np.ndarray]) -> np.ndarray:
    """The mean over the sites that are there, weighted by their images."""
    return sum(N[s] * v for s, v in values.items()) / sum(N[s] for s in values)


def check_rounds(
    linear: toy.Linear, train: Callable[[np.ndarray, TrainingData], np.ndarray]
) -> dict[str, Weights]:
    """Three rounds of a method whose head stays, one of them without b; the shared parts then.

    `train`: what a site makes of (a1, a2, h) in one round, by hand.
    """
    body, heads = np.array(START[:2]), dict.fromkeys(SITES, START[2])
    shared = linear.method.start()
    for number, present in ((1, "ab"), (2, "a"), (3, "ab")):
        shared = linear.round(shared, number, sites=list(present))
        sent = {}
        for name in present:
            w = train(np.array([*body, heads[name]]), SITES[name])
            sent[name], heads[name] = w[:2], w[2]
        body = mean(sent)
        np.testing.assert_allclose(shared["global"].flat.numpy(), body, atol=1e-6)
        for name in SITES:
            site = linear.site(name, number + 1, shared)
            linear.method.receive(site, shared)
            answer = linear.method.answers(site, shared)["personal"].flat.numpy()
            np.testing.assert_allclose(answer, [*body, heads[name]], atol=1e-6)
    return shared


def same_as_fedavg(plan: Plan, folder, title: str) -> None:
    """What travels, what answers and all scores are FedAvg's, bit for bit."""
    usual = toy.train(plan, folder, "fedavg")
    record = toy.train(plan, folder, title)
    assert record.shared["global"].equals(usual.shared["global"])
    for site in plan.sites:
        assert (
            toy.state_of(plan, folder, site, title).last["personal"].equals(usual.shared["global"])
        )
    scores = [[h["means"][role] for h in r.history] for r, role in
              ((usual, "global"), (record, "personal"))]  # fmt: skip
    assert scores[0] == scores[1]
