"""ResNet-18 (He et al., CVPR 2016), written here.

MONAI's 2-D ResNet-18 keeps its stem at stride 1 and is 3.2 times slower at 96 x 96.
"""

from __future__ import annotations

from torch import Tensor, nn

from konsil.networks.kinds import network
from konsil.networks.layers import (
    Classifier,
    global_average_pool,
    initialise_convolutions,
    norm_layer,
)


@network("resnet18", segments=False, norm="batch", shrink=32)
def resnet18(in_channels: int, outputs: int, norm: str) -> Classifier:
    """The classic ResNet-18: a 7 x 7 stem, a max-pool, four stages of two blocks; 11.2 M."""
    stem = [
        nn.Conv2d(in_channels, 64, kernel_size=7, stride=2, padding=3, bias=False),
        norm_layer(norm, 64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
    ]
    stages: list[nn.Module] = []
    for width, channels, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        stages += [
            BasicBlock(width, channels, stride, norm),
            BasicBlock(channels, channels, 1, norm),
        ]
    body = nn.Sequential(*stem, *stages, global_average_pool())
    initialise_convolutions(body)
    return Classifier(body, nn.Linear(512, outputs))


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut, a 1 x 1 convolution where shapes change."""

    def __init__(self, in_channels: int, channels: int, stride: int, norm: str) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False),
            norm_layer(norm, channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            norm_layer(norm, channels),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != channels:
            self.shortcut.append(nn.Conv2d(in_channels, channels, 1, stride=stride, bias=False))
            self.shortcut.append(norm_layer(norm, channels))
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        out: Tensor = self.activation(self.residual(x) + self.shortcut(x))
        return out
