"""The common work: network, loss, images, one epoch at a site. Imported by every side.

Needs torch, monai and numpy alone: a peer's environment has no Konsil.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH = 8
RATE = 1e-3
SMALLEST_DEVIATION = 1e-3
NEVER_ZERO = 1e-5
# of the work's folder
DATA, START, EXPERIMENT, TUNED = "data.npz", "start.npy", "experiment.json", "tuned.json"
SEEDS_A_ROUND = 1000


@dataclass(frozen=True)
class Order:
    """What a side was told to do."""

    work: Path  # the folder with images, first weights and Konsil's experiment
    rounds: int
    out: Path  # where the last global model goes
    workers: int  # processes, where a side has the choice
    tuned: bool  # computing as a trial on this machine found best, where a side has such a thing

    @property
    def data(self) -> Path:
        """The images of all sites."""
        return self.work / DATA

    @property
    def start(self) -> Path:
        """The weights that every side begins with."""
        return self.work / START


def order() -> Order:
    """What the command line says; the same options on every side."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--tuned", action="store_true")
    given = parser.parse_args()
    work, out = given.work.resolve(), given.out.resolve()
    return Order(work, given.rounds, out, given.workers, given.tuned)


class PerImageNorm(nn.Module):
    """Zero mean and unit variance of every channel of every image."""

    def forward(self, images: Tensor) -> Tensor:
        """The images [B, C, H, W], normalised."""
        centred = images - images.mean(dim=(2, 3), keepdim=True)
        deviation = centred.square().mean(dim=(2, 3), keepdim=True).sqrt()
        return centred / deviation.clamp(min=SMALLEST_DEVIATION)


class Network(nn.Module):
    """MONAI's U-Net behind the normalisation; all of its state are parameters."""

    def __init__(self, start: str = "") -> None:
        """`start`: a file of flat weights to begin with; without one, random ones."""
        from monai.networks.nets import UNet  # Konsil's side does without MONAI

        super().__init__()
        self.entry = PerImageNorm()
        self.net = UNet(
            spatial_dims=2,
            in_channels=3,
            out_channels=2,
            channels=(16, 32, 64, 128, 256),
            strides=(2, 2, 2, 2),
            num_res_units=2,
        )
        if start:
            load(self, Path(start))

    def forward(self, images: Tensor) -> Tensor:
        """Logits of images in [0, 1]."""
        logits: Tensor = self.net(self.entry(images))
        return logits


def loss_of(logits: Tensor, masks: Tensor) -> Tensor:
    """1 - Dice, the mean over images and structures, and the binary cross-entropy."""
    p = torch.sigmoid(logits)
    both, sizes = (p * masks).sum((2, 3)), p.sum((2, 3)) + masks.sum((2, 3))
    dice = (2 * both + NEVER_ZERO) / (sizes + NEVER_ZERO)
    return (1 - dice).mean() + F.binary_cross_entropy_with_logits(logits, masks)


@dataclass(frozen=True)
class Images:
    """The training images of a site, in memory as floats."""

    x: Tensor  # [N, 3, H, W] in [0, 1]
    y: Tensor  # [N, 2, H, W] of zeros and ones

    def __len__(self) -> int:
        return len(self.x)


def write_images(path: Path, sites: Iterable[tuple[Tensor, Tensor]]) -> None:
    """The bytes of images and masks, site by site."""
    arrays: dict[str, Any] = {}
    for number, (images, masks) in enumerate(sites):
        arrays |= {f"x{number}": images.numpy(), f"y{number}": masks.numpy()}
    np.savez(path, **arrays)


def sites_of(path: Path) -> int:
    """How many sites a file of images has."""
    with np.load(path) as arrays:
        return len(arrays.files) // 2


@cache
def images_of(path: Path, site: int) -> Images:
    """One site's images; the others are not read, and a process reads a site once."""
    with np.load(path) as arrays:
        x, y = (torch.from_numpy(arrays[f"{key}{site}"]).float() for key in "xy")
    return Images(x.div_(255), y)


def shuffled(count: int, site: int, round: int) -> Tensor:
    """The order of a site's images in a round."""
    stream = torch.Generator().manual_seed(SEEDS_A_ROUND * site + round)
    return torch.randperm(count, generator=stream)


def train(net: nn.Module, images: Images, site: int, round: int) -> None:
    """One epoch of a site, with a new optimiser."""
    torch.set_num_threads(1)
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    net.train()
    for rows in shuffled(len(images), site, round).split(BATCH):
        optimizer.zero_grad()
        loss_of(net(images.x[rows]), images.y[rows]).backward()
        optimizer.step()


def load(net: nn.Module, path: Path) -> None:
    """Set a network's parameters from a file of `save`."""
    flat = torch.from_numpy(np.load(path))
    nn.utils.vector_to_parameters(flat, net.parameters())


def save(net: nn.Module, path: Path) -> None:
    """All parameters in one float32 vector, in the network's order."""
    with torch.no_grad():
        np.save(path, nn.utils.parameters_to_vector(net.parameters()).numpy())


@torch.no_grad()
def mean_loss(data: Path, weights: Path) -> float:
    """The loss of a model on all training images of all sites, every image counting the same."""
    net = Network(str(weights)).eval()
    total = count = 0.0
    for site in range(sites_of(data)):
        images = images_of(data, site)
        for x, y in zip(images.x.split(BATCH), images.y.split(BATCH), strict=True):
            total += len(x) * float(loss_of(net(x), y))
            count += len(x)
    return total / count
