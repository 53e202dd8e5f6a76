"""Light augmentation of a whole batch at once."""

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

ROTATION = 10.0  # degrees to either side
SCALE = 0.1  # relative, to either side
SHIFT = 0.05  # of the image's width and height, to either side
BRIGHTNESS = 0.1  # added, in units of [0, 1]
CONTRAST = 0.15  # relative, about the image's mean
GAMMA = 0.2  # of the exponent's logarithm


def augment_light(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A flipped, slightly moved and re-exposed batch; x is in [0, 1] and stays there.

    Masks (4-D y) move with their images, class labels are left alone. All randomness comes from
    the CPU generator in one draw, so a batch is the same on every device.
    """
    draws = torch.rand(len(x), 8, generator=generator)
    spread = (2 * draws - 1).to(x.device)  # uniform in [-1, 1)
    flip = torch.where(spread[:, 0] < 0, -1.0, 1.0)
    grid = _sampling_grid(_affine(flip, spread), x.shape[2], x.shape[3])
    moved = functional.grid_sample(
        x, grid, mode="bilinear", padding_mode="border", align_corners=False
    )
    if y.ndim == 4:
        y = functional.grid_sample(
            y, grid, mode="nearest", padding_mode="border", align_corners=False
        )
    return _expose(moved, spread), y


def _affine(flip: Tensor, spread: Tensor) -> Tensor:
    """Matrices [B, 2, 3] from output to input coordinates: mirror, rotate, zoom, shift."""
    angle = math.radians(ROTATION) * spread[:, 1]
    zoom = 1 + SCALE * spread[:, 2]
    cos, sin = zoom * angle.cos(), zoom * angle.sin()
    shift = 2 * SHIFT * spread[:, 3:5]  # coordinates run from -1 to 1
    first = torch.stack([flip * cos, -sin, shift[:, 0]], dim=1)
    second = torch.stack([flip * sin, cos, shift[:, 1]], dim=1)
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


def _expose(x: Tensor, spread: Tensor) -> Tensor:
    """Gamma, then contrast about the image's mean, then brightness; clipped to [0, 1].

    In place: megabytes that are freed after every step cost more than the arithmetic.
    """
    gamma, contrast, brightness = (spread[:, k].view(-1, 1, 1, 1) for k in (5, 6, 7))
    x.clamp_(0, 1).pow_((GAMMA * gamma).exp())
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    x.sub_(mean).mul_(1 + CONTRAST * contrast).add_(mean).add_(BRIGHTNESS * brightness)
    return x.clamp_(0, 1)
