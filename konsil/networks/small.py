"""The small convolutional classifier: the default selector."""

from __future__ import annotations

from torch import nn

from konsil.networks.kinds import network
from konsil.networks.layers import Classifier, global_average_pool, norm_layer

WIDTHS = (16, 32, 64, 128)


@network("small", segments=False, norm="group", shrink=16)
def small(in_channels: int, outputs: int, norm: str) -> Classifier:
    """Four stride-2 blocks of 3 x 3 convolution, norm and ReLU, then an average: 0.1 M.

    Group norm by default and not instance norm, which would remove the brightness and contrast
    that tell sites apart. The convolutions keep their bias for the same reason: without it, a
    norm layer over one image cannot see its scale.
    """
    layers: list[nn.Module] = []
    for width, channels in zip((in_channels, *WIDTHS), WIDTHS, strict=False):
        layers += [
            nn.Conv2d(width, channels, kernel_size=3, stride=2, padding=1),
            norm_layer(norm, channels),
            nn.ReLU(inplace=True),
        ]
    body = nn.Sequential(*layers, global_average_pool())
    return Classifier(body, nn.Linear(WIDTHS[-1], outputs))
