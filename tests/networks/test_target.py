"""Any class as a network: built with what it asks for, tried out before round 1, or refused."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from konsil.errors import ConfigError
from konsil.federation.plan import Plan
from konsil.networks import NetworkSpec, build_network, check_spec, try_out
from konsil.networks.build import Watched
from konsil.weights import head_module

SEGRESNET = "monai.networks.nets.SegResNet"
DENSENET = "monai.networks.nets.DenseNet"
ODD = """
import torch
from torch import nn

called = []
VALUE = 3

def function():
    called.append("function")

class NoNetwork:
    def __init__(self):
        called.append("NoNetwork")

class Fine(nn.Module):
    def __init__(self, n_channels, classes, width=4):
        super().__init__()
        self.body = nn.Conv2d(n_channels, width, 3, stride=2, padding=1)
        self.head = nn.Linear(width, classes)
    def forward(self, x):
        return self.head(self.body(x).relu().mean((2, 3)))

class Fails(Fine):
    def __init__(self, n_channels, classes):
        raise ValueError("three layers at least\\nand a second line")

class Two(Fine):
    def forward(self, x):
        return super().forward(x), x

class Nothing(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))

class NoHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
    def forward(self, x):
        return self.scale * x.mean((2, 3))[:, :2]

class Batched(Fine):
    def __init__(self, n_channels, classes):
        super().__init__(n_channels, classes)
        self.norm = nn.BatchNorm1d(classes)
    def forward(self, x):
        return self.norm(super().forward(x))

class Tied(Fine):
    def __init__(self, n_channels, classes):
        super().__init__(n_channels, classes)
        self.again = nn.Linear(4, classes)
        self.again.weight = self.head.weight
    def forward(self, x):
        return self.again(self.body(x).mean((2, 3)))

class Hidden(Fine):
    def __init__(self, n_channels, classes):
        super().__init__(n_channels, classes)
        self.register_buffer("grid", torch.ones(2), persistent=False)

class Backwards(nn.Module):
    def __init__(self, n_channels, classes):
        super().__init__()
        self.head = nn.Linear(4, classes)
        self.body = nn.Conv2d(n_channels, 4, 3)
    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))

class Anything(Fine):
    def __init__(self, n_channels, classes, **others):
        super().__init__(n_channels, classes, others.get("width", 4))
"""


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module with classes of many kinds, importable as `odd_networks`."""
    (tmp_path / "odd_networks.py").write_text(ODD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "odd_networks", raising=False)
    try_out.cache_clear()
    import odd_networks

    return odd_networks


def spec(target: str, size: int = 32, **arguments: Any) -> NetworkSpec:
    return NetworkSpec(target, 3, 2, size, arguments=arguments)


@pytest.mark.parametrize(
    ("target", "segments", "arguments"),
    [
        (SEGRESNET, True, {"init_filters": 8, "blocks_down": [1, 1], "blocks_up": [1]}),
        ("monai.networks.nets.BasicUNet", True, {"features": [8, 8, 8, 8, 8, 8]}),
        (DENSENET, False, {"init_features": 8, "growth_rate": 4, "block_config": [1, 1]}),
    ],
)
def test_monais_networks_are_built_for_the_federation(
    target: str, segments: bool, arguments: dict[str, Any]
):
    whole = spec(target, **arguments)
    try_out(whole, segments)
    shape = build_network(whole)(torch.rand(2, 3, 32, 32)).shape
    assert shape == ((2, 2, 32, 32) if segments else (2, 2))


def test_names_of_channels_are_filled_in_unless_they_are_given(odd: Any):
    net = build_network(spec("odd_networks.Fine")).net
    assert (net.body.in_channels, net.head.out_features) == (3, 2)
    net = build_network(spec("odd_networks.Fine", n_channels=1, classes=5, width=7)).net
    assert (net.body.in_channels, net.head.out_features, net.head.in_features) == (1, 5, 7)
    assert build_network(spec("odd_networks.Anything", width=6)).net.head.in_features == 6


REFUSED: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "no package": ("nowhere_at_all.Net", {}, ["nowhere_at_all cannot be imported", "install"]),
    "no path": ("odd_networks.Fi-ne", {}, ["not the path of a class"]),
    "no such class": ("odd_networks.Fien", {}, ["odd_networks has no Fien; did you mean Fine?"]),
    "a function": ("odd_networks.function", {}, ["it is no class of networks"]),
    "another class": ("odd_networks.NoNetwork", {}, ["it is no class of networks"]),
    "a number": ("odd_networks.VALUE", {}, ["it is no class of networks"]),
    "unknown argument": (
        "odd_networks.Fine",
        {"widht": 3},
        ["network.widht: Fine has no such argument; did you mean width? allowed here: classes, "],
    ),
    "missing argument": (
        "torch.nn.Bilinear",
        {},
        ["Bilinear is built with more (missing a required argument: 'in1_features')"],
    ),
    "fails": (
        "odd_networks.Fails",
        {},
        ["cannot be built with these arguments (ValueError: three layers at least)"],
    ),
    "wrong type": ("odd_networks.Fine", {"width": "wide"}, ["cannot be built", "TypeError"]),
    "two answers": ("odd_networks.Two", {}, ["it gives a tuple, and not one tensor"]),
    "wrong outputs": (
        "odd_networks.Fine",
        {"classes": 4},
        ["it gives [1, 4], this task needs logits of [1, 2]"],
    ),
    "wrong channels": (
        "odd_networks.Fine",
        {"n_channels": 1},
        ["it does not take 1 image of 3 x 32 x 32 in training (RuntimeError: "],
    ),
    "nothing to train": ("odd_networks.Nothing", {}, ["it has no parameter to train"]),
    "no head": ("odd_networks.NoHead", {}, ["no convolution and no linear layer as head"]),
    "more than one image": (
        "odd_networks.Batched",
        {},
        ["1 image of 3 x 32 x 32 in training (ValueError: Expected more than 1 value"],
    ),
    "shared weights": ("odd_networks.Tied", {}, ["its weights cannot be exchanged"]),
    "hidden buffers": ("odd_networks.Hidden", {}, ["its weights cannot be exchanged"]),
    "head first": (
        "odd_networks.Backwards",
        {},
        ["defined last, net.body, but net.head runs last"],
    ),
}


@pytest.mark.parametrize(("target", "arguments", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_trained_is_refused_with_its_key(
    odd: Any, target: str, arguments: dict[str, Any], words: list[str]
):
    with pytest.raises(ConfigError) as caught:
        try_out(spec(target, **arguments), False)
    assert str(caught.value).startswith("network.")
    for word in words:
        assert word in str(caught.value)
    assert odd.called == []


def test_a_classifier_is_no_segmenter(odd: Any):
    with pytest.raises(ConfigError, match=r"gives \[1, 2\], this task needs logits of \[1, 2, 32"):
        try_out(spec("odd_networks.Fine"), True)


def test_a_trial_changes_no_random_number(odd: Any):
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    try_out(spec("odd_networks.Fine", width=9), False)
    assert torch.equal(torch.rand(2), expected)


def test_a_target_survives_json_and_draws_by_its_path():
    whole = spec(SEGRESNET, init_filters=8, blocks_down=[1, 1])
    again = NetworkSpec.from_json(whole.to_json())
    assert again == whole
    assert again != spec(SEGRESNET)
    assert "init_filters" not in repr(whole)
    assert "arguments" not in NetworkSpec("unet", 3, 2, 32).to_json()


# What methods ask of it


def test_features_of_a_classifier_are_what_its_head_sees(odd: Any):
    net, images = build_network(spec("odd_networks.Fine")).eval(), torch.rand(3, 3, 32, 32)
    logits, features = net.with_features(images)
    assert torch.equal(logits, net(images))
    assert torch.equal(net.get_submodule(head_module(net))(features), logits)


def test_features_of_a_segmenter_are_of_its_smallest_grid():
    net = build_network(spec(SEGRESNET, init_filters=8, blocks_down=[1, 1, 1], blocks_up=[1, 1]))
    images = torch.rand(3, 3, 32, 32)
    logits, features = net.eval().with_features(images)
    assert torch.equal(logits, net(images))
    assert features.shape == (3, 32)  # 8 channels, doubled twice
    assert all(not module._forward_hooks for module in net.modules())
    features.sum().backward()
    assert net.net.convInit.conv.weight.grad is not None
    assert net.net.up_layers[0][0].conv1.conv.weight.grad is None


def test_positions_of_a_transformer_are_averaged():
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 2))
    x = torch.rand(3, 7, 4)
    with Watched(net) as watched:
        net(x)
    assert torch.allclose(watched.bottleneck, net[0](x).mean(dim=1))
    assert watched.last == "1"


# In a plan


TARGET = {"target": SEGRESNET, "init_filters": 8, "blocks_down": [1, 1], "blocks_up": [1]}


def test_a_plan_carries_it(make_plan: Callable[..., Plan]):
    plan = make_plan(network=TARGET)
    assert plan.resolved()["network"] == TARGET
    facts = plan.to_json()
    assert Plan.from_json(facts).hash == plan.hash
    assert make_plan(network=TARGET | {"init_filters": 16}).hash != plan.hash
    network = plan.context(plan.jobs[0], plan.sites).network
    assert (network.name, network.in_channels, network.outputs) == (SEGRESNET, 3, 1)


def test_a_plan_with_a_wrong_one_is_refused(make_plan: Callable[..., Plan]):
    with pytest.raises(ConfigError, match=r"'monai.networks.nets.SegResNet': it gives \[1, 7, "):
        make_plan(network=TARGET | {"out_channels": 7})


def test_training_waits_neither_for_monai_nor_for_torchs_compiler():
    """Every worker process would pay seconds for them."""
    code = """
import sys
import torch
import konsil.federation.engines.processes
from konsil.config import TaskConfig, TrainingConfig
from konsil.ingredients.learner import Learner
from konsil.networks import NETWORKS, NetworkSpec, build_network
from konsil.tasks import TASKS, make_task
from konsil.weights import BoundNetwork
assert NETWORKS.all() and TASKS.all()
task, net = make_task(TaskConfig(), ["disc"]), build_network(NetworkSpec("unet", 1, 1, 32))
for kind in ("adam", "adamw", "sgd"):
    learner = Learner(BoundNetwork(net), TrainingConfig(optimizer=kind, clip=1))
    learner.step(task.loss(learner(torch.rand(1, 1, 32, 32)), torch.ones(1, 1, 32, 32)))
print({"monai", "torch._dynamo", "sympy", "scipy", "sklearn"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_who_reads_an_experiment_or_lists_a_federation_does_not_wait_for_torch():
    code = (
        "import sys, konsil.config, konsil.data.origin, konsil.tasks; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_name_is_no_path_and_a_path_no_name():
    with pytest.raises(ConfigError, match=r"unknown network 'SegResNet'"):
        check_spec(spec("SegResNet"))
