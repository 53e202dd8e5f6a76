"""Distances between outlines: MONAI's values, and a value where MONAI has none."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.metrics import compute_hausdorff_distance, compute_surface_dice
from scipy.ndimage import binary_erosion, distance_transform_edt

from konsil.tasks.segmentation import Segmentation
from konsil.tasks.surfaces import _distances, _outline, _percentile, surface_scores


def scores(drawn, wanted):
    """Of one mask each."""
    both = (np.array(mask, dtype=bool)[None, None] for mask in (drawn, wanted))
    distances, surfaces = surface_scores(*both)
    return float(distances[0, 0]), float(surfaces[0, 0])


def line(column: int) -> np.ndarray:
    """A line of four pixels in a picture of 4 x 8: all of it is outline."""
    mask = np.zeros((4, 8), bool)
    mask[:, column] = True
    return mask


def test_lines_by_hand():
    assert scores(line(2), line(2)) == (0.0, 1.0)
    assert scores(line(2), line(3)) == (1.0, 1.0)  # one pixel apart is the same outline
    assert scores(line(2), line(5)) == (3.0, 0.0)


def test_half_of_an_outline_by_hand():
    """Of the line's four pixels two have a neighbour in the other mask, two are 2 and 3 away."""
    half = line(2)
    half[2:] = False
    distance, surface = scores(line(2), half)
    assert surface == pytest.approx((3 + 2) / (4 + 2))  # 0, 0 and 1 are near, 2 is not
    assert distance == pytest.approx(np.percentile([0, 0, 1, 2], 95))


def test_empty_masks():
    nothing = np.zeros((4, 8), bool)
    assert scores(nothing, nothing) == (0.0, 1.0)
    assert scores(nothing, line(1)) == scores(line(1), nothing) == (math.hypot(4, 8), 0.0)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 12))
def test_both_ways_to_distances_are_one(seed, height, width):
    """Pairs of pixels, and distance transforms: the same bits, of whatever outlines."""
    rng = np.random.default_rng(seed)
    one, other = rng.random((2, height, width)) < 0.4
    one[0, 0] = other[-1, -1] = True
    by_pairs = _distances(one, other)
    assert [way.tolist() for way in by_pairs] == [
        distance_transform_edt(~other)[one].tolist(),
        distance_transform_edt(~one)[other].tolist(),
    ]


def test_long_outlines_are_not_compared_pixel_by_pixel(monkeypatch):
    """A page of noise would be gigabytes of pairs."""
    one, other = np.random.default_rng(0).random((2, 20, 20)) < 0.5
    by_pairs = _distances(one, other)
    monkeypatch.setattr("konsil.tasks.surfaces.MOST_PAIRS", 0)
    for mine, theirs in zip(by_pairs, _distances(one, other), strict=True):
        assert mine.tolist() == theirs.tolist()
    monkeypatch.setattr("scipy.ndimage.distance_transform_edt", None)
    with pytest.raises(TypeError):  # so it was that
        _distances(one, other)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=60))
def test_the_percentile_is_numpys(values):
    assert _percentile(np.array(values)) == pytest.approx(np.percentile(values, 95), rel=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 9))
def test_an_outline_is_what_erosion_takes(seed, height, width):
    mask = np.random.default_rng(seed).random((height, width)) < 0.7
    assert (_outline(mask) == (mask & ~binary_erosion(mask))).all()


def blobs(generator: torch.Generator, images: int, structures: int) -> torch.Tensor:
    """Masks with holes and islands, none of them empty."""
    noise = torch.rand(images, structures, 24, 24, generator=generator)
    smooth = torch.nn.functional.avg_pool2d(noise, 5, stride=1, padding=2)
    masks = smooth > smooth.flatten(2).quantile(0.7, dim=2)[..., None, None]
    masks[..., 11:13, 11:13] = True
    return masks


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), structures=st.integers(1, 3))
def test_both_equal_monai(seed, structures):
    generator = torch.Generator().manual_seed(seed)
    drawn, wanted = blobs(generator, 3, structures), blobs(generator, 3, structures)
    distances, surfaces = surface_scores(drawn.numpy(), wanted.numpy())
    pair = drawn.float(), wanted.float()
    theirs = compute_hausdorff_distance(*pair, include_background=True, percentile=95)
    assert distances == pytest.approx(theirs.numpy(), rel=1e-5)  # its percentile is of float32
    theirs = compute_surface_dice(*pair, [1.0] * structures, include_background=True)
    assert surfaces == pytest.approx(theirs.numpy(), abs=1e-6)


def test_detailed_columns_by_hand():
    task = Segmentation(["disc", "cup"])
    wanted = torch.tensor(np.stack([line(2), line(5)]))[None]
    drawn = torch.tensor(np.stack([line(4), line(5)]))[None]
    found = task.detailed(drawn.float() - 0.5, wanted)
    assert {name: values.tolist() for name, values in found.items()} == {
        "hd95": [1.0],
        "hd95_disc": [2.0],
        "hd95_cup": [0.0],
        "surface_dice": [0.5],
        "surface_dice_disc": [0.0],
        "surface_dice_cup": [1.0],
        "_overlap_disc": [0.0],
        "_overlap_cup": [4.0],
        "_area_disc": [8.0],
        "_area_cup": [8.0],
    }
    assert all(values.dtype == torch.float64 for values in found.values())


def test_one_structure_has_no_name_in_its_columns():
    found = Segmentation(["prostate"]).detailed(torch.randn(2, 1, 8, 8), torch.ones(2, 1, 8, 8))
    assert list(found) == ["hd95", "surface_dice", "_overlap", "_area"]


def test_further_metrics_are_the_detailed_columns():
    task = Segmentation(["disc", "cup"])
    found = task.detailed(torch.randn(1, 2, 8, 8), torch.ones(1, 2, 8, 8))
    assert {name for name in found if not name.startswith("_")} == set(task.further)
    assert {name for name in task.further if name.startswith("hd95")} == set(task.lower_is_better)
