import pytest
import torch
from torch.nn import functional

from konsil import testing as toy
from konsil.data import augment, augment_light, training_data
from konsil.ingredients import site as site_module


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def still(monkeypatch):
    """All ranges zero, so that only the flip is left."""
    for name in ("ROTATION", "SCALE", "SHIFT", "BRIGHTNESS", "CONTRAST", "GAMMA"):
        monkeypatch.setattr(augment, name, 0.0)


def batch(count=16, size=32):
    x = torch.rand(count, 3, size, size, generator=generator(1))
    y = torch.zeros(count, 2, size, size)
    y[:, 0, 8:24, 4:14] = 1
    y[:, 1, 12:20, 6:10] = 1
    return x, y


def test_same_generator_same_batch():
    x, y = batch()
    first, second = augment_light(x, y, generator()), augment_light(x, y, generator())
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert not torch.equal(first[0], augment_light(x, y, generator(7))[0])


def test_inputs_are_not_changed_and_ranges_hold():
    x, y = batch()
    before = x.clone(), y.clone()
    new_x, new_y = augment_light(x, y, generator())
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])
    assert new_x.shape == x.shape
    assert new_x.min() >= 0
    assert new_x.max() <= 1
    assert set(new_y.unique().tolist()) == {0.0, 1.0}


def test_without_ranges_only_the_flip_is_left(still):
    x, y = batch()
    new_x, new_y = augment_light(x, y, generator())
    flipped = torch.rand(16, 8, generator=generator())[:, 0] < 0.5
    assert 0 < flipped.sum() < 16
    expected_x = torch.where(flipped.view(-1, 1, 1, 1), x.flip(3), x)
    expected_y = torch.where(flipped.view(-1, 1, 1, 1), y.flip(3), y)
    assert torch.allclose(new_x, expected_x, atol=1e-4)
    assert torch.equal(new_y, expected_y)


def test_masks_move_with_their_images(monkeypatch):
    for name in ("BRIGHTNESS", "CONTRAST", "GAMMA"):
        monkeypatch.setattr(augment, name, 0.0)
    _, y = batch()
    moved, new_y = augment_light(y[:, :1].expand(-1, 3, -1, -1), y, generator())
    agreement = ((moved[:, :1] > 0.5) == (new_y[:, :1] > 0.5)).float().mean()
    assert agreement > 0.99
    assert (new_y != y).any()


def test_class_labels_are_left_alone():
    x, _ = batch()
    labels = torch.arange(16)
    assert augment_light(x, labels, generator())[1] is labels


def test_movement_is_small():
    """A structure's area and centre change by no more than the ranges allow."""
    _, y = batch(64)
    x = torch.zeros(64, 1, 32, 32)
    area = augment_light(x, y, generator())[1][:, 0].sum(dim=(1, 2)) / 160
    assert area.min() > 0.65
    assert area.max() < 1.45


def test_exposure_by_hand(still, monkeypatch):
    monkeypatch.setattr(augment, "BRIGHTNESS", 0.1)
    x = torch.full((4, 1, 8, 8), 0.5)
    new_x, _ = augment_light(x, torch.zeros(4), generator())
    added = 0.1 * (2 * torch.rand(4, 8, generator=generator())[:, 7] - 1)
    assert torch.allclose(new_x, (0.5 + added).view(4, 1, 1, 1).expand_as(x), atol=1e-5)


@pytest.mark.parametrize(("count", "height", "width"), [(1, 7, 5), (8, 64, 64), (3, 33, 128)])
def test_the_grid_is_torchs(count, height, width):
    draws = 2 * torch.rand(count, 8, generator=generator(3)) - 1
    affine = augment._affine(draws[:, 0].sign(), draws)
    expected = functional.affine_grid(affine, [count, 1, height, width], align_corners=False)
    # Equal to the bit where it was measured; another processor may multiply in another order.
    grid = augment._sampling_grid(affine, height, width)
    assert torch.allclose(grid, expected, rtol=0, atol=5e-7)


def test_a_rectangle_moves_as_a_square_does(still):
    """Planes of a volume need not be square, and nothing is mixed between images."""
    x = torch.rand(5, 1, 12, 20, generator=generator(2))
    new_x, _ = augment_light(x, torch.zeros(5), generator())
    flipped = torch.rand(5, 8, generator=generator())[:, 0] < 0.5
    assert torch.allclose(new_x, torch.where(flipped.view(-1, 1, 1, 1), x.flip(3), x), atol=1e-4)


def test_only_training_images_are_ever_augmented(squares, tmp_path, monkeypatch):
    """A whole run with every kind of validation: routing, soups, losses, scores, test images."""
    plan = toy.plan_of(
        squares,
        methods=["fedavg", "fedsm", "fedsoup"],
        rounds=2,
        training={"batch_size": 3, "augment": "light"},
    )
    seen = []

    def spy(x, y, noise):
        seen.extend(x.clone())
        return augment_light(x, y, noise)

    monkeypatch.setattr(site_module, "augment_light", spy)
    toy.whole_run(plan, tmp_path / "run")
    train = training_data(plan.data_folder, plan.sites).train
    known = {image.numpy().tobytes() for image in train.batch(torch.arange(len(train)))[0]}
    assert {image.numpy().tobytes() for image in seen} == known
