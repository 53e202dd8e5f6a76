"""What several networks are made of: the first module, norm layers, blocks."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

# of MONAI's U-Net plain instance norm learns no scale and shift; everywhere else it does
NORMS = ("instance", "instance_affine", "batch", "group")
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


class Quick(nn.Module):
    """A layer that can sum in another, faster order: the same layer but for rounding.

    `compute.kernels: fast` sets `quick`; without it, such a layer gives torch's own bits.
    """

    quick = False


def quicken(network: nn.Module) -> None:
    """Let every layer that can compute in its faster order."""
    for module in network.modules():
        if isinstance(module, Quick):
            module.quick = True


class PReLU(nn.PReLU):
    """torch's PReLU with one slope; on a processor its backward pass takes a third of the time.

    The same bits. torch's own kernel for it is not vectorised: 9 % of a training step of the
    default U-Net at 64 x 64.
    """

    def __init__(self) -> None:
        super().__init__(num_parameters=1)

    def forward(self, x: Tensor) -> Tensor:
        """x where it is positive, slope * x elsewhere."""
        if x.device.type != "cpu" or not torch.is_grad_enabled():
            return functional.prelu(x, self.weight)
        out: Tensor = _PReLU.apply(x, self.weight)
        return out


class _PReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(x, slope)
        return functional.prelu(x, slope.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        (grad,), (x, slope) = grads, ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody differentiates a gradient: in terms that have one
            below = x <= 0
            return torch.where(below, slope * grad, grad), (x * grad)[below].sum().view(1)
        to_x = torch.ops.aten.leaky_relu_backward(grad, x, float(slope), False)
        # summed in the order and by the kernel that torch takes, from a tensor of its shape
        to_slope = x.clamp(max=0).mul_(grad).to(slope.dtype).sum_to_size([1] * x.dim())
        return to_x, to_slope.view(1)


class InstanceNorm(Quick, nn.InstanceNorm2d):
    """torch's instance norm; when quick, a group norm with a group a channel."""

    def forward(self, x: Tensor) -> Tensor:
        """Every channel of every image with mean 0 and variance 1, then scaled and shifted."""
        if not self.quick:
            return super().forward(x)
        return functional.group_norm(x, self.num_features, self.weight, self.bias, self.eps)


class NarrowConv(Quick, nn.Conv2d):
    """A convolution of very few channels.

    torch computes it with a kernel for many, or with none at all; when quick, it is computed with
    the channels last, of which a lonely one gets another of zeros, for which there is a kernel.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The convolution of x."""
        if not self.quick:
            return super().forward(x)
        weight = self.weight
        if self.in_channels == 1:
            x, weight = (functional.pad(t, (0, 0, 0, 0, 0, 1)) for t in (x, weight))
        last = torch.channels_last
        x, weight = x.contiguous(memory_format=last), weight.contiguous(memory_format=last)
        out = functional.conv2d(x, weight, self.bias, self.stride, self.padding)
        return out.contiguous()


def norm_layer(name: str, channels: int) -> nn.Module:
    """A norm layer with a learned scale and shift a channel; groups: 8, or what divides."""
    if name in ("instance", "instance_affine"):
        return InstanceNorm(channels, affine=True)
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


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut, a 1 x 1 convolution where shapes change."""

    def __init__(self, in_channels: int, channels: int, stride: int, norm: str) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *norm_block(in_channels, channels, norm, stride=stride, bias=False),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            norm_layer(norm, channels),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != channels:
            self.shortcut.append(nn.Conv2d(in_channels, channels, 1, stride=stride, bias=False))
            self.shortcut.append(norm_layer(norm, channels))
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """What comes out of both ways together."""
        out: Tensor = self.activation(self.residual(x) + self.shortcut(x))
        return out
