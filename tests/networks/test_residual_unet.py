"""The default U-Net is MONAI's: the same names, initial weights and answers."""

from collections import Counter

import pytest
import torch
from monai.networks.nets.unet import UNet
from torch import nn
from torch.nn import functional
from torch.profiler import profile

from konsil.config import ComputeConfig
from konsil.networks import NetworkSpec, arranged, build_network
from konsil.networks.layers import InstanceNorm, NarrowConv, PReLU
from konsil.networks.residual_unet import ResidualUnit

MONAI_NORMS = {
    "instance": "instance",
    "instance_affine": ("instance", {"affine": True}),
    "batch": "batch",
}


def both(norm: str, channels: int, outputs: int, width: int) -> tuple[nn.Module, nn.Module]:
    spec = NetworkSpec("unet", channels, outputs, 32, norm, normalise=False, width=width)
    torch.manual_seed(3)
    ours = build_network(spec).net
    torch.manual_seed(3)
    theirs = UNet(
        spatial_dims=2,
        in_channels=channels,
        out_channels=outputs,
        channels=[width * 2**level for level in range(5)],
        strides=(2, 2, 2, 2),
        num_res_units=2,
        norm=MONAI_NORMS[norm],
    )
    return ours, theirs


@pytest.mark.parametrize("norm", MONAI_NORMS)
@pytest.mark.parametrize(("channels", "outputs", "width"), [(3, 2, 16), (1, 1, 4)])
def test_it_is_monais(norm, channels, outputs, width):
    ours, theirs = both(norm, channels, outputs, width)
    state = theirs.state_dict()
    assert list(ours.state_dict()) == list(state)
    assert all(torch.equal(value, state[name]) for name, value in ours.state_dict().items())
    x = torch.rand(3, channels, 32, 32)
    a, b = ours(x), theirs(x)
    assert torch.equal(a, b)
    for logits in (a, b):
        functional.softplus(logits).mean().backward()
    grads = {name: p.grad for name, p in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, grads[name], msg=name)


def test_group_norm_takes_the_places_of_monais_batch_norm():
    ours, theirs = both("batch", 1, 2, 4)
    grouped = build_network(NetworkSpec("unet", 1, 2, 32, "group", normalise=False, width=4)).net
    places = [n for n, m in theirs.named_modules() if isinstance(m, nn.BatchNorm2d)]
    assert places == [n for n, m in grouped.named_modules() if isinstance(m, nn.GroupNorm)]
    assert places == [n for n, m in ours.named_modules() if isinstance(m, nn.BatchNorm2d)]


def gradients(activation: nn.PReLU, x: torch.Tensor, weights: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    out = activation(x)
    (weights * out).sum().backward()
    return [out.detach(), x.grad, activation.weight.grad]


@pytest.mark.parametrize("slope", [0.25, 0.0, -0.5])
def test_prelu_is_torchs(slope):
    x = torch.randn(4, 6, 9, 9)
    x[0, 0, 0] = torch.tensor([0.0, -0.0, 1e-38, -1e-38, 1, -1, 2, -2, 3])
    weights, ours, theirs = torch.randn(x.shape), PReLU(), nn.PReLU()
    for one in (ours, theirs):
        one.weight.data.fill_(slope)
    for a, b in zip(gradients(ours, x, weights), gradients(theirs, x, weights), strict=True):
        torch.testing.assert_close(a, b)


def test_prelu_by_hand():
    x = torch.tensor([[-2.0, 3.0]]).view(1, 1, 1, 2)
    out, to_x, to_slope = gradients(PReLU(), x, torch.tensor([5.0, 7.0]).view(x.shape))
    assert out.flatten().tolist() == [-0.5, 3.0]
    assert to_x.flatten().tolist() == [5 * 0.25, 7.0]
    assert to_slope.item() == 5 * -2.0  # what is below 0 times what comes back


def test_prelus_gradient_can_be_differentiated():
    activation = PReLU().double()
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(
        lambda x, slope: torch.func.functional_call(activation, {"weight": slope}, (x,)),
        (x, activation.weight.detach().requires_grad_()),
    )


def computed(spec: NetworkSpec, kernels: str) -> dict[str, torch.Tensor]:
    """Answer, and gradients of images and weights, in double precision."""
    torch.manual_seed(1)
    net = arranged(build_network(spec), ComputeConfig(kernels=kernels)).double()
    x = torch.rand(2, spec.in_channels, 32, 32, dtype=torch.double, requires_grad=True)
    logits = net(x)
    functional.softplus(logits * torch.linspace(-1, 2, 32)).mean().backward()
    grads = {name: p.grad for name, p in net.named_parameters()}
    return {"logits": logits, "images": x.grad, **grads}


FAST = (InstanceNorm, NarrowConv, ResidualUnit)


@pytest.mark.parametrize("kind", FAST)
@pytest.mark.parametrize("norm", ["instance", "instance_affine", "batch", "group"])
@pytest.mark.parametrize("outputs", [1, 2, 5])
def test_fast_kernels_give_the_same_but_for_rounding(kind, norm, outputs, monkeypatch):
    for other in FAST:  # only this kind hears of it
        if other is not kind:
            monkeypatch.setattr(other, "quick", property(lambda self: False, lambda self, v: None))
    spec = NetworkSpec("unet", 3, outputs, 32, norm, width=4)
    torch.testing.assert_close(
        computed(spec, "fast"), computed(spec, "reference"), rtol=1e-7, atol=1e-12
    )


def calls_of(kernels: str, outputs: int) -> Counter[str]:
    """How often one pass calls what."""
    spec = NetworkSpec("unet", 3, outputs, 32)
    net = arranged(build_network(spec), ComputeConfig(kernels=kernels))
    with profile(record_shapes=True) as seen:
        net(torch.rand(2, 3, 32, 32))
    narrow = [e for e in seen.events() if e.name == "aten::conv2d" and e.input_shapes[0][1] <= 2]
    return Counter([e.name for e in seen.events()] + ["narrow"] * len(narrow))


def test_fast_kernels_are_other_kernels():
    plain, fast = calls_of("reference", 1), calls_of("fast", 1)
    assert (plain["aten::instance_norm"], plain["aten::group_norm"]) == (17, 0)
    assert (fast["aten::instance_norm"], fast["aten::group_norm"]) == (0, 17)
    assert plain["aten::conv2d"] - fast["aten::conv2d"] == 4  # on the way down, one for two
    assert fast["narrow"] == plain["narrow"] == 1
    assert fast["aten::pad"] - plain["aten::pad"] == 2  # a second channel of zeros


def test_a_narrow_convolution_has_its_channels_last(monkeypatch):
    layer = NarrowConv(2, 2, 3, padding=1)
    layer.quick, seen = True, []
    convolve = functional.conv2d
    monkeypatch.setattr(functional, "conv2d", lambda *a: seen.extend(a[:2]) or convolve(*a))
    out = layer(torch.rand(2, 2, 8, 8))
    assert all(one.is_contiguous(memory_format=torch.channels_last) for one in seen)
    assert out.is_contiguous()
