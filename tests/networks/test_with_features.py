"""Features beside the logits: one vector an image, from the same pass."""

import pytest
import torch

from konsil.networks import Network, NetworkSpec, build_network
from konsil.weights import head_module

NETWORKS = ["unet", "unet_classic", "unet_resenc", "resnet18", "small"]


def build(name: str, norm: str | None = None, width: int | None = None) -> Network:
    torch.manual_seed(0)
    return build_network(NetworkSpec(name, 1, 2, 64, norm, normalise=True, width=width))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm", [None, "batch"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_logits_are_those_of_forward(name, norm, training):
    net, images = build(name, norm).train(training), torch.rand(3, 1, 64, 64)
    assert torch.equal(net.with_features(images)[0], net(images))


@pytest.mark.parametrize(
    ("name", "width", "size"),
    [
        ("unet", None, 256),
        ("unet", 2, 32),
        ("unet_classic", None, 512),
        ("unet_classic", 4, 64),
        ("unet_resenc", 2, 32),
        ("resnet18", None, 512),
        ("small", None, 128),
    ],
)
def test_sizes(name, width, size):
    assert build(name, width=width).with_features(torch.rand(3, 1, 64, 64))[1].shape == (3, size)


@pytest.mark.parametrize("name", ["resnet18", "small"])
def test_a_classifiers_features_are_what_its_head_sees(name):
    net, images = build(name).eval(), torch.rand(2, 1, 64, 64)
    logits, features = net.with_features(images)
    assert torch.equal(net.get_submodule(head_module(net))(features), logits)


@pytest.mark.parametrize("name", ["unet", "unet_classic", "unet_resenc"])
def test_a_u_nets_features_depend_on_its_way_down_alone(name):
    """Its widest layers, and nothing of the way up; while the logits use everything."""
    net = build(name)
    features = net.with_features(torch.rand(2, 1, 64, 64))[1]
    features.square().sum().backward()
    used = {p.shape for p in net.parameters() if p.grad is not None}
    unused = {n for n, p in net.named_parameters() if p.grad is None}
    assert any(n.startswith(head_module(net)) for n in unused)
    assert max(shape[0] for shape in used) == features.shape[1]
    with_logits = build(name)
    with_logits(torch.rand(2, 1, 64, 64)).sum().backward()
    assert all(p.grad is not None for p in with_logits.parameters())


@pytest.mark.parametrize("name", NETWORKS)
def test_each_image_has_its_own(name):
    net, images = build(name).eval(), torch.rand(3, 1, 64, 64)
    together = net.with_features(images)[1]
    torch.testing.assert_close(net.with_features(images[1:2])[1], together[1:2])
    assert not torch.allclose(together[0], together[1])


@pytest.mark.parametrize("name", ["unet", "unet_classic", "unet_resenc"])
def test_no_hook_is_left_behind(name):
    net = build(name)
    net.with_features(torch.rand(1, 1, 64, 64))
    with pytest.raises(RuntimeError):
        net.with_features(torch.rand(1, 5, 64, 64))  # five channels: it fails on its way down
    assert all(not module._forward_hooks for module in net.modules())
