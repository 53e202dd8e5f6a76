"""Soups: means of models of several rounds."""

from __future__ import annotations

from math import floor

from konsil.weights import Weights, mix


def first_of_the_last(share: float, rounds: int) -> int:
    """The first round r with r > (1 - share) rounds ((1 - 0.9) * 10 is a hair below 1)."""
    return floor((1 - share) * rounds + 1e-9) + 1


def running_mean(mean: Weights, count: int, new: Weights) -> Weights:
    """The mean of `count` models with one more. With count = 0 it is the new one, bit for bit."""
    return mix([(count / (count + 1), mean), (1 / (count + 1), new)])
