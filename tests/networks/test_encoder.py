"""A selector that looks through the global model's first layers."""

import pytest
import torch
from torch import nn

from konsil.config import NetworkConfig
from konsil.errors import ConfigError
from konsil.networks import (
    Network,
    NetworkSpec,
    build_network,
    check_spec,
    network_spec,
    networks_for,
)
from konsil.networks.encoder import CHANNELS, QUANTILES, EncoderFeatures, encoder_weights
from konsil.weights import BoundNetwork, Weights

UNET = NetworkSpec("unet", 1, 1, 32, normalise=True)
RESNET = NetworkSpec("resnet18", 3, 2, 64)


def encoder_of(spec: NetworkSpec, sites: int = 3) -> NetworkSpec:
    arguments = {"of": spec.to_json()}
    return NetworkSpec("encoder", spec.in_channels, sites, spec.image_size, arguments=arguments)


def images(spec: NetworkSpec, count: int = 4) -> torch.Tensor:
    shape = (count, spec.in_channels, spec.image_size, spec.image_size)
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


def body_of(net: nn.Module) -> EncoderFeatures:
    body = net.net.body
    assert isinstance(body, EncoderFeatures)
    return body


def test_it_sees_grey_values_and_the_first_convolutions():
    """U-Net: 16 + 16 + 16 + 32 channels come first; a mean and a deviation each."""
    net, x = build_network(encoder_of(UNET)).eval(), images(UNET)
    body = body_of(net)
    assert body.size == 2 * 80 + 2 + len(QUANTILES)
    features = net.features(x)
    assert features.shape == (4, body.size)
    grey = x.flatten(1)
    assert torch.allclose(features[:, 0], grey.mean(dim=1), atol=1e-5)
    assert torch.allclose(features[:, 1], grey.std(dim=1), atol=1e-5)
    places = [round(q * 1023) for q in QUANTILES]
    assert torch.equal(features[:, 2 : 2 + len(QUANTILES)], grey.sort(dim=1).values[:, places])
    layers = dict(body.of.named_modules())
    first = layers[body.layers[0]](body.of.entry(x))  # a convolution of the whole picture
    start = 2 + len(QUANTILES)
    assert torch.allclose(features[:, start : start + 16], first.mean(dim=(2, 3)), atol=1e-5)
    assert torch.allclose(features[:, start + 16 : start + 32], first.std(dim=(2, 3)), atol=1e-5)


@pytest.mark.parametrize("spec", [UNET, RESNET], ids=lambda s: s.name)
def test_the_first_layers_are_few(spec):
    body = body_of(build_network(encoder_of(spec)))
    layers = dict(body.of.named_modules())
    assert len(body.layers) >= 1
    assert sum(layers[name].out_channels for name in body.layers) <= CHANNELS


def test_the_rest_of_the_network_does_not_run():
    net = build_network(encoder_of(UNET)).eval()
    ran = []
    for name, module in body_of(net).of.named_modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            module.register_forward_hook(lambda *_, name=name: ran.append(name))
    net(images(UNET))
    assert ran == body_of(net).layers


def test_a_wide_first_layer_is_taken_whole():
    wide = NetworkSpec("unet", 1, 1, 32, width=96)
    body = body_of(build_network(encoder_of(wide)))
    assert len(body.layers) == 1
    assert body.size == 2 * 96 + 2 + len(QUANTILES)


def test_it_looks_through_the_weights_that_it_is_given():
    torch.manual_seed(1)
    watched = build_network(UNET)
    weights = encoder_weights(encoder_of(UNET), Weights.of(watched))
    net = build_network(encoder_of(UNET))
    BoundNetwork(net).load(weights)
    found = dict(net.eval().named_parameters())
    for name, value in watched.named_parameters():
        assert torch.equal(found[f"net.body.of.{name}"], value)
    assert torch.equal(net(images(UNET)), torch.zeros(4, 3))  # no site is likelier, until solved
    assert not torch.equal(
        net.features(images(UNET)), build_network(encoder_of(UNET)).eval().features(images(UNET))
    )


def test_features_come_with_the_logits():
    net = build_network(encoder_of(UNET)).eval()
    nn.init.normal_(net.net.head.weight)
    logits, features = net.with_features(images(UNET))
    assert torch.equal(features, net.features(images(UNET)))
    assert torch.allclose(logits, net.net.head(features))


def test_it_is_drawn_from_no_ones_random_numbers():
    """Building it runs the network once, on a blank image."""
    net = Network(build_network(UNET).net, normalise=True)
    net.train()
    before = torch.get_rng_state()
    from konsil.networks.encoder import first_convolutions

    first_convolutions(net, UNET)
    assert torch.equal(torch.get_rng_state(), before)
    assert net.training


def test_it_cannot_be_chosen_by_its_name_alone():
    assert "encoder" not in networks_for("classes")
    assert {"resnet18", "small"} <= set(networks_for("classes"))
    with pytest.raises(ConfigError, match=r"network.of: missing; encoder is not built without it"):
        check_spec(NetworkSpec("encoder", 1, 2, 32))
    given = {"in_channels": 1, "outputs": 2, "image_size": 32, "normalise": True}
    spec = network_spec(NetworkConfig(name="encoder"), "classes", **given)
    with pytest.raises(ConfigError, match=r"network.of: missing"):
        check_spec(spec)
