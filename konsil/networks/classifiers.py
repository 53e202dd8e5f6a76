"""Networks with one answer an image: of the classification task, and FedSM's selectors."""

from collections import OrderedDict
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from konsil.networks.layers import BasicBlock, norm_block
from konsil.networks.spec import network

SMALL_WIDTHS = (16, 32, 64, 128)
FEATURE_WIDTHS = (24, 32, 48)
THUMBNAIL = 4


class Classifier(nn.Sequential):
    """A body that turns an image into a feature vector, and one linear layer on top."""

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        super().__init__(OrderedDict(body=body, head=head))


def _global_average_pool() -> nn.Sequential:
    """[B, C, H, W] to [B, C]."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _initialise_convolutions(network: nn.Module) -> None:
    """He et al.'s initial weights (fan out) of every convolution, as in ResNet and VGG."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


@network("resnet18", segments=False, norm="batch", shrink=32)
def resnet18(in_channels: int, outputs: int, norm: str) -> Classifier:
    """The classic ResNet-18 (He et al., CVPR 2016): 11.2 M.

    A 7 x 7 stem, a max-pool, four stages of two blocks. MONAI's 2-D ResNet-18 keeps its stem at
    stride 1 and is 3.2 times slower at 96 x 96.
    """
    stem = norm_block(in_channels, 64, norm, kernel_size=7, stride=2, bias=False)
    stages: list[nn.Module] = [nn.MaxPool2d(kernel_size=3, stride=2, padding=1)]
    for width, channels, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        stages.append(BasicBlock(width, channels, stride, norm))
        stages.append(BasicBlock(channels, channels, 1, norm))
    body = nn.Sequential(*stem, *stages, _global_average_pool())
    _initialise_convolutions(body)
    return Classifier(body, nn.Linear(512, outputs))


@network("vgg11", segments=False, shrink=32)
def vgg11(in_channels: int, outputs: int) -> Classifier:
    """VGG-11 (Simonyan & Zisserman, ICLR 2015, column A), the FedSM paper's selector: 128.8 M.

    No norm layers, two wide layers with dropout.
    """
    body = nn.Sequential(
        *_convolutions(in_channels),
        nn.AdaptiveAvgPool2d(7),
        nn.Flatten(),
        *_wide(512 * 7 * 7),
        *_wide(4096),
    )
    return _initialised(Classifier(body, nn.Linear(4096, outputs)))


@network("vgg11_pooled", segments=False, shrink=32)
def vgg11_pooled(in_channels: int, outputs: int) -> Classifier:
    """VGG-11's convolutions, one average over the image, one linear layer: 9.2 M."""
    body = nn.Sequential(*_convolutions(in_channels), _global_average_pool())
    return _initialised(Classifier(body, nn.Linear(512, outputs)))


def _convolutions(in_channels: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for stage in ((64,), (128,), (256, 256), (512, 512), (512, 512)):
        for channels in stage:
            layers += [nn.Conv2d(in_channels, channels, 3, padding=1), nn.ReLU(inplace=True)]
            in_channels = channels
        layers.append(nn.MaxPool2d(2))
    return layers


def _wide(in_features: int) -> list[nn.Module]:
    return [nn.Linear(in_features, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5)]


def _initialised(network: Classifier) -> Classifier:
    _initialise_convolutions(network)
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.zeros_(module.bias)
    return network


@network("small", segments=False, norm="group", shrink=16)
def small(in_channels: int, outputs: int, norm: str) -> Classifier:
    """The default selector: four stride-2 blocks of 3 x 3 convolution, norm and ReLU: 0.1 M.

    Group norm by default and not instance norm, which would remove the brightness and contrast
    that tell sites apart. The convolutions keep their bias for the same reason: without it, a
    norm layer over one image cannot see its scale.
    """
    layers: list[nn.Module] = []
    for width, channels in pairwise((in_channels, *SMALL_WIDTHS)):
        layers += norm_block(width, channels, norm, stride=2)
    body = nn.Sequential(*layers, _global_average_pool())
    return Classifier(body, nn.Linear(SMALL_WIDTHS[-1], outputs))


@network("features", segments=False, shrink=16)
def features(in_channels: int, outputs: int) -> Classifier:
    """Fixed features under one linear layer: a selector that can be solved instead of trained.

    The linear layer starts at zero: every site is equally likely.
    """
    body = FixedFeatures(in_channels)
    return Classifier(body, zeroed(nn.Linear(body.size, outputs)))


def zeroed(head: nn.Linear) -> nn.Linear:
    """A head that finds every class equally likely, until it is solved for."""
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


class FixedFeatures(nn.Module):
    """Random convolutions, intensities and a thumbnail; nothing here is trained.

    Means and deviations of three random convolution layers describe texture and colour, those of
    the raw channels brightness and contrast, the thumbnail where things lie. The filters are
    drawn once with the initial weights and travel with them, as statistics do.
    """

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        for number, (width, channels) in enumerate(pairwise((in_channels, *FEATURE_WIDTHS))):
            scale = (2 / (9 * width)) ** 0.5
            self.register_buffer(f"filters{number}", torch.randn(channels, width, 3, 3) * scale)
            self.register_buffer(f"offsets{number}", torch.randn(channels) * 0.3)
        self.size = 2 * sum(FEATURE_WIDTHS) + in_channels * (2 + THUMBNAIL**2)

    def forward(self, images: Tensor) -> Tensor:
        """[B, size] of images in [0, 1]."""
        found = [*mean_and_deviation(images), F.adaptive_avg_pool2d(images, THUMBNAIL).flatten(1)]
        x = 2 * images - 1
        for number in range(len(FEATURE_WIDTHS)):
            filters = self.get_buffer(f"filters{number}")
            offsets = self.get_buffer(f"offsets{number}")
            x = F.relu(F.conv2d(x, filters, offsets, stride=2, padding=1))
            found += mean_and_deviation(x)
        return torch.cat(found, dim=1)


def mean_and_deviation(x: Tensor) -> tuple[Tensor, Tensor]:
    """Over the positions: two values a channel."""
    return x.mean(dim=(2, 3)), x.std(dim=(2, 3))
