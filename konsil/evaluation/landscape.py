"""The loss around models: along random directions, between two, in the plane through three.

FedSM, Fig. 4: the loss at w + t u for random unit vectors u over all trainable values. Frankle et
al. 2020: the loss on the line between two models. Garipov et al. 2018: in the plane through three.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from statistics import mean
from typing import NamedTuple

import torch
from torch import Tensor

from konsil.data import Images
from konsil.errors import RunError
from konsil.evaluation import batches, joined
from konsil.randomness import generator
from konsil.tasks import Task
from konsil.weights import BoundNetwork, Weights, mix

LOSS = "loss"
FLAT = 1e-6  # of the distance between two models: a third that is no further off is on their line


class Height(NamedTuple):
    """What weights are worth on some images."""

    loss: float  # the mean over images
    score: float  # the task's main metric; nan where these images have none


@torch.no_grad()
def height(network: BoundNetwork, weights: Weights, task: Task, images: Images) -> Height:
    """Of these weights with their running statistics, as the network answers."""
    network.load(weights)
    net, device = network.mode(training=False), network.flat.device
    pieces = []
    for x, y in batches(images, device):
        logits = net(x)
        pieces.append(task.columns(logits, y) | {LOSS: task.losses(logits, y).double().cpu()})
    columns = joined(pieces)
    loss = float(columns.pop(LOSS).mean())
    return Height(loss, task.summarise(columns).get(task.main_metric, nan))


# --- along random directions ----------------------------------------------------------------------


def unit_direction(size: int, seed: int, number: int) -> Tensor:
    """A random direction of length 1: for every model of this size the same."""
    drawn = torch.randn(size, generator=generator(seed, "direction", number)).double()
    return (drawn / drawn.norm()).float()


def moved(weights: Weights, direction: Tensor, distance: float) -> Weights:
    """So far along a direction of the trainable values; running statistics stay."""
    there = weights.clone()
    there.trainable.add_(direction, alpha=distance)
    return there


def distances(radius: float, points: int) -> list[float]:
    """From -radius to radius, 0 in the middle."""
    return [radius * (2 * place / (points - 1) - 1) for place in range(points)]


@dataclass(frozen=True)
class Bowl:
    """How the loss of one model rises around it."""

    loss: float  # its own
    rises: Sequence[float]  # of each direction at the radius: the mean of both ends
    curvature: float  # the mean over directions, by the model's two neighbours on each

    @property
    def rise(self) -> float:
        """The mean over directions."""
        return mean(self.rises)


def bowl(losses: Sequence[Mapping[float, float]]) -> Bowl:
    """From the losses of each direction by distance (as `distances` has them)."""
    rises, curvatures = [], []
    for by_distance in losses:
        ts = sorted(by_distance)
        middle = len(ts) // 2
        own, step = by_distance[ts[middle]], ts[middle + 1]
        rises.append((by_distance[ts[0]] + by_distance[ts[-1]]) / 2 - own)
        beside = by_distance[ts[middle - 1]] + by_distance[ts[middle + 1]]
        curvatures.append((beside - 2 * own) / step**2)
    return Bowl(losses[0][0.0], rises, mean(curvatures))


# --- between two models ---------------------------------------------------------------------------


def between(a: Weights, b: Weights, share: float) -> Weights:
    """On the straight line: `a` at 0, `b` at 1, bit for bit."""
    return mix([(1 - share, a), (share, b)])


class Barrier(NamedTuple):
    """How far the loss on the line rises above the straight line between its ends at most."""

    value: float  # 0: nowhere
    share: float  # where


def barrier(losses: Mapping[float, float]) -> Barrier:
    """From the losses at shares from 0 to 1."""
    above = {
        share: loss - ((1 - share) * losses[0.0] + share * losses[1.0])
        for share, loss in losses.items()
    }
    share = max(above, key=lambda one: (above[one], -one))
    return Barrier(above[share], share)


# --- in the plane through three -------------------------------------------------------------------


class Spot(NamedTuple):
    """A place in a plane, in units of the distance between weights."""

    x: float
    y: float


@dataclass(frozen=True)
class Plane:
    """The plane through three models: `a` is its origin, `b` lies on its first axis."""

    a: Weights
    b: Weights
    c: Weights
    width: float  # from a to b
    foot: float  # of c on the line through a and b, in units of `width`
    up: float  # from that line to c

    @classmethod
    def through(cls, a: Weights, b: Weights, c: Weights) -> Plane:
        """RunError if they lie on one line."""
        first, second = ((one.trainable.double() - a.trainable.double()) for one in (b, c))
        width = float(first.norm())
        foot = float(first @ second) / width**2 if width else 0.0
        up = float((second - foot * first).norm())
        if up <= FLAT * max(width, float(second.norm())) or not width:
            raise RunError("these three models lie on one line: they span no plane")
        return cls(a, b, c, width, foot, up)

    @property
    def spots(self) -> tuple[Spot, Spot, Spot]:
        """Where the three are."""
        return Spot(0.0, 0.0), Spot(self.width, 0.0), Spot(self.foot * self.width, self.up)

    def at(self, spot: Spot) -> Weights:
        """The weights there. Running statistics are a mean of the three models', as `mix` has
        them."""
        of_c = spot.y / self.up
        of_b = spot.x / self.width - of_c * self.foot
        return mix([(1 - of_b - of_c, self.a), (of_b, self.b), (of_c, self.c)])

    def grid(self, points: int, margin: float) -> list[list[Spot]]:
        """Rows of so many places each: the three and a margin (a share of their extent) around."""
        xs, ys = zip(*self.spots, strict=True)
        across, upwards = (_spread(own, points, margin) for own in (xs, ys))
        return [[Spot(x, y) for x in across] for y in upwards]


def _spread(values: Sequence[float], points: int, margin: float) -> list[float]:
    low, high = min(values), max(values)
    start, extent = low - margin * (high - low), (1 + 2 * margin) * (high - low)
    return [start + extent * place / (points - 1) for place in range(points)]
