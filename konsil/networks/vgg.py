"""VGG-11 (Simonyan & Zisserman, ICLR 2015, column A): FedSM's selector."""

from __future__ import annotations

from torch import nn

from konsil.networks.kinds import network
from konsil.networks.layers import Classifier, global_average_pool, initialise_convolutions

STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))


@network("vgg11", segments=False, shrink=32)
def vgg11(in_channels: int, outputs: int) -> Classifier:
    """The FedSM paper's selector: no norm layers, two wide layers with dropout; 128.8 M."""
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
    body = nn.Sequential(*_convolutions(in_channels), global_average_pool())
    return _initialised(Classifier(body, nn.Linear(512, outputs)))


def _convolutions(in_channels: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for stage in STAGES:
        for channels in stage:
            layers += [nn.Conv2d(in_channels, channels, 3, padding=1), nn.ReLU(inplace=True)]
            in_channels = channels
        layers.append(nn.MaxPool2d(2))
    return layers


def _wide(in_features: int) -> list[nn.Module]:
    return [nn.Linear(in_features, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5)]


def _initialised(network: Classifier) -> Classifier:
    initialise_convolutions(network)
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.zeros_(module.bias)
    return network
