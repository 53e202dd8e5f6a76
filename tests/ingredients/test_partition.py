import re

import pytest
import torch
from torch import nn

from konsil import testing as toy
from konsil.errors import ConfigError
from konsil.ingredients.partition import head_entries, norm_entries, norm_statistics
from konsil.networks import NetworkSpec, build_network, decoder_of
from konsil.weights import Layout

NETWORKS = [
    *(("unet", norm) for norm in ("instance", "batch", "group")),
    *(("unet_classic", norm) for norm in ("instance", "batch", "group")),
    ("unet_resenc", "batch"),
    *(("small", norm) for norm in ("instance", "batch", "group")),
    ("resnet18", "batch"),
    ("vgg11_pooled", None),
]


def spec(name: str, norm: str | None) -> NetworkSpec:
    return NetworkSpec(name, 3, 2, 64, norm=norm)


def built(name: str, norm: str | None) -> nn.Module:
    return build_network(spec(name, norm))


def head_of(head: str, name: str, norm: str | None) -> frozenset[str]:
    return head_entries(Layout.of(built(name, norm)), head, spec(name, norm))


@pytest.mark.parametrize(("name", "norm"), NETWORKS)
def test_norm_layers_are_found_by_their_type(name, norm):
    net = built(name, norm)
    kinds = (nn.BatchNorm2d, nn.GroupNorm, nn.InstanceNorm2d)
    layers = {path: m for path, m in net.named_modules() if isinstance(m, kinds)}
    expected = {f"{path}.{n}" for path, m in layers.items() for n in m.state_dict()}
    trained = {f"{path}.{n}" for path, m in layers.items() for n, _ in m.named_parameters()}
    layout = Layout.of(net)
    assert norm_entries(layout) == expected
    assert norm_statistics(layout) == expected - trained
    assert bool(expected) == ((name, norm) not in [("unet", "instance"), ("vgg11_pooled", None)])
    assert bool(norm_statistics(layout)) == (norm == "batch")


@pytest.mark.parametrize(("name", "norm"), NETWORKS)
def test_the_last_layer_is_the_head(name, norm):
    net = built(name, norm)
    outputs = {n for n, p in net.named_parameters() if n in head_of("last", name, norm)}
    assert len(outputs) == 2  # weight and bias, with one row an output
    assert all(dict(net.named_parameters())[n].shape[0] == 2 for n in outputs)
    assert head_of("none", name, norm) == frozenset()


def test_a_head_by_regular_expression():
    layout = Layout.of(built("unet", "batch"))
    block = head_of(r"^net\.model\.2\.", "unet", "batch")
    assert block == {e.name for e in layout.entries if e.name.startswith("net.model.2.")}
    assert any(name.endswith("running_mean") for name in block)
    assert block > head_of("last", "unet", "batch")


@pytest.mark.parametrize("norm", ["instance", "batch", "group"])
@pytest.mark.parametrize("name", ["unet", "unet_classic", "unet_resenc"])
def test_the_decoder_of_a_unet_by_what_runs(name, norm):
    """Its last level, too; the bottom and all above it are the encoder."""
    decoder, level, last = (head_of(head, name, norm) for head in ("decoder", "level", "last"))
    assert decoder > level > last
    every = {e.name for e in Layout.of(built(name, norm)).entries}
    if name == "unet":  # MONAI nests: every level's third block is its way up
        assert decoder == {n for n in every if re.match(r"net\.model\.(1\.submodule\.){0,3}2\.", n)}
        assert level == {n for n in every if n.startswith("net.model.2.")}
    else:
        assert decoder == {n for n in every if re.match(r"net\.(grow|up|head)\.", n)}
        assert level == {n for n in every if re.match(r"net\.(grow\.3|up\.3|head)\.", n)}


@pytest.mark.parametrize("head", ["decoder", "level"])
def test_a_network_without_a_decoder_has_its_last_layer_as_head(head):
    assert head_of(head, "resnet18", "batch") == head_of("last", "resnet18", "batch")


def test_finding_a_decoder_draws_nothing():
    decoder_of.cache_clear()
    before = torch.get_rng_state()
    decoder_of(spec("unet", "batch"))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_plan_says_how_large_the_head_is(make_plan):
    plan = make_plan(methods=["fedper", {"name": "fedper", "label": "all", "head": "none"}])
    fedper, all_ = (plan.method(job) for job in plan.jobs)
    layout = fedper.composition[0].initial.layout
    stays = layout.only(fedper.composition[0].own).trainable
    assert fedper.warnings() == [
        f"the head has {stays:,} of {layout.trainable:,} parameters; they stay at the site"
    ]
    assert all_.warnings() == []


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        ("nonsense", "nothing that is trained"),
        ("running_mean", "nothing that is trained"),
        ("net", "everything"),
        ("weight|bias", "everything"),  # statistics alone are no body
        ("(", "regular expression"),
    ],
)
@pytest.mark.parametrize("method", ["fedper", "fedrep", "fedbabu"])
def test_what_is_no_head_is_refused_before_round_1(make_plan, method, head, problem):
    blocks = {"network": {"name": "unet", "width": 2, "norm": "batch"}}
    with pytest.raises(ConfigError) as error:
        make_plan(methods=[{"name": method, "head": head}], **blocks)
    text = str(error.value)
    assert text.startswith(f"methods.{method}.head = {head!r}: ")
    assert problem in text
    assert head == "(" or ".weight" in text  # examples of names


@pytest.mark.parametrize("method", ["fedbn", "silobn", "fedper", "fedrep", "fedbabu"])
def test_own_and_shared_entries_are_the_whole_network(make_plan, tmp_path, method):
    """What travels is smaller by what stays, in both directions; the answer is whole."""
    plan = make_plan(
        methods=[method], network={"name": "unet", "width": 2, "norm": "batch"}, rounds=1
    )
    server = toy.server(plan, tmp_path)
    sent = server.method.sent("north", server.record.shared)
    server._round(1)
    state = toy.state_of(plan, tmp_path, "north")
    size = server.method.composition[0].initial.layout.size
    own = state.private["global.own"].layout
    assert 0 < own.size < size
    assert [part.layout.size for part in sent.values()] == [size - own.size]
    assert [part.layout.size for part in state.upload.values()] == [size - own.size]
    assert state.best["personal"].layout.key == server.method.composition[0].initial.layout.key
