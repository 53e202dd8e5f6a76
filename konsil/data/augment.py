"""Augmentation of a whole batch at once, as tensors: moved, re-exposed, and if strong disturbed."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Self

import torch
from torch import Tensor
from torch.nn import functional

from konsil.config import TrainingConfig

Flips = Literal["none", "horizontal", "both"]
BENT_AT = 5  # points a side at which an image is bent; smooth between them
CUT_SIDE = (0.1, 0.3)  # of the image's width and height: how large a hole may be


@dataclass(frozen=True)
class Ranges:
    """How far a batch may be moved and disturbed, at most; a strength multiplies all of it."""

    rotation: float = 0.0  # degrees to either side
    scale: float = 0.0  # relative, to either side
    shift: float = 0.0  # of the image's width and height, to either side
    gamma: float = 0.0  # of the exponent's logarithm
    contrast: float = 0.0  # relative, about the image's mean
    brightness: float = 0.0  # added, in units of [0, 1]
    bending: float = 0.0  # standard deviation of the points' places, of the width
    blurred: float = 0.0  # the share of images that are
    noisy: float = 0.0  # the share of images that are
    noise: float = 0.0  # its deviation, of the image's own
    cut: float = 0.0  # the share of images with a hole

    def times(self, strength: float) -> Self:
        """The same, so many times as far; shares of images stay shares."""
        further = {name: value * strength for name, value in vars(self).items()}
        shares = {name: min(1.0, further[name]) for name in ("blurred", "noisy", "cut")}
        return type(self)(**further | shares)


RANGES = {
    "light": Ranges(rotation=10, scale=0.1, shift=0.05, gamma=0.2, contrast=0.15, brightness=0.1),
    "strong": Ranges(
        rotation=20, scale=0.22, shift=0.06, gamma=0.3, contrast=0.3, brightness=0.15,
        bending=0.015, blurred=0.2, noisy=0.3, noise=0.1, cut=0.1,
    ),
}  # fmt: skip


def augmented(
    x: Tensor, y: Tensor, generator: torch.Generator, training: TrainingConfig
) -> tuple[Tensor, Tensor]:
    """A batch as the experiment wants it augmented."""
    if training.augment == "none":
        return x, y
    strength = training.augment_strength
    assert strength != "auto"  # the plan has made a number of it
    ranges = RANGES[training.augment].times(strength)
    return augment(x, y, generator, ranges, training.augment_flips)


def augment(
    x: Tensor, y: Tensor, generator: torch.Generator, ranges: Ranges, flips: Flips = "horizontal"
) -> tuple[Tensor, Tensor]:
    """A flipped, moved and re-exposed batch; x is in [0, 1] and stays there.

    Masks (4-D y) move with their images, class labels are left alone. All randomness comes from
    the CPU generator, in an order that depends on nothing else, so a batch is the same on every
    device.
    """
    draws = torch.rand(len(x), 8, generator=generator)
    spread = (2 * draws - 1).to(x.device)  # uniform in [-1, 1)
    affine = _affine(spread, ranges)
    if flips != "none":
        affine[:, :, 0] *= _sign(spread[:, 0])
    if flips == "both":
        affine[:, :, 1] *= _sign(2 * torch.rand(len(x), generator=generator).to(x.device) - 1)
    grid = _sampling_grid(affine, x.shape[2], x.shape[3])
    if ranges.bending:
        grid = grid + _bent(x, generator, ranges.bending)
    moved = _sampled(x, grid, "bilinear")
    if y.ndim == 4:
        y = _sampled(y, grid, "nearest")
    return _disturbed(_exposed(moved, spread, ranges), generator, ranges), y


def _sign(spread: Tensor) -> Tensor:
    return torch.where(spread < 0, -1.0, 1.0)[:, None]


def _sampled(images: Tensor, grid: Tensor, mode: str) -> Tensor:
    return functional.grid_sample(
        images, grid, mode=mode, padding_mode="border", align_corners=False
    )


def _affine(spread: Tensor, ranges: Ranges) -> Tensor:
    """Matrices [B, 2, 3] from output to input coordinates: rotate, zoom, shift."""
    angle = math.radians(ranges.rotation) * spread[:, 1]
    zoom = 1 + ranges.scale * spread[:, 2]
    cos, sin = zoom * angle.cos(), zoom * angle.sin()
    shift = 2 * ranges.shift * spread[:, 3:5]  # coordinates run from -1 to 1
    first = torch.stack([cos, -sin, shift[:, 0]], dim=1)
    second = torch.stack([sin, cos, shift[:, 1]], dim=1)
    return torch.stack([first, second], dim=1)


def _sampling_grid(affine: Tensor, height: int, width: int) -> Tensor:
    """What `affine_grid` gives, [B, H, W, 2]; that builds the pixels' places for every image."""
    places = _places(height, width, affine.device)
    grid = affine.bmm(places.expand(len(affine), -1, -1))
    return grid.view(-1, 2, height, width).permute(0, 2, 3, 1)


@lru_cache(maxsize=8)
def _places(height: int, width: int, device: torch.device) -> Tensor:
    """The places of all pixels in homogeneous coordinates, [3, H * W]."""
    still = torch.eye(2, 3, device=device)[None]
    places = functional.affine_grid(still, [1, 1, height, width], align_corners=False)
    return functional.pad(places.view(-1, 2), (0, 1), value=1.0).T.contiguous()


def _bent(x: Tensor, generator: torch.Generator, bending: float) -> Tensor:
    """How far each pixel's place is moved, [B, H, W, 2]: a few points at random, smooth between."""
    points = 2 * bending * torch.randn(len(x), 2, BENT_AT, BENT_AT, generator=generator)
    moved = functional.interpolate(
        points.to(x.device), size=x.shape[2:], mode="bicubic", align_corners=True
    )
    return moved.permute(0, 2, 3, 1)


def _exposed(x: Tensor, spread: Tensor, ranges: Ranges) -> Tensor:
    """Gamma, then contrast about the image's mean, then brightness; clipped to [0, 1].

    In place: megabytes that are freed after every step cost more than the arithmetic.
    """
    gamma, contrast, brightness = (spread[:, k].view(-1, 1, 1, 1) for k in (5, 6, 7))
    x.clamp_(0, 1).pow_((ranges.gamma * gamma).exp())
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    x.sub_(mean).mul_(1 + ranges.contrast * contrast).add_(mean)
    return x.add_(ranges.brightness * brightness).clamp_(0, 1)


def _disturbed(x: Tensor, generator: torch.Generator, ranges: Ranges) -> Tensor:
    """Some images blurred, some noisy, some with a hole; in place."""
    if not (ranges.blurred or ranges.noisy or ranges.cut):
        return x
    draws = torch.rand(len(x), 7, generator=generator)
    blurred, noisy, cut = (
        (draws[:, k] < share).nonzero()[:, 0]
        for k, share in enumerate((ranges.blurred, ranges.noisy, ranges.cut))
    )
    if len(blurred):
        x[blurred] = _smooth(x[blurred])
    if len(noisy):
        noise = torch.randn(len(noisy), *x.shape[1:], generator=generator).to(x.device)
        deviation = x[noisy].std(dim=(1, 2, 3), keepdim=True)
        x[noisy] = (x[noisy] + ranges.noise * deviation * noise).clamp_(0, 1)
    for image, (top, left, height, width) in zip(
        cut.tolist(), draws[cut, 3:].tolist(), strict=True
    ):
        _cut_out(x[image], top, left, height, width)
    return x


def _smooth(x: Tensor) -> Tensor:
    """The mean of each pixel's neighbourhood, weighted 1 2 1 in both directions."""
    channels = x.shape[1]
    line = torch.tensor([0.25, 0.5, 0.25], device=x.device).expand(channels, 1, 3)
    padded = functional.pad(x, (1, 1, 1, 1), mode="replicate")
    across = functional.conv2d(padded, line[:, :, None, :], groups=channels)
    return functional.conv2d(across, line[:, :, :, None], groups=channels)


def _cut_out(image: Tensor, top: float, left: float, height: float, width: float) -> None:
    """A hole of the image's mean; all four numbers are uniform in [0, 1)."""
    spans = []
    for length, side, place in ((image.shape[1], height, top), (image.shape[2], width, left)):
        smallest, largest = CUT_SIDE
        hole = max(1, round((smallest + (largest - smallest) * side) * length))
        start = int(place * (length - hole + 1))
        spans.append(slice(start, start + hole))
    image[:, spans[0], spans[1]] = image.mean(dim=(1, 2), keepdim=True)
