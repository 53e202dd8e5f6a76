import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.metrics import DiceMetric, compute_dice

from konsil.tasks.segmentation import Segmentation, SegmentationSettings, dice


def masks(*rows):
    return torch.tensor(rows, dtype=torch.bool).view(1, len(rows), 2, 2)


@pytest.mark.parametrize(
    ("predicted", "true", "expected"),
    [
        ([1, 1, 0, 0], [1, 1, 0, 0], 1.0),
        ([1, 1, 0, 0], [0, 0, 1, 1], 0.0),
        ([1, 1, 1, 0], [1, 0, 0, 0], 0.5),  # 2 * 1 / (3 + 1)
        ([1, 1, 0, 0], [0, 1, 1, 1], 0.4),  # 2 * 1 / (2 + 3)
        ([0, 0, 0, 0], [0, 0, 0, 0], 1.0),
        ([0, 0, 0, 0], [1, 0, 0, 0], 0.0),
        ([1, 0, 0, 0], [0, 0, 0, 0], 0.0),
    ],
)
def test_dice_by_hand(predicted, true, expected):
    assert dice(masks(predicted), masks(true)).tolist() == [[pytest.approx(expected)]]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), p=st.floats(0, 1), q=st.floats(0, 1), s=st.integers(1, 3))
def test_dice_equals_monai(seed, p, q, s):
    generator = torch.Generator().manual_seed(seed)
    predicted = torch.rand(4, s, 4, 4, generator=generator) < p
    true = torch.rand(4, s, 4, 4, generator=generator) < q**3  # often empty
    theirs = compute_dice(predicted.float(), true.float(), ignore_empty=False)
    metric = DiceMetric(include_background=True, reduction="none", ignore_empty=False)
    ours = dice(predicted, true)
    assert torch.allclose(ours.float(), theirs)
    assert torch.allclose(ours.float(), metric(predicted.float(), true.float()))


def test_columns_by_hand():
    task = Segmentation(["disc", "cup"])
    logits = torch.tensor([[[3.0, 0.1, -1, 0], [-1.0, -2, -3, -4]]]).view(1, 2, 2, 2)
    y = torch.tensor([[[1, 0, 0, 0], [0, 0, 0, 0]]]).view(1, 2, 2, 2)
    columns = task.columns(logits, y)  # a logit of 0 is not above 0.5
    assert list(columns) == task.metrics == ["dice", "dice_disc", "dice_cup"]
    values = {name: column.tolist() for name, column in columns.items()}
    assert values == {
        "dice": [pytest.approx(5 / 6)],
        "dice_disc": [pytest.approx(2 / 3)],
        "dice_cup": [1.0],
    }


def test_one_structure_is_one_column():
    task = Segmentation(["prostate"])
    columns = task.columns(torch.randn(3, 1, 4, 4), torch.ones(3, 1, 4, 4))
    assert list(columns) == task.metrics == ["dice"]
    assert columns["dice"].dtype == torch.float64
    assert columns["dice"].shape == (3,)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float32])
def test_masks_of_any_type(dtype):
    task = Segmentation(["disc", "cup"])
    logits, y = torch.randn(2, 2, 8, 8), torch.rand(2, 2, 8, 8) > 0.5
    assert torch.equal(task.loss(logits, y.to(dtype)), task.loss(logits, y.float()))
    assert torch.equal(task.columns(logits, y.to(dtype))["dice"], task.columns(logits, y)["dice"])


def test_dice_loss_by_hand():
    logits = torch.zeros(1, 1, 2, 2)  # probabilities of one half
    y = torch.tensor([1.0, 1, 1, 0]).view(1, 1, 2, 2)
    plain = Segmentation(["x"], SegmentationSettings(loss="dice")).loss(logits, y).item()
    assert plain == pytest.approx(1 - 2 * 1.5 / (2 + 3), abs=1e-5)
    assert Segmentation(["x"]).loss(logits, y).item() == pytest.approx(
        plain + math.log(2), abs=1e-5
    )


def test_overlapping_structures_can_both_be_right():
    y = torch.ones(1, 2, 4, 4)  # every pixel is disc and cup
    sure = torch.full((1, 2, 4, 4), 20.0)
    assert Segmentation(["disc", "cup"]).loss(sure, y).item() == pytest.approx(0, abs=1e-5)


def test_loss_is_a_mean_over_images():
    task = Segmentation(["disc", "cup"])
    logits, y = torch.randn(4, 2, 8, 8), torch.rand(4, 2, 8, 8).round()
    single = torch.stack([task.loss(logits[i : i + 1], y[i : i + 1]) for i in range(4)])
    assert torch.allclose(task.loss(logits, y), single.mean())


@pytest.mark.parametrize("loss", ["dice", "dice_ce"])
def test_the_losses_of_single_images(loss):
    task = Segmentation(["disc", "cup"], SegmentationSettings(loss=loss))
    logits, y = torch.randn(4, 2, 8, 8), torch.rand(4, 2, 8, 8).round()
    single = [task.loss(logits[i : i + 1], y[i : i + 1]).item() for i in range(4)]
    assert task.losses(logits, y).tolist() == pytest.approx(single, rel=1e-5)


def test_an_empty_mask_that_is_surely_empty_costs_nothing():
    logits = torch.full((1, 1, 2, 2), -200.0)  # whose probability is 0 in float32
    assert Segmentation(["x"]).loss(logits, torch.zeros(1, 1, 2, 2)).item() == pytest.approx(0)


def test_probabilities_are_each_structures_own():
    probabilities = Segmentation(["disc", "cup"]).probabilities(torch.zeros(1, 2, 2, 2))
    assert torch.equal(probabilities, torch.full((1, 2, 2, 2), 0.5))


def test_summary_is_the_mean_of_images():
    task = Segmentation(["disc", "cup"])
    columns = {"dice": np.array([0.5, 1.0]), "dice_disc": np.array([0.0, 1.0])}
    columns |= {"dice_cup": np.array([1.0, 1.0]), "other": np.array([7.0, 7.0])}
    assert task.summarise(columns) == {"dice": 0.75, "dice_disc": 0.5, "dice_cup": 1.0}


def test_no_images_no_summary():
    assert Segmentation(["x"]).summarise({"dice": np.array([])}) == {}
