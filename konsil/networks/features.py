"""Fixed features under one linear layer: a selector that can be solved instead of trained."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from konsil.networks.kinds import network
from konsil.networks.layers import Classifier

WIDTHS = (24, 32, 48)
THUMBNAIL = 4


class FixedFeatures(nn.Module):
    """Random convolutions, intensities and a thumbnail; nothing here is trained.

    Means and deviations of three random convolution layers describe texture and colour, those of
    the raw channels brightness and contrast, the thumbnail where things lie. The filters are
    drawn once with the initial weights and travel with them, as statistics do.
    """

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.layers = len(WIDTHS)
        for number, (width, channels) in enumerate(
            zip((in_channels, *WIDTHS), WIDTHS, strict=False)
        ):
            scale = (2 / (9 * width)) ** 0.5
            self.register_buffer(f"filters{number}", torch.randn(channels, width, 3, 3) * scale)
            self.register_buffer(f"offsets{number}", torch.randn(channels) * 0.3)
        self.size = 2 * sum(WIDTHS) + in_channels * (2 + THUMBNAIL**2)

    def forward(self, images: Tensor) -> Tensor:
        """[B, size] of images in [0, 1]."""
        found = [*_mean_and_deviation(images), F.adaptive_avg_pool2d(images, THUMBNAIL).flatten(1)]
        x = 2 * images - 1
        for number in range(self.layers):
            filters = self.get_buffer(f"filters{number}")
            offsets = self.get_buffer(f"offsets{number}")
            x = F.relu(F.conv2d(x, filters, offsets, stride=2, padding=1))
            found += _mean_and_deviation(x)
        return torch.cat(found, dim=1)


@network("features", segments=False, shrink=16)
def features(in_channels: int, outputs: int) -> Classifier:
    """The linear layer starts at zero: every site is equally likely."""
    body = FixedFeatures(in_channels)
    head = nn.Linear(body.size, outputs)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return Classifier(body, head)


def _mean_and_deviation(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.mean(dim=(2, 3)), x.std(dim=(2, 3))
