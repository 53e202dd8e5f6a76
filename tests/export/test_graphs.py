"""Every network as an ONNX graph: the numbers of torch, for any number of images."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from konsil.errors import ConfigError, StateError
from konsil.export.graphs import (
    CLOSE,
    check_graph,
    fits_16_bit,
    random_images,
    store_in_16_bit,
    write_graph,
)
from konsil.export.half import rounded
from konsil.networks import NETWORKS, NetworkSpec, build_network
from konsil.weights import Weights

OWN = {"vgg11": 32}  # a 7 x 7 pool of a 1 x 1 grid; smaller images are what it costs least with


def specification(name: str, **settings: object) -> NetworkSpec:
    if name == "encoder":
        of = NetworkSpec("unet", 1, 1, 32, normalise=True, width=2)
        return NetworkSpec(name, 1, 2, 32, arguments={"of": of.to_json()})
    kind = NETWORKS.all()[name]
    width = {"width": 2} if "width" in kind.settings() else {}
    size = OWN.get(name, 48 if kind.segments else 40)
    return NetworkSpec(name, 1, 2, size, normalise=kind.segments, **(width | settings))


SPECS = {
    **{name: specification(name) for name in sorted({*NETWORKS.all(), "encoder"})},
    "unet, batch norm": specification("unet", norm="batch"),
    "unet, group norm": specification("unet", norm="group"),
    "unet_resenc, affine": specification("unet_resenc", norm="instance_affine"),
    "small, instance norm": specification("small", norm="instance"),
    "unet, colour": NetworkSpec("unet", 3, 2, 32, normalise=True, width=2),
    "a class by its path": NetworkSpec(
        "monai.networks.nets.SegResNet", 1, 2, 32, arguments={"init_filters": 8}
    ),
}


def weights_of(spec: NetworkSpec) -> Weights:
    """Random ones, where a network would begin at zero, too, and with statistics of something."""
    torch.manual_seed(0)
    weights = Weights.of(build_network(spec))
    for entry in weights.layout.entries:
        values = weights[entry.name]
        if entry.kind == "statistic" and entry.group == "norm":
            values.uniform_(0.5, 2)
        elif entry.kind == "trainable" and not values.any():
            values.normal_(std=0.1)
    return weights


def test_every_registered_network_is_here():
    own = {n for n, kind in NETWORKS.all().items() if kind.build.__module__.startswith("konsil.")}
    assert {spec.name for spec in SPECS.values()} >= own | {"encoder"}


@pytest.mark.parametrize("name", SPECS)
def test_the_numbers_of_torch(tmp_path, name):
    spec = SPECS[name]
    selects = not spec.is_target and not spec.kind.segments
    path, weights = tmp_path / "x.onnx", weights_of(spec)
    whole = write_graph(spec.to_json(), weights, path, features=selects)
    assert [p.name for p in tmp_path.iterdir()] == ["x.onnx"]  # one file, whatever its size
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for count in (1, 3):
        x = random_images(spec.to_json(), count)
        with torch.no_grad():
            said = whole(x)
        expected = said if selects else (said,)
        for found, wanted in zip(session.run(None, {"images": x.numpy()}), expected, strict=True):
            assert found.shape == wanted.shape
            assert np.abs(found - wanted.numpy()).max() < CLOSE * max(1, float(wanted.abs().max()))


def test_a_graph_does_not_tell_where_it_was_made(tmp_path):
    path = tmp_path / "x.onnx"
    write_graph(SPECS["unet"].to_json(), weights_of(SPECS["unet"]), path)
    content = path.read_bytes()
    assert b"/konsil/" not in content
    assert b".py" not in content


def test_a_file_that_answers_otherwise_is_refused(tmp_path):
    spec = SPECS["unet"]
    whole = write_graph(spec.to_json(), weights_of(spec), tmp_path / "x.onnx")
    x = random_images(spec.to_json(), 2)
    assert check_graph("unet", whole, tmp_path / "x.onnx", x) < CLOSE
    with torch.no_grad():
        list(whole.parameters())[-1].add_(0.01)
    with pytest.raises(StateError, match=r"north: its ONNX file answers otherwise .* by 0\.0"):
        check_graph("north", whole, tmp_path / "x.onnx", x)


class Odd(nn.Module):
    """A network that decides by its input's values, which no graph can."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.head = nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x if float(x.mean()) > 0.5 else x.flip(2))


def test_a_network_that_is_no_graph_is_named(tmp_path):
    spec = NetworkSpec(f"{__name__}.Odd", 1, 1, 32)
    with pytest.raises(ConfigError, match=r"network .*Odd: torch cannot write it as ONNX"):
        write_graph(spec.to_json(), Weights.of(build_network(spec)), tmp_path / "x.onnx")


# In 16 bit


@pytest.mark.parametrize(
    ("value", "fits"), [(0.5, True), (1 / 3, False), (65504.0, True), (70000.0, False)]
)
def test_what_16_bit_can_hold(value, fits):
    assert fits_16_bit(np.full(3, value, np.float32)) == fits


def test_stored_in_16_bit_no_value_changes(tmp_path):
    spec = SPECS["unet"]
    weights = rounded(weights_of(spec))
    whole = write_graph(spec.to_json(), weights, tmp_path / "x.onnx")
    before = (tmp_path / "x.onnx").stat().st_size
    store_in_16_bit(tmp_path / "x.onnx")
    assert (tmp_path / "x.onnx").stat().st_size < before - 1.5 * weights.layout.size
    kinds = {t.data_type for t in onnx.load(str(tmp_path / "x.onnx")).graph.initializer}
    assert onnx.TensorProto.FLOAT16 in kinds
    assert check_graph("unet", whole, tmp_path / "x.onnx", random_images(spec.to_json(), 2)) < CLOSE
