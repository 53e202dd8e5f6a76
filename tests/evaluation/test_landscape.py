"""The loss around models and between them, against arithmetic on quadratics."""

from math import sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from konsil.data import Images
from konsil.errors import RunError
from konsil.evaluation.landscape import (
    Plane,
    Spot,
    barrier,
    between,
    bowl,
    distances,
    height,
    moved,
    unit_direction,
)
from konsil.testing.linear import Regression
from konsil.weights import BoundNetwork, Layout, Weights

TASK = Regression()
LAYOUT = Layout.build([("weight", (3,), "trainable", "body"), ("running_mean", (1,), "statistic",
                       "norm"), ("count", (), "counter", "norm")])  # fmt: skip


def w(*values: float) -> Weights:
    return Weights(LAYOUT, torch.tensor(values, dtype=torch.float32))


def images() -> Images:
    """Two points whose inputs are (1, 0) and (0, 1), targets 0 and 1; a byte 255 is 1."""
    x = torch.tensor([[255, 0], [0, 255]], dtype=torch.uint8)
    return Images(x, torch.tensor([[0], [1]], dtype=torch.uint8))


class Plain(nn.Module):
    """y = w x: the loss is ((w1 - 0)^2 + (w2 - 1)^2) / 2, its Hessian the identity."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1, bias=False)

    def forward(self, x):
        return self.layer(x)


class Product(nn.Module):
    """y = u v x of two numbers: (1, 1) and (-1, -1) are the same function, (0, 0) is another."""

    def __init__(self) -> None:
        super().__init__()
        self.u, self.v = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)

    def forward(self, x):
        return self.v(self.u(x))


def of(net: nn.Module, *values: float) -> Weights:
    return Weights(Layout.of(net), torch.tensor(values))


# --- heights --------------------------------------------------------------------------------------


def test_loss_and_score_by_hand():
    bound = BoundNetwork(Plain())
    found = height(bound, of(bound.net, 3.0, 2.0), TASK, images())
    assert found.loss == (9 + 1) / 2
    assert found.score == 1 - (9 + 1) / 2  # the regression's score is one minus its loss


def test_the_loss_is_a_mean_over_images_however_they_are_parted():
    """Seventeen images are a batch of sixteen and one alone."""
    x = torch.zeros(17, 2, dtype=torch.uint8)
    x[16] = 255
    many = Images(x, torch.zeros(17, 1, dtype=torch.uint8))
    bound = BoundNetwork(Plain())
    assert height(bound, of(bound.net, 1.0, 2.0), TASK, many).loss == pytest.approx(9 / 17)


def test_the_network_answers_as_in_evaluation_and_learns_nothing():
    net = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
    bound = BoundNetwork(net)
    bound.mode(training=True)
    before = bound.weights()
    height(bound, before, TASK, images())
    assert bound.weights().equals(before)


# --- along random directions ----------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(size=st.integers(1, 5000), seed=st.integers(0, 99), number=st.integers(0, 99))
def test_directions_have_length_one_and_are_the_same_for_all(size, seed, number):
    u = unit_direction(size, seed, number)
    assert float(u.double().norm()) == pytest.approx(1, abs=1e-6)
    assert torch.equal(u, unit_direction(size, seed, number))


def test_another_seed_or_number_is_another_direction():
    u, by_seed, by_number = (unit_direction(1000, *of) for of in ((0, 0), (1, 0), (0, 1)))
    assert abs(float(u @ by_seed)) < 0.2
    assert abs(float(u @ by_number)) < 0.2


def test_running_statistics_stay():
    there = moved(w(1, 2, 3, 4, 5), torch.tensor([1.0, 0, -1]), 2)
    assert there.flat.tolist() == [3, 2, 1, 4, 5]


def test_the_places_on_a_direction():
    assert distances(2.0, 5) == [-2, -1, 0, 1, 2]


@pytest.mark.parametrize("t", [0.5, 2.0])
def test_along_an_eigenvector_the_loss_rises_by_half_the_eigenvalue_times_t_squared(t):
    """Inputs (1, 0), (0, 1), (0, 1): the Hessian is diag(2/3, 4/3)."""
    x = torch.tensor([[255, 0], [0, 255], [0, 255]], dtype=torch.uint8)
    data = Images(x, torch.tensor([[0], [1], [1]], dtype=torch.uint8))
    bound = BoundNetwork(Plain())
    lowest = of(bound.net, 0.0, 1.0)
    for eigenvector, eigenvalue in (((1.0, 0.0), 2 / 3), ((0.0, 1.0), 4 / 3)):
        u = torch.tensor(eigenvector)
        at = {s: height(bound, moved(lowest, u, s), TASK, data).loss for s in (-t, 0.0, t)}
        assert at[0.0] == 0
        assert at[t] == pytest.approx(eigenvalue / 2 * t**2, rel=1e-6)
        found = bowl([at])
        assert found.rise == pytest.approx(eigenvalue / 2 * t**2, rel=1e-6)
        assert found.curvature == pytest.approx(eigenvalue, rel=1e-6)


def test_a_bowl_by_hand():
    """Two directions: one bends upwards, one is a slope."""
    bent = {-2.0: 9.0, -1.0: 6.0, 0.0: 5.0, 1.0: 6.0, 2.0: 11.0}
    slope = {-2.0: 3.0, -1.0: 4.0, 0.0: 5.0, 1.0: 6.0, 2.0: 7.0}
    found = bowl([bent, slope])
    assert found.loss == 5
    assert list(found.rises) == [5, 0]  # the mean of both ends minus the middle
    assert found.rise == 2.5
    assert found.curvature == 1  # of (6 + 6 - 10) / 1 and 0


# --- between two models ---------------------------------------------------------------------------


def test_the_ends_of_a_line_are_the_models_bit_for_bit():
    a, b = w(0.1, 1 / 3, -7, 0.3, 5), w(0.7, 1e-9, 3, 0.9, 5)
    assert between(a, b, 0.0).equals(a)
    assert between(a, b, 1.0).equals(b)


def test_a_quarter_of_the_way():
    found = between(w(0, 4, 8, 2, 3), w(4, 0, 8, 6, 7), 0.25)
    assert found.flat.tolist() == [1, 3, 8, 3, 7]  # statistics are a mean, a counter the larger


@settings(max_examples=20, deadline=None)
@given(ends=st.lists(st.floats(-3, 3, width=32), min_size=4, max_size=4))
def test_a_convex_loss_has_no_barrier(ends):
    bound = BoundNetwork(Plain())
    a, b = of(bound.net, *ends[:2]), of(bound.net, *ends[2:])
    shares = [place / 8 for place in range(9)]
    found = barrier({t: height(bound, between(a, b, t), TASK, images()).loss for t in shares})
    assert 0 <= found.value < 1e-5  # rounding


def test_between_two_minima_there_is_one():
    """(1, 1) and (-1, -1) both say y = x; half-way the answer is 0 and the loss that of no model:
    at share t it is ((1 - 2t)^2 - 1)^2."""
    data = Images(torch.tensor([[255]], dtype=torch.uint8), torch.tensor([[1]], dtype=torch.uint8))
    bound = BoundNetwork(Product())
    a, b = of(bound.net, 1.0, 1.0), of(bound.net, -1.0, -1.0)
    shares = [0.0, 0.25, 0.5, 0.75, 1.0]
    losses = {t: height(bound, between(a, b, t), TASK, data).loss for t in shares}
    assert losses == {0.0: 0.0, 0.25: 0.5625, 0.5: 1.0, 0.75: 0.5625, 1.0: 0.0}
    assert barrier(losses) == (1.0, 0.5)


def test_a_barrier_is_above_the_straight_line_and_not_above_an_end():
    assert barrier({0.0: 1.0, 0.5: 2.5, 1.0: 3.0}) == (0.5, 0.5)  # lower than the second end
    assert barrier({0.0: 3.0, 0.25: 2.0, 0.5: 1.0, 1.0: 1.0}) == (0.0, 0.0)


# --- in the plane through three -------------------------------------------------------------------


def corners() -> tuple[Weights, Weights, Weights]:
    """At (0, 0), (4, 0) and (1, 3) of the plane z = 1."""
    return w(0, 0, 1, 1, 2), w(4, 0, 1, 2, 3), w(1, 3, 1, 6, 9)


def test_the_three_models_lie_where_they_are():
    plane = Plane.through(*corners())
    assert [tuple(spot) for spot in plane.spots] == [(0, 0), (4, 0), (1, 3)]
    for spot, model in zip(plane.spots, corners(), strict=True):
        assert plane.at(spot).flat.tolist() == pytest.approx([*model.flat.tolist()[:4], 9])
    for x, y in ((2.0, 1.0), (-1.0, 5.0), (3.0, -2.0)):
        assert plane.at(Spot(x, y)).trainable.tolist() == pytest.approx([x, y, 1], abs=1e-6)


def test_distances_in_the_plane_are_those_between_weights():
    """Also where the third model is no corner of a right angle."""
    a, b, c = (w(*values, 0.0, 0.0) for values in ((1, 2, 3), (2, 0, 5), (-1, 1, 1)))
    spots = Plane.through(a, b, c).spots
    for i, j in ((0, 1), (0, 2), (1, 2)):
        apart = float(((a, b, c)[i].trainable - (a, b, c)[j].trainable).norm())
        gap = sqrt((spots[i].x - spots[j].x) ** 2 + (spots[i].y - spots[j].y) ** 2)
        assert gap == pytest.approx(apart, rel=1e-6)


def test_running_statistics_in_the_plane_are_a_mean_of_the_three():
    """At (2, 1): 1/3 of c, (2 - 1/3) / 4 = 5/12 of b, 1/4 of a. Beyond, by the positive shares."""
    plane = Plane.through(*corners())
    assert float(plane.at(Spot(2.0, 1.0)).flat[3]) == pytest.approx(1 / 4 + 10 / 12 + 2)
    assert float(plane.at(Spot(8.0, 0.0)).flat[3]) == 2  # twice b, minus a: b's
    assert float(plane.at(Spot(-4.0, 0.0)).flat[3]) == 1  # beyond a


def test_the_grid_holds_the_three_and_a_margin():
    grid = Plane.through(*corners()).grid(3, margin=0.5)
    assert [[tuple(spot) for spot in row] for row in grid] == [
        [(x, y) for x in (-2, 2, 6)] for y in (-1.5, 1.5, 4.5)
    ]


def test_three_models_on_a_line_span_no_plane():
    a, b, _ = corners()
    for c in (a, b, between(a, b, 0.3), w(-9, 0, 1, 0, 0)):
        with pytest.raises(RunError, match="no plane"):
            Plane.through(a, b, c)
    with pytest.raises(RunError, match="no plane"):
        Plane.through(a, a, b)
