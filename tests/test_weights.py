from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from konsil.errors import StateError
from konsil.networks import NetworkSpec, build_network
from konsil.weights import (
    SMALLEST_VARIANCE,
    BoundNetwork,
    Layout,
    WeightedMean,
    Weights,
    mix,
)

quickly = settings(max_examples=40, deadline=None)
FLOATS = st.floats(-(2.0**100), 2.0**100, width=32)
VECTORS = st.lists(FLOATS, min_size=1, max_size=20)
# two trainable values, one of each running statistic, one counter
SMALL = Layout.build(
    [
        ("n.num_batches_tracked", (), "counter", "norm"),
        ("n.running_mean", (1,), "statistic", "norm"),
        ("w", (2,), "trainable", "body"),
        ("n.running_var", (1,), "statistic", "norm"),
    ]
)


def small(*values: float) -> Weights:
    """w, w, running mean, running variance, counter."""
    return Weights(SMALL, torch.tensor(values, dtype=torch.float32))


def vector(values: list[float]) -> Weights:
    layout = Layout.build([("w", (len(values),), "trainable", "body")])
    return Weights(layout, torch.tensor(values, dtype=torch.float32))


def network(name: str = "small", norm: str | None = "batch", seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    width = 2 if name == "unet" else None
    return build_network(NetworkSpec(name, 3, 2, 64, norm, width=width))


def images(count: int = 4, size: int = 64) -> Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(1))


# Layout


def test_trainable_values_come_first_then_statistics_then_counters():
    assert [e.name for e in SMALL.entries] == [
        "w",
        "n.running_mean",
        "n.running_var",
        "n.num_batches_tracked",
    ]
    assert (SMALL.size, SMALL.trainable) == (5, 2)
    assert (SMALL.statistics, SMALL.counters) == (slice(2, 4), slice(4, 5))
    assert SMALL.variances == (slice(3, 4),)


def test_a_networks_layout_holds_its_whole_state_and_nothing_else():
    net = network("resnet18")
    layout = Layout.of(net)
    assert {e.name: e.shape for e in layout.entries} == {
        name: tuple(value.shape) for name, value in net.state_dict().items()
    }
    assert layout.trainable == sum(p.numel() for p in net.parameters())
    kinds = [e.kind for e in layout.entries]
    assert kinds == sorted(kinds, key=("trainable", "statistic", "counter").index)


@pytest.mark.parametrize(
    ("name", "hidden", "layers"), [("resnet18", "shortcut", 20), ("unet", "adn", 17)]
)
def test_norm_layers_are_found_by_type_and_not_by_name(name: str, hidden: str, layers: int):
    net = network(name, "batch")
    norms = {path for path, m in net.named_modules() if isinstance(m, nn.BatchNorm2d)}
    assert len(norms) == layers
    assert any(hidden in path for path in norms)  # names that say nothing of normalisation
    found = {e.name for e in Layout.of(net).entries if e.group == "norm"}
    entries = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert found == {f"{path}.{entry}" for path in norms for entry in entries}


@pytest.mark.parametrize("name", ["resnet18", "unet"])
def test_the_head_is_the_last_layer_with_weight_and_bias(name: str):
    head = [e for e in Layout.of(network(name)).entries if e.group == "head"]
    assert [e.name.rpartition(".")[2] for e in head] == ["weight", "bias"]
    assert head[0].shape[0] == 2  # the outputs
    assert head[1].shape == (2,)


def test_spans_cover_each_value_once_and_join_neighbours():
    layout = Layout.build(
        [
            ("a", (2,), "trainable", "body"),
            ("b", (3,), "trainable", "body"),
            ("c", (1,), "trainable", "norm"),
            ("d", (2,), "trainable", "head"),
            ("e", (4,), "statistic", "norm"),
        ]
    )
    assert layout.spans("ab") == (slice(0, 5),)
    assert layout.spans("ce") == (slice(5, 6), slice(8, 12))
    assert layout.spans("abce") == (slice(0, 6), slice(8, 12))
    assert layout.spans("abcde") == (slice(0, 12),)
    assert layout.spans("") == ()
    assert [(e.name, e.start) for e in layout.only("bd").entries] == [("b", 0), ("d", 3)]


def test_a_layout_survives_json_and_any_difference_changes_its_key():
    layout = Layout.of(network())
    assert Layout.from_json(layout.to_json()) == layout
    assert Layout.from_json(layout.to_json()).key == layout.key
    rows = SMALL.to_json()
    for place, value in [(0, "v"), (1, [1, 2]), (3, "head")]:
        changed = [list(row) for row in rows]
        changed[0][place] = value
        assert Layout.from_json(changed).key != SMALL.key


# Arithmetic


def test_weights_must_fit_their_layout():
    with pytest.raises(StateError, match=r"\(4,\).*5 float32"):
        Weights(SMALL, torch.zeros(4))
    with pytest.raises(StateError, match="float64"):
        Weights(SMALL, torch.zeros(5, dtype=torch.float64))


def test_arithmetic_by_hand():
    a, b = small(1, 2, 3, 4, 5), small(10, 20, 30, 40, 2)
    # statistics are means of what is added; the counter is the larger one
    assert (a + b).flat.tolist() == [11, 22, 16.5, 22, 5]
    assert (b - a).flat.tolist() == [9, 18, 30, 40, 5]
    assert (a - b).flat.tolist() == [-9, -18, 3, 4, 5]
    assert (2 * a).flat.tolist() == [2, 4, 3, 4, 5]
    assert a.flat.tolist() == [1, 2, 3, 4, 5]


def test_norm_dot_and_cosine_look_at_trainable_values_only():
    a, b = small(3, 4, 100, 100, 100), small(4, 3, -7, 7, 7)
    assert a.norm() == 5
    assert a.dot(b) == 24
    assert a.cosine(b) == pytest.approx(24 / 25, abs=1e-15)
    assert a.cosine(small(0, 0, 1, 1, 1)) == 0


def test_take_and_statistics_by_hand():
    a, b = small(1, 2, 3, 4, 5), small(10, 20, 30, 40, 50)
    norm = {e.name for e in a.layout.entries if e.group == "norm"}
    assert b.only(norm).flat.tolist() == [30, 40, 50]
    assert a.replaced(b.only(norm)).flat.tolist() == [1, 2, 30, 40, 50]
    assert a.replaced(b.only({"w"})).flat.tolist() == [10, 20, 3, 4, 5]
    assert a.replaced(b.only(set())).equals(a)
    assert a.with_statistics_of(b).flat.tolist() == [1, 2, 30, 40, 50]
    assert a["w"].tolist() == [1, 2]
    with pytest.raises(KeyError):
        a["other"]


def test_a_clone_shares_nothing_and_an_entry_is_a_view():
    a = small(1, 2, 3, 4, 5)
    copy = a.clone()
    a["w"][0] = 7
    assert a.flat[0] == 7
    assert copy.flat[0] == 1
    assert not a.equals(copy)


def test_statistics_are_extrapolated_only_by_name_and_variances_stay_positive():
    low, high = small(1, 1, 1, 0, 3), small(0, 0, 0, 5, 9)
    between = mix([(0.5, low), (0.5, low)], extrapolate=True)
    assert between["n.running_var"].item() == 0  # kept as it is
    beyond = mix([(1.5, low), (-0.5, high)], extrapolate=True)
    assert beyond.flat.tolist() == [1.5, 1.5, 1.5, np.float32(SMALLEST_VARIANCE), 9]


@pytest.mark.parametrize(
    ("factors", "variance"),
    [((1.5, -0.5), 2), ((-1, 2), 6), ((1, 1), 4), ((1, -1), 2), ((2, 0), 2), ((3, 1), 3),
     ((-1, -1), 4), ((0.25, 0.75), 5)],
)  # fmt: skip
def test_statistics_of_a_mixture_are_a_mean_by_the_positive_factors(factors, variance):
    a, b = small(1, 1, 1, 2, 3), small(0, 0, 0, 6, 9)
    mixed = mix(list(zip(factors, (a, b), strict=True)))
    assert mixed.trainable.tolist() == [factors[0]] * 2
    assert mixed["n.running_var"].item() == variance
    assert mixed.flat[-1] == 9


def test_sums_and_differences_of_models_leave_statistics_that_images_have():
    """A step of FedDyn and the like: w + 2 (mean - w), and mean - h / alpha."""
    w, mean = small(1, 1, 1, 2, 3), small(3, 3, 3, 6, 9)
    step = w + 2 * (mean - w)
    assert step.trainable.tolist() == [5, 5]
    assert 2 <= step["n.running_var"].item() <= 6
    assert (mean - 10 * (w - mean))["n.running_var"].item() == 6


@quickly
@given(VECTORS, st.floats(0, 1))
def test_a_mixture_of_weights_with_themselves_is_the_weights(values: list[float], share: float):
    x = vector(values)
    mixed = mix([(share, x), (1 - share, x)])
    assert torch.allclose(mixed.flat, x.flat, rtol=1e-6, atol=0)


@quickly
@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=20), st.floats(0, 1))
def test_a_mixture_equals_numpys(pairs: list[tuple[float, float]], share: float):
    a, b = (vector([float(p[i]) for p in pairs]) for i in (0, 1))
    expected = share * a.flat.double().numpy() + (1 - share) * b.flat.double().numpy()
    size = np.abs(a.flat.double().numpy()) + np.abs(b.flat.double().numpy())
    error = np.abs(mix([(share, a), (1 - share, b)]).flat.double().numpy() - expected)
    assert (error <= 1e-6 * size + 1e-44).all()


# The mean


def mean(*terms: tuple[float, Weights]) -> Weights:
    total = WeightedMean(terms[0][1].layout)
    for weight, weights in terms:
        total.add(weights, weight)
    return total.result()


def test_the_mean_of_two_sites_by_hand():
    result = mean((1, small(0, 4, 1, 2, 7)), (3, small(8, 0, 5, 6, 3)))
    assert result.flat.tolist() == [6, 1, 4, 5, 7]  # (0 + 3 * 8) / 4, ...; counters: maximum


@quickly
@given(VECTORS, st.floats(1e-3, 1e6))
def test_the_mean_of_one_is_itself_bit_for_bit(values: list[float], weight: float):
    x = vector(values)
    assert mean((weight, x)).equals(x)


@quickly
@given(st.lists(st.tuples(st.floats(0.01, 1000), FLOATS), min_size=1, max_size=8))
def test_a_mean_lies_between_smallest_and_largest(terms: list[tuple[float, float]]):
    result = mean(*((weight, vector([value])) for weight, value in terms)).flat.item()
    values = [value for _, value in terms]
    assert np.float32(min(values)) <= result <= np.float32(max(values))


@quickly
@given(
    st.lists(st.tuples(st.integers(1, 500), st.lists(FLOATS, min_size=3, max_size=3)), min_size=1)
)
def test_a_mean_equals_numpys_in_double_precision(terms: list[tuple[int, list[float]]]):
    weights = np.array([w for w, _ in terms], dtype=np.float64)
    values = np.array([np.float32(v) for _, v in terms], dtype=np.float64)
    expected = (weights @ values) / weights.sum()
    result = mean(*((w, vector(v)) for w, v in terms)).flat.double().numpy()
    error = np.abs(result - expected)  # below a float32's rounding, also where terms cancel
    assert (error <= 1e-7 * np.abs(expected) + 1e-13 * np.abs(values).max(axis=0) + 1e-45).all()


@quickly
@given(st.lists(FLOATS, min_size=4, max_size=4), st.floats(-100, 100), st.integers(1, 9))
def test_a_mean_is_linear(values: list[float], factor: float, weight: int):
    a, b = vector(values[:2]), vector(values[2:])
    left = (mean((1, a), (weight, b)) * factor).flat
    right = mean((1, a * factor), (weight, b * factor)).flat
    size = abs(factor) * max(map(abs, values))
    assert torch.allclose(left, right, rtol=1e-5, atol=1e-6 * size + 1e-44)


def test_a_mean_runs_in_the_order_of_the_calls():
    big, small_one = vector([2.0**60]), vector([2.0**-10])
    minus = vector([-(2.0**60)])
    assert mean((1, big), (1, minus), (1, small_one)).flat.item() > 0
    assert mean((1, big), (1, small_one), (1, minus)).flat.item() == 0  # lost beside 2**60


def test_a_mean_is_the_same_across_a_chunk_boundary(monkeypatch: pytest.MonkeyPatch):
    a, b = (vector(torch.randn(103).tolist()) for _ in range(2))
    whole = mean((2, a), (3, b))
    monkeypatch.setattr(WeightedMean, "CHUNK", 10)
    assert mean((2, a), (3, b)).equals(whole)


# Bound networks


def test_a_bound_network_is_its_flat_buffer_in_both_directions():
    net, x = network(), images()
    bound = BoundNetwork(net)
    net.eval()
    before = net(x)
    bound.trainable[-1] += 1  # the bias of the last output
    after = net(x)
    assert torch.allclose(after[:, 1], before[:, 1] + 1, atol=1e-6)
    assert torch.equal(after[:, 0], before[:, 0])
    with torch.no_grad():
        next(net.parameters()).fill_(0.25)
    assert (bound.flat[: next(net.parameters()).numel()] == 0.25).all()


def test_gradients_accumulate_in_the_flat_gradient():
    net, twin, x = network(), network(), images()
    bound = BoundNetwork(net)
    net(x).square().sum().backward()
    twin(x).square().sum().backward()
    expected = torch.cat([p.grad.reshape(-1) for p in twin.parameters()])
    assert torch.equal(bound.grad, expected)
    net(x).square().sum().backward()
    assert torch.allclose(bound.grad, 2 * expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(("name", "norm"), [("small", "batch"), ("unet", "batch"), ("unet", None)])
def test_a_loaded_network_answers_like_load_state_dict(name: str, norm: str | None):
    trained, plain, x = network(name, norm, seed=1), network(name, norm, seed=2), images()
    for _ in range(3):
        trained(x)  # moves running statistics and counters
    bound = BoundNetwork(network(name, norm, seed=3))
    bound.load(Weights.of(trained))
    plain.load_state_dict(trained.state_dict())
    for mode in (True, False, True):  # training mode moves the statistics of both
        assert torch.equal(bound.net.train(mode)(x), plain.train(mode)(x))
    state = bound.net.state_dict()
    assert all(torch.equal(value, state[n]) for n, value in plain.state_dict().items())


def test_statistics_and_counters_make_the_round_trip():
    bound = BoundNetwork(network())
    for _ in range(5):
        bound.net(images())
    weights = bound.weights()
    counters = weights.flat[weights.layout.counters]
    assert len(counters) == 4
    assert (counters == 5).all()
    assert weights.equals(Weights.of(bound.net))
    fresh = BoundNetwork(network(seed=9))
    fresh.load(weights)
    assert fresh.weights().equals(weights)
    assert all(m.num_batches_tracked == 5 for m in fresh.norm_layers())
    fresh.net(images())
    assert (fresh.weights().flat[weights.layout.counters] == 6).all()


def test_what_is_read_from_a_network_does_not_change_with_it():
    bound = BoundNetwork(network())
    weights = bound.weights()
    bound.flat.fill_(0)
    assert weights.norm() > 0


def test_weights_of_another_network_are_refused():
    bound = BoundNetwork(network("small", "batch"))
    with pytest.raises(StateError, match="another network"):
        bound.load(Weights.of(network("small", "group")))


# Files


def trained_weights() -> Weights:
    net = network()
    net(images())
    return Weights.of(net)


def test_a_file_gives_the_weights_back_bit_for_bit(tmp_path: Path):
    weights = trained_weights()
    weights.save(tmp_path / "w.safetensors", role="global")
    assert Weights.load(tmp_path / "w.safetensors").equals(weights)


def test_a_file_is_an_ordinary_state_dict_to_others(tmp_path: Path):
    net = network()
    net(images())
    Weights.of(net).save(tmp_path / "w.safetensors")
    tensors, state = load_file(tmp_path / "w.safetensors"), net.state_dict()
    assert set(tensors) == set(state)
    for name, value in state.items():
        assert tensors[name].dtype == value.dtype
        assert torch.equal(tensors[name], value)
    assert any(t.dtype == torch.int64 for t in tensors.values())
    network(seed=5).load_state_dict(tensors)  # strict


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def cut_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5])


def no_layout(path: Path) -> None:
    save_file({"w": torch.zeros(3)}, path)


def no_entry(path: Path) -> None:
    save_file({"v": torch.zeros(3)}, path, {"layout": '[["w", [3], "trainable", "body"]]'})


def other_size(path: Path) -> None:
    save_file({"w": torch.zeros(4)}, path, {"layout": '[["w", [3], "trainable", "body"]]'})


@pytest.mark.parametrize("damage", [cut, cut_header, no_layout, no_entry, other_size, Path.unlink])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, damage: Callable[[Path], None]):
    path = tmp_path / "global.safetensors"
    trained_weights().save(path)
    damage(path)
    with pytest.raises(StateError, match=r"global\.safetensors"):
        Weights.load(path)
