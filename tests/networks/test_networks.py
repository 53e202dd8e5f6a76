import json
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from konsil.errors import ConfigError, StateError
from konsil.networks import NetworkSpec, PerImageNorm, build_network
from konsil.networks.layers import InstanceNorm
from konsil.weights import head_module

SEGMENTERS = ["unet", "unet_classic", "unet_resenc"]
CLASSIFIERS = ["resnet18", "vgg11", "vgg11_pooled", "small"]
LIGHT = [*SEGMENTERS, "resnet18", "vgg11_pooled", "small"]  # VGG-11 is half a GB
NORMED = [*SEGMENTERS, "resnet18", "small"]
NORM_TYPES = {
    "instance": InstanceNorm,
    "instance_affine": InstanceNorm,
    "batch": nn.BatchNorm2d,
    "group": nn.GroupNorm,
}


@pytest.fixture(autouse=True)
def _fixed():
    torch.manual_seed(0)


def build(name, norm=None, size=64, outputs=3, channels=1, normalise=False):
    return build_network(NetworkSpec(name, channels, outputs, size, norm, normalise))


def build_meta(name):
    with torch.device("meta"):
        return build(name)


def norms_of(net):
    return [m for m in net.modules() if isinstance(m, tuple(NORM_TYPES.values()))]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("unet", 1_625_496),
        ("unet_classic", 7_762_531),
        ("unet_resenc", 9_432_371),
        ("resnet18", 11_171_779),  # the known 11,689,512 with 3 channels and 1000 classes, below
        ("vgg11", 128_777_475),
        ("vgg11_pooled", 9_220_867),
        ("small", 98_019),
    ],
)
def test_number_of_parameters(name, count):
    assert sum(p.numel() for p in build_meta(name).parameters()) == count


@pytest.mark.parametrize(("name", "count"), [("resnet18", 11_689_512), ("vgg11", 132_863_336)])
def test_counts_published_for_imagenet(name, count):
    with torch.device("meta"):
        net = build(name, channels=3, outputs=1000)
    assert sum(p.numel() for p in net.parameters()) == count


@pytest.mark.parametrize("name", LIGHT)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [48, 64])
def test_output_shape(name, channels, size):
    logits = build(name, channels=channels, size=size, outputs=2)(
        torch.rand(2, channels, size, size)
    )
    assert logits.shape == ((2, 2, size, size) if name in SEGMENTERS else (2, 2))


def test_output_shape_of_vgg11():
    images = torch.rand(2, 1, 64, 64, device="meta")
    assert build_meta("vgg11")(images).shape == (2, 3)
    assert build_meta("vgg11").features(images).shape == (2, 4096)


@pytest.mark.parametrize("name", NORMED)
@pytest.mark.parametrize("norm", NORM_TYPES)
@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_every_norm_trains_one_image_at_the_smallest_size(name, norm, outputs):
    smallest = {"resnet18": 33, "small": 17}.get(name, 32)
    net = build(name, norm, size=smallest, outputs=outputs)
    logits = net(torch.rand(1, 1, smallest, smallest))
    logits.sum().backward()
    assert logits.isfinite().all()
    assert {type(m) for m in norms_of(net)} == {NORM_TYPES[norm]}


@pytest.mark.parametrize(
    ("name", "norm"),
    [*((name, "instance") for name in SEGMENTERS), ("resnet18", "batch"), ("small", "group")],
)
def test_default_norm(name, norm):
    assert {type(m) for m in norms_of(build_meta(name))} == {NORM_TYPES[norm]}


def test_affine_instance_norm_learns_scale_and_shift_in_monais_u_net_too():
    plain, affine = (norms_of(build("unet", norm)) for norm in ("instance", "instance_affine"))
    assert len(plain) == len(affine) > 0
    assert not any(m.affine for m in plain)
    assert all(m.affine for m in affine)


def test_the_residual_encoder_has_nnu_nets_blocks():
    net = build_meta("unet_resenc").net
    assert [len(stage) for stage in (*net.down, net.bottom)] == [1, 3, 4, 6, 6]
    assert [stage[0].residual[0].stride for stage in (*net.down, net.bottom)] == [
        (1, 1), *[(2, 2)] * 4
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["vgg11", "vgg11_pooled"])
def test_vgg_has_no_norm_and_refuses_one(name):
    assert norms_of(build_meta(name)) == []
    with pytest.raises(ConfigError, match=f"{name} has no norm layers"):
        build(name, "batch")


def test_vgg11_has_two_dropouts_of_a_half():
    rates = [m.p for m in build_meta("vgg11").modules() if isinstance(m, nn.Dropout)]
    assert rates == [0.5, 0.5]


def test_vgg_initial_weights():
    net = build("vgg11_pooled", outputs=200)
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    for conv in convolutions[2:]:
        expected = (2 / (conv.out_channels * 9)) ** 0.5
        assert conv.weight.std().item() == pytest.approx(expected, rel=0.02)
    head = net.get_submodule(head_module(net))
    assert head.weight.std().item() == pytest.approx(0.01, rel=0.02)
    assert all(m.bias.eq(0).all() for m in [*convolutions, head])


@pytest.mark.parametrize(
    ("name", "kind", "outputs"),
    [(n, nn.Conv2d, 3) for n in SEGMENTERS] + [(n, nn.Linear, 3) for n in CLASSIFIERS],
)
def test_head_is_the_layer_that_gives_the_logits(name, kind, outputs):
    net = build_meta(name)
    head = net.get_submodule(head_module(net))
    assert isinstance(head, kind)
    assert (head.out_channels if kind is nn.Conv2d else head.out_features) == outputs


@pytest.mark.parametrize("name", LIGHT)
def test_no_layer_runs_after_the_head(name):
    net, calls = build(name), []
    for module_name, module in net.named_modules():
        if list(module.children()) == [] and any(True for _ in module.parameters()):
            module.register_forward_hook(lambda *_, n=module_name: calls.append(n))
    net(torch.rand(2, 1, 64, 64))
    assert calls[-1] == head_module(net)


def test_head_of_a_network_without_layers():
    with pytest.raises(ConfigError, match="no convolution"):
        head_module(nn.Sequential(nn.ReLU()))


@pytest.mark.parametrize(
    ("name", "width"), [("resnet18", 512), ("vgg11_pooled", 512), ("small", 128)]
)
def test_features_are_what_the_head_sees(name, width):
    net, images = build(name, normalise=True).eval(), torch.rand(2, 1, 64, 64)
    features = net.features(images)
    assert features.shape == (2, width)
    assert torch.equal(net.get_submodule(head_module(net))(features), net(images))


def test_a_segmenter_has_no_features():
    with pytest.raises(ConfigError, match="segmentation network"):
        build("unet").features(torch.rand(1, 1, 64, 64))


@pytest.mark.parametrize("name", LIGHT)
def test_gradient_reaches_every_parameter(name):
    net = build(name, normalise=True)
    net(torch.rand(4, 1, 64, 64)).square().sum().backward()
    for parameter_name, parameter in net.named_parameters():
        assert parameter.grad is not None, parameter_name
        if parameter.ndim > 1:  # a bias before an instance norm has no effect (MONAI's U-Net)
            assert parameter.grad.abs().sum() > 0, parameter_name


@pytest.mark.parametrize("name", LIGHT)
def test_weights_may_be_views_of_one_flat_buffer(name):
    net, images = build(name).eval(), torch.rand(2, 1, 64, 64)
    before = net(images)
    parameters = list(net.parameters())
    assert len({p.data_ptr() for p in parameters}) == len(parameters)  # nothing is shared
    flat = torch.cat([p.detach().flatten() for p in parameters])
    for p, view in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.data = view.view_as(p)
    assert torch.equal(net(images), before)
    flat.zero_()
    assert net(images).abs().max() == 0


@pytest.mark.parametrize("name", LIGHT)
def test_same_seed_same_weights(name):
    torch.manual_seed(5)
    first = build(name).state_dict()
    torch.manual_seed(5)
    second = build(name, normalise=True).state_dict()  # normalisation has no entry of its own
    assert first.keys() == second.keys()
    assert all(torch.equal(first[k], second[k]) for k in first)


def test_images_are_left_alone():
    images = torch.rand(2, 1, 64, 64)
    before = images.clone()
    for name in LIGHT:
        build(name)(images)
        build(name, normalise=True)(images)
    assert torch.equal(images, before)


def test_spec_survives_json():
    spec = NetworkSpec("unet", 3, 2, 64, norm="group", normalise=True)
    assert NetworkSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize(
    "data", [{"name": "unet"}, {**NetworkSpec("unet", 3, 2, 64).to_json(), "x": 1}]
)
def test_spec_of_another_version_is_refused(data):
    with pytest.raises(StateError, match="save the model again"):
        NetworkSpec.from_json(data)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            NetworkSpec("unett", 3, 2, 64),
            "unknown network 'unett'; there are .*unet, unet_class",
        ),
        (
            NetworkSpec("unet", 3, 2, 64, norm="layer"),
            "one of instance, instance_affine, batch, group",
        ),
        (NetworkSpec("unet", 3, 2, 40), "image_size = 40: .* multiple of 16, at least 32"),
        (NetworkSpec("unet_classic", 3, 2, 16), "image_size = 16: .* multiple of 16, at least 32"),
        (NetworkSpec("resnet18", 3, 2, 32), "image_size = 32: resnet18 needs at least 33"),
        (NetworkSpec("vgg11", 3, 2, 31), "image_size = 31: vgg11 needs at least 32"),
        (NetworkSpec("small", 3, 2, 16, norm="batch"), "image_size = 16: small needs at least 17"),
        (NetworkSpec("small", 3, 0, 64), "outputs = 0: at least 1"),
        (NetworkSpec("small", 0, 2, 64), "in_channels = 0: at least 1"),
    ],
)
def test_impossible_networks_are_refused(spec, message):
    with pytest.raises(ConfigError, match=message):
        build_network(spec)


def test_small_with_group_norm_takes_16_pixels():
    assert build("small", size=16)(torch.rand(1, 1, 16, 16)).isfinite().all()


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    scale=st.floats(0.1, 10),
    offset=st.floats(-1, 1),
    b=st.integers(1, 3),
)
def test_normalisation_forgets_brightness_and_contrast(seed, scale, offset, b):
    images = torch.rand(b, 2, 8, 8, generator=torch.Generator().manual_seed(seed))
    out = PerImageNorm()(images)
    assert torch.allclose(PerImageNorm()(scale * images + offset), out, atol=1e-3)
    assert torch.allclose(out.mean(dim=(2, 3)), torch.zeros(b, 2), atol=1e-5)
    assert torch.allclose(out.var(dim=(2, 3), correction=0), torch.ones(b, 2), atol=1e-4)


def test_normalisation_by_hand():
    image = torch.tensor([1.0, 3.0, 5.0, 7.0]).view(1, 1, 2, 2)  # mean 4, variance 5
    expected = torch.tensor([-3.0, -1.0, 1.0, 3.0]).view(1, 1, 2, 2) / 5**0.5
    assert torch.allclose(PerImageNorm()(image), expected)


@pytest.mark.parametrize("value", [0.0, 0.1, 0.7, 1.0])
def test_a_constant_image_becomes_zero(value):
    assert PerImageNorm()(torch.full((1, 3, 64, 64), value)).abs().max() < 1e-3


def test_each_image_is_normalised_alone():
    images = torch.rand(3, 2, 8, 8)
    assert torch.allclose(PerImageNorm()(images)[1:2], PerImageNorm()(images[1:2]), atol=1e-6)


def test_normalised_network_forgets_brightness_and_the_raw_one_does_not():
    images = torch.rand(2, 1, 64, 64)
    darker = 0.5 * images
    torch.manual_seed(1)
    raw = build("small").eval()
    normalised = build("small", normalise=True).eval()
    assert torch.allclose(normalised(darker), normalised(images), atol=1e-4)
    assert not torch.allclose(raw(darker), raw(images), atol=1e-3)


def test_networks_do_not_import_training_code():
    code = "import sys, konsil.networks; print([m for m in sys.modules if m.startswith('konsil')])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(eval(run.stdout))
    own = ("", ".errors", ".files", ".networks", ".registry", ".version", ".weights")
    allowed = {f"konsil{module}" for module in own}
    assert {m for m in loaded if not m.startswith("konsil.networks.")} == allowed
