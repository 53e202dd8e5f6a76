"""How sharp the minimum is in which a model lies: the top eigenvalue of its loss's Hessian.

FedSoup, Fig. 2a: the median over training batches. Beside it that of all training images, which
does not depend on how large a batch is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from konsil.data import Images
from konsil.randomness import generator
from konsil.tasks import Task
from konsil.weights import BoundNetwork, Weights

STEPS, TOLERANCE = 100, 1e-3  # of the power iteration; relative change of the eigenvalue
TINY = 1e-30
Product = Callable[[Tensor], Tensor]  # a vector -> the Hessian times it


class Eigenvalue(NamedTuple):
    """The largest: how much the loss curves upwards at most."""

    value: float
    residual: float  # |H v - value v| / |value|: 0 where v is its eigenvector
    steps: int


@dataclass(frozen=True)
class Sharpness:
    """Of one model on the training images of one site."""

    batches: float  # the median over batches
    whole: Eigenvalue  # of all these images together


def top_eigenvalue(product: Product, size: int, seed: int = 0) -> Eigenvalue:
    """By power iteration from a random direction, until the value stays.

    That finds what is largest in magnitude. Where the loss curves downwards more than upwards (a
    model need not lie in a minimum of these images), it is repeated with all values shifted up.
    """
    found = _dominant(product, size, seed)
    if found.value >= 0:
        return found
    low = found.value
    shifted = _dominant(lambda v: product(v) - low * v, size, seed)
    value = shifted.value + low
    off = shifted.residual * shifted.value / max(abs(value), TINY)
    return Eigenvalue(value, off, found.steps + shifted.steps)


def _dominant(product: Product, size: int, seed: int) -> Eigenvalue:
    v = torch.randn(size, generator=generator(seed, "power iteration"))
    v /= v.norm()
    value, residual, step = 0.0, 0.0, 0
    for step in range(1, STEPS + 1):
        image = product(v)
        before, value = value, float(v @ image)
        residual = float((image - value * v).norm()) / max(abs(value), TINY)
        length = float(image.norm())
        if length == 0 or (step > 1 and abs(value - before) <= TOLERANCE * abs(value)):
            break
        v = image / length
    return Eigenvalue(value, residual, step)


def sharpness(
    network: BoundNetwork,
    weights: Weights,
    task: Task,
    images: Images,
    batch_size: int,
    most_batches: int,
) -> Sharpness:
    """On these images; of single batches so many at most, drawn by chance."""
    network.load(weights)
    network.mode(training=False)
    order = torch.randperm(len(images), generator=generator(0, "sharpness", len(images)))
    parts = list(order.split(batch_size))
    batches = [_hessian(network, task, images, [part]) for part in parts[:most_batches]]
    size = sum(p.numel() for p in _parameters(network))
    values = [top_eigenvalue(product, size).value for product in batches]
    return Sharpness(median(values), top_eigenvalue(_hessian(network, task, images, parts), size))


def _parameters(network: BoundNetwork) -> list[torch.nn.Parameter]:
    return [p for p in network.net.parameters() if p.requires_grad]


def _hessian(network: BoundNetwork, task: Task, images: Images, parts: Sequence[Tensor]) -> Product:
    """The Hessian of the mean loss over these images as a function, part by part."""
    parameters, total = _parameters(network), sum(len(part) for part in parts)

    def product(v: Tensor) -> Tensor:
        device = network.flat.device
        found = torch.zeros_like(v)
        for part in parts:
            x, y = images.batch(part, device)
            with torch.enable_grad():
                loss = task.loss(network.net(x), y)
                grads = torch.autograd.grad(loss, parameters, create_graph=True)
                terms = zip(grads, _pieces(v, parameters), strict=True)
                along = torch.stack([(g * d).sum() for g, d in terms]).sum()
                second = torch.autograd.grad(along, parameters, materialize_grads=True)
            flat = torch.cat([g.reshape(-1) for g in second]).cpu()
            found += flat * (len(part) / total)
        return found

    return product


def _pieces(v: Tensor, parameters: Sequence[Tensor]) -> Iterator[Tensor]:
    """A vector as tensors like the parameters."""
    start = 0
    for p in parameters:
        yield v[start : start + p.numel()].view_as(p).to(p.device)
        start += p.numel()
