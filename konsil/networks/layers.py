"""What several networks are made of: the first module, norm layers, initial weights."""

from __future__ import annotations

import math

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

    def __init__(self, smallest_deviation: float = 1e-3) -> None:
        super().__init__()
        self.smallest_deviation = smallest_deviation

    def forward(self, images: Tensor) -> Tensor:
        """The images [B, C, H, W], normalised."""
        centred = images - images.mean(dim=(2, 3), keepdim=True)
        deviation = centred.square().mean(dim=(2, 3), keepdim=True).sqrt()
        return centred / deviation.clamp(min=self.smallest_deviation)

    def extra_repr(self) -> str:
        """The setting, for print(network)."""
        return f"smallest_deviation={self.smallest_deviation:g}"


def norm_layer(name: str, channels: int) -> nn.Module:
    """A norm layer with a learned scale and shift a channel; groups: 8, or what divides."""
    if name == "instance":
        return nn.InstanceNorm2d(channels, affine=True)
    if name == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(math.gcd(GROUPS, channels), channels)


def initialise_convolutions(network: nn.Module) -> None:
    """He et al.'s initial weights (fan out) of every convolution, as in ResNet and VGG."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


class Classifier(nn.Module):
    """A body that turns an image into a feature vector, and one linear layer on top."""

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def features(self, images: Tensor) -> Tensor:
        """What the head sees: [B, features]."""
        features: Tensor = self.body(images)
        return features

    def forward(self, images: Tensor) -> Tensor:
        """Logits [B, outputs]."""
        logits: Tensor = self.head(self.features(images))
        return logits


def global_average_pool() -> nn.Sequential:
    """[B, C, H, W] to [B, C]."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
