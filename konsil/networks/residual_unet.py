"""The default network: MONAI's U-Net with residual units, written out.

The same names, the same initial weights and the same answers, bit for bit (a test holds that), so
that models move between the two. Written here because MONAI takes seconds to import, which every
worker process would pay, and because its activations can be made to cost a third (`layers.PReLU`).
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from konsil.networks.layers import InstanceNorm, NarrowConv, PReLU, Quick, norm_layer
from konsil.networks.spec import network

UNITS = 2  # convolutions in a residual unit


def _innermost(net: nn.Module) -> nn.Module:
    """The levels nest: down, a skip connection around the rest, up."""
    block = net.get_submodule("model")
    while isinstance(block, nn.Sequential) and isinstance(block[1], Skip):
        block = block[1].submodule
    return block


@network("unet", segments=True, norm="instance", shrink=16, deepest=_innermost)
class ResidualUNet(nn.Module):
    """MONAI's U-Net, 16 to 256 channels with two residual units: 1.63 M parameters."""

    def __init__(self, in_channels: int, outputs: int, norm: str, width: int = 16) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(5)]
        self.model = _level(in_channels, outputs, widths, norm, top=True)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [B, outputs, H, W]."""
        logits: Tensor = self.model(images)
        return logits


class Skip(nn.Module):
    """What comes in beside what the levels below make of it."""

    def __init__(self, submodule: nn.Module) -> None:
        super().__init__()
        self.submodule = submodule

    def forward(self, x: Tensor) -> Tensor:
        """Twice the channels, or more."""
        return torch.cat([x, self.submodule(x)], dim=1)


class ResidualUnit(Quick):
    """Convolutions and a shortcut, itself a convolution where shapes change."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        norm: str,
        stride: int,
        units: int = UNITS,
        top: bool = False,
    ) -> None:
        """`top`: the last convolution stands alone, and gives the logits."""
        super().__init__()
        self.conv = nn.Sequential()
        for unit in range(units):
            first, bare = unit == 0, top and unit == units - 1
            kind = NarrowConv if bare else nn.Conv2d
            convolution = kind(
                inputs if first else outputs, outputs, 3, stride if first else 1, padding=1
            )
            self.conv.add_module(f"unit{unit}", _normed(convolution, "" if bare else norm))
        self.shrinks = stride != 1
        self.residual: nn.Module = nn.Identity()
        if self.shrinks:
            self.residual = nn.Conv2d(inputs, outputs, 3, stride, padding=1)
        elif inputs != outputs:
            self.residual = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """What comes out of both ways together."""
        if self.quick and self.shrinks:
            return self._together(x)
        shortcut = self.residual(x)
        out: Tensor = self.conv(x) + shortcut
        return out

    def _together(self, x: Tensor) -> Tensor:
        """The first convolution and the shortcut, which have the same shape, as one."""
        unit0, *units = self.conv
        both = unit0.get_submodule("conv"), self.residual
        weight, bias = (torch.cat([getattr(one, n) for one in both]) for n in ("weight", "bias"))
        out, shortcut = functional.conv2d(x, weight, bias, 2, 1).chunk(2, dim=1)
        for module in (unit0.get_submodule("adn"), *units):
            out = module(out)
        return out + shortcut


def _level(inputs: int, outputs: int, widths: list[int], norm: str, top: bool) -> nn.Sequential:
    """One level and all below it: half the size, and back."""
    width, *below = widths
    if len(below) > 1:
        inner: nn.Module = _level(width, width, below, norm, top=False)
        returned = width
    else:
        inner, returned = ResidualUnit(width, below[0], norm, stride=1), below[0]
    down = ResidualUnit(inputs, width, norm, stride=2)
    grow = nn.ConvTranspose2d(width + returned, outputs, 3, stride=2, padding=1, output_padding=1)
    up = nn.Sequential(
        _normed(grow, norm), ResidualUnit(outputs, outputs, norm, stride=1, units=1, top=top)
    )
    return nn.Sequential(down, Skip(inner), up)


def _normed(convolution: nn.Conv2d | nn.ConvTranspose2d, norm: str) -> nn.Sequential:
    """A convolution with a norm layer and an activation; without a norm, alone."""
    block = nn.Sequential(OrderedDict(conv=convolution))
    if norm:
        channels = convolution.out_channels
        # its plain instance norm learns no scale and shift, unlike everybody else's
        plain = norm == "instance"
        layer = InstanceNorm(channels) if plain else norm_layer(norm, channels)
        block.add_module("adn", nn.Sequential(OrderedDict(N=layer, A=PReLU())))
    return block
