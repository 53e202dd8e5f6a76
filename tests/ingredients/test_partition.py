import pytest
from torch import nn

from konsil import testing as toy
from konsil.errors import ConfigError
from konsil.ingredients.partition import head_entries, norm_entries, norm_statistics
from konsil.networks import NetworkSpec, build_network
from konsil.weights import Layout

NETWORKS = [
    *(("unet", norm) for norm in ("instance", "batch", "group")),
    *(("unet_classic", norm) for norm in ("instance", "batch", "group")),
    *(("small", norm) for norm in ("instance", "batch", "group")),
    ("resnet18", "batch"),
    ("vgg11_pooled", None),
]


def built(name: str, norm: str | None) -> nn.Module:
    return build_network(NetworkSpec(name, 3, 2, 64, norm=norm))


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
    layout = Layout.of(net)
    outputs = {n for n, p in net.named_parameters() if n in head_entries(layout, "last")}
    assert len(outputs) == 2  # weight and bias, with one row an output
    assert all(dict(net.named_parameters())[n].shape[0] == 2 for n in outputs)
    assert head_entries(layout, "none") == frozenset()


def test_a_head_by_regular_expression():
    layout = Layout.of(built("unet", "batch"))
    block = head_entries(layout, r"^net\.model\.2\.")
    assert block == {e.name for e in layout.entries if e.name.startswith("net.model.2.")}
    assert any(name.endswith("running_mean") for name in block)
    assert block > head_entries(layout, "last")


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
