"""U-Nets beside the default one (`residual_unet.py`): the classic one, and nnU-Net's."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from konsil.networks.layers import BasicBlock, norm_block
from konsil.networks.spec import network


def _bottom(net: nn.Module) -> nn.Module:
    return net.get_submodule("bottom")


@network("unet_classic", segments=True, norm="instance", shrink=16, deepest=_bottom)
class ClassicUNet(nn.Module):
    """Ronneberger et al., MICCAI 2015, with norm layers and half its channels: 7.8 M parameters.

    Two 3 x 3 convolutions a level, max-pooling down, 2 x 2 transposed convolutions up, skip
    connections, 32 to 512 channels.
    """

    def __init__(self, in_channels: int, outputs: int, norm: str, width: int = 32) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(5)]
        self.down = nn.ModuleList(
            _double(above, below, norm) for above, below in pairwise([in_channels, *widths[:-1]])
        )
        self.bottom = _double(widths[-2], widths[-1], norm)
        self.grow = nn.ModuleList(
            nn.ConvTranspose2d(2 * w, w, kernel_size=2, stride=2) for w in reversed(widths[:-1])
        )
        self.up = nn.ModuleList(_double(2 * w, w, norm) for w in reversed(widths[:-1]))
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Conv2d(width, outputs, kernel_size=1)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [B, outputs, H, W]."""
        x, skips = images, []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = self.pool(x)
        return _upwards(self, self.bottom(x), skips)


BLOCKS = (1, 3, 4, 6, 6)  # a level, as nnU-Net plans them


@network("unet_resenc", segments=True, norm="instance", shrink=16, deepest=_bottom)
class ResidualEncoderUNet(nn.Module):
    """nnU-Net's residual-encoder U-Net (Isensee et al., MICCAI 2024), 16 to 256 channels: 9.4 M.

    One to six residual blocks a level on the way down, one convolution a level on the way up.
    """

    def __init__(self, in_channels: int, outputs: int, norm: str, width: int = 16) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(5)]
        stages = [
            nn.Sequential(
                BasicBlock(above, below, 1 if below == width else 2, norm),
                *(BasicBlock(below, below, 1, norm) for _ in range(blocks - 1)),
            )
            for (above, below), blocks in zip(pairwise([width, *widths]), BLOCKS, strict=True)
        ]
        self.stem = nn.Sequential(*norm_block(in_channels, width, norm, bias=False))
        self.down, self.bottom = nn.ModuleList(stages[:-1]), stages[-1]
        self.grow = nn.ModuleList(
            nn.ConvTranspose2d(2 * w, w, kernel_size=2, stride=2) for w in reversed(widths[:-1])
        )
        self.up = nn.ModuleList(
            nn.Sequential(*norm_block(2 * w, w, norm, bias=False)) for w in reversed(widths[:-1])
        )
        self.head = nn.Conv2d(width, outputs, kernel_size=1)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [B, outputs, H, W]."""
        x, skips = self.stem(images), []
        for stage in self.down:
            x = stage(x)
            skips.append(x)
        return _upwards(self, self.bottom(x), skips)


def _upwards(net: ClassicUNet | ResidualEncoderUNet, x: Tensor, skips: list[Tensor]) -> Tensor:
    """From the bottom to the logits, level by level beside what came down."""
    for grow, block in zip(net.grow, net.up, strict=True):
        x = block(torch.cat([grow(x), skips.pop()], dim=1))
    logits: Tensor = net.head(x)
    return logits


def _double(in_channels: int, out_channels: int, norm: str) -> nn.Sequential:
    return nn.Sequential(
        *norm_block(in_channels, out_channels, norm, bias=False),
        *norm_block(out_channels, out_channels, norm, bias=False),
    )
