"""What several networks are made of: the first module, norm layers, blocks."""

import math
from typing import Any

from torch import Tensor, nn

NORMS = ("instance", "batch", "group")
GROUPS = 8


class PerImageNorm(nn.Module):
    """Zero mean and unit variance of every channel of every image; nothing is learned.

    It sits inside the network, because the selector must see the raw image (brightness tells
    sites apart) while the segmenter sees this one, and because a saved model is self-contained.
    The deviation is clamped, not shifted, so that the result does not depend on brightness and
    contrast at all; a constant channel gives zeros. The clamp is a quarter of a grey level of an
    8-bit image.
    """

    smallest_deviation = 1e-3

    def forward(self, images: Tensor) -> Tensor:
        """The images [B, C, H, W], normalised."""
        centred = images - images.mean(dim=(2, 3), keepdim=True)
        deviation = centred.square().mean(dim=(2, 3), keepdim=True).sqrt()
        return centred / deviation.clamp(min=self.smallest_deviation)


def norm_layer(name: str, channels: int) -> nn.Module:
    """A norm layer with a learned scale and shift a channel; groups: 8, or what divides."""
    if name == "instance":
        return nn.InstanceNorm2d(channels, affine=True)
    if name == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(math.gcd(GROUPS, channels), channels)


def norm_block(
    in_channels: int, channels: int, norm: str, kernel_size: int = 3, **options: Any
) -> list[nn.Module]:
    """A convolution (with nn.Conv2d's options), a norm layer and a ReLU."""
    return [
        nn.Conv2d(in_channels, channels, kernel_size, padding=kernel_size // 2, **options),
        norm_layer(norm, channels),
        nn.ReLU(inplace=True),
    ]
