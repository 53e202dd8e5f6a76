"""Soups: means of models of several rounds."""

from __future__ import annotations

from konsil.weights import Weights, mix


def running_mean(mean: Weights, count: int, new: Weights) -> Weights:
    """The mean of `count` models with one more. With count = 0 it is the new one, bit for bit."""
    return mix([(count / (count + 1), mean), (1 / (count + 1), new)])
