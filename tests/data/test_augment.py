from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from konsil import testing as toy
from konsil.config import TrainingConfig
from konsil.data import augment, augmented, training_data
from konsil.data.augment import RANGES, Ranges
from konsil.ingredients import site as site_module


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


STILL = Ranges()  # only the flip is left


def moved_by(ranges: Ranges | str, x, y, noise=None, flips="horizontal"):
    ranges = RANGES[ranges] if isinstance(ranges, str) else ranges
    return augment.augment(x, y, generator() if noise is None else noise, ranges, flips)


def batch(count=16, size=32):
    x = torch.rand(count, 3, size, size, generator=generator(1))
    y = torch.zeros(count, 2, size, size)
    y[:, 0, 8:24, 4:14] = 1
    y[:, 1, 12:20, 6:10] = 1
    return x, y


@pytest.mark.parametrize("kind", RANGES)
def test_same_generator_same_batch(kind):
    x, y = batch()
    first, second = moved_by(kind, x, y), moved_by(kind, x, y)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert not torch.equal(first[0], moved_by(kind, x, y, generator(7))[0])


@pytest.mark.parametrize("kind", RANGES)
def test_inputs_are_not_changed_and_ranges_hold(kind):
    x, y = batch()
    before = x.clone(), y.clone()
    new_x, new_y = moved_by(kind, x, y)
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])
    assert new_x.shape == x.shape
    assert new_x.min() >= 0
    assert new_x.max() <= 1
    assert set(new_y.unique().tolist()) == {0.0, 1.0}


def test_without_ranges_only_the_flip_is_left():
    x, y = batch()
    new_x, new_y = moved_by(STILL, x, y)
    flipped = torch.rand(16, 8, generator=generator())[:, 0] < 0.5
    assert 0 < flipped.sum() < 16
    expected_x = torch.where(flipped.view(-1, 1, 1, 1), x.flip(3), x)
    expected_y = torch.where(flipped.view(-1, 1, 1, 1), y.flip(3), y)
    assert torch.allclose(new_x, expected_x, atol=1e-4)
    assert torch.equal(new_y, expected_y)


@pytest.mark.parametrize("kind", RANGES)
def test_masks_move_with_their_images(kind):
    unexposed = dict.fromkeys(("brightness", "contrast", "gamma", "blurred", "noisy", "cut"), 0.0)
    _, y = batch()
    moved, new_y = moved_by(replace(RANGES[kind], **unexposed), y[:, :1].expand(-1, 3, -1, -1), y)
    agreement = ((moved[:, :1] > 0.5) == (new_y[:, :1] > 0.5)).float().mean()
    assert agreement > 0.99
    assert (new_y != y).any()


def test_class_labels_are_left_alone():
    x, _ = batch()
    labels = torch.arange(16)
    assert moved_by("strong", x, labels)[1] is labels


def test_movement_is_small():
    """A structure's area and centre change by no more than the ranges allow."""
    _, y = batch(64)
    x = torch.zeros(64, 1, 32, 32)
    area = moved_by("light", x, y)[1][:, 0].sum(dim=(1, 2)) / 160
    assert area.min() > 0.65
    assert area.max() < 1.45


def test_exposure_by_hand():
    x = torch.full((4, 1, 8, 8), 0.5)
    new_x, _ = moved_by(Ranges(brightness=0.1), x, torch.zeros(4))
    added = 0.1 * (2 * torch.rand(4, 8, generator=generator())[:, 7] - 1)
    assert torch.allclose(new_x, (0.5 + added).view(4, 1, 1, 1).expand_as(x), atol=1e-5)


@pytest.mark.parametrize(("count", "height", "width"), [(1, 7, 5), (8, 64, 64), (3, 33, 128)])
def test_the_grid_is_torchs(count, height, width):
    draws = 2 * torch.rand(count, 8, generator=generator(3)) - 1
    affine = augment._affine(draws, RANGES["light"])
    expected = functional.affine_grid(affine, [count, 1, height, width], align_corners=False)
    # Equal to the bit where it was measured; another processor may multiply in another order.
    grid = augment._sampling_grid(affine, height, width)
    assert torch.allclose(grid, expected, rtol=0, atol=5e-7)


def test_a_rectangle_moves_as_a_square_does():
    """Planes of a volume need not be square, and nothing is mixed between images."""
    x = torch.rand(5, 1, 12, 20, generator=generator(2))
    new_x, _ = moved_by(STILL, x, torch.zeros(5))
    flipped = torch.rand(5, 8, generator=generator())[:, 0] < 0.5
    assert torch.allclose(new_x, torch.where(flipped.view(-1, 1, 1, 1), x.flip(3), x), atol=1e-4)


def flips_of(flips):
    """Which of an image's four corners is bright afterwards, for many images."""
    x = torch.zeros(64, 1, 4, 4)
    x[:, :, 0, 0] = 1
    new_x, _ = moved_by(STILL, x, torch.zeros(64), flips=flips)
    corners = new_x[:, 0, ::3, ::3].reshape(64, 4)
    assert torch.allclose(corners.sum(dim=1), torch.ones(64), atol=1e-4)
    return set(corners.argmax(dim=1).tolist())


def test_flips_are_to_the_side_or_upside_down_as_well_or_not_at_all():
    assert flips_of("none") == {0}
    assert flips_of("horizontal") == {0, 1}
    assert flips_of("both") == {0, 1, 2, 3}


def test_strength_is_a_factor_of_every_range():
    assert RANGES["strong"].times(1.0) == RANGES["strong"]
    assert RANGES["strong"].times(0.0) == STILL
    half = RANGES["strong"].times(0.5)
    assert (half.rotation, half.noise, half.cut) == (10, 0.05, 0.05)
    assert Ranges(noisy=0.6, noise=1.0).times(2) == Ranges(noisy=1.0, noise=2.0)


def test_an_experiment_says_which_and_how_strong():
    x, y = batch()
    for training, ranges in (
        ({"augment": "light", "augment_strength": 1}, RANGES["light"]),
        ({"augment": "strong", "augment_strength": 0.5}, RANGES["strong"].times(0.5)),
    ):
        found = augmented(x, y, generator(), TrainingConfig(**training))
        assert torch.equal(found[0], moved_by(ranges, x, y)[0])
    assert augmented(x, y, generator(), TrainingConfig(augment="none"))[0] is x


def test_noise_is_measured_by_the_images_own_deviation():
    x = torch.rand(8, 1, 64, 64, generator=generator(1)) * 0.2 + 0.4
    new_x, _ = moved_by(Ranges(noisy=1.0, noise=0.5), x, torch.zeros(8), flips="none")
    added = (new_x - x).std(dim=(1, 2, 3)) / x.std(dim=(1, 2, 3))
    assert torch.allclose(added, torch.full((8,), 0.5), atol=0.02)


def test_only_a_share_of_the_images_is_disturbed():
    x = torch.rand(400, 1, 8, 8, generator=generator(1))
    for ranges in (Ranges(blurred=0.25), Ranges(noisy=0.25, noise=0.3), Ranges(cut=0.25)):
        new_x, _ = moved_by(ranges, x, torch.zeros(400), flips="none")
        touched = ((new_x - x).abs().amax(dim=(1, 2, 3)) > 1e-3).float().mean()
        assert 0.18 < touched < 0.32


def test_blur_by_hand():
    x = torch.zeros(1, 2, 5, 5)
    x[:, 0, 2, 2] = 1
    line = torch.tensor([0.25, 0.5, 0.25])
    expected = torch.zeros(5, 5)
    expected[1:4, 1:4] = line[:, None] * line
    smooth = augment._smooth(x)
    assert torch.allclose(smooth[0, 0], expected)
    assert not smooth[0, 1].any()  # channels do not mix
    assert torch.allclose(augment._smooth(torch.full((1, 1, 4, 4), 0.7)), torch.tensor(0.7))


def test_a_hole_has_the_images_mean_and_its_place():
    image = torch.arange(100.0).view(1, 10, 10) / 100
    before = image.clone()
    augment._cut_out(image, top=0.99, left=0.0, height=0.5, width=0.0)
    changed = (image != before)[0]
    assert changed.nonzero().amin(dim=0).tolist() == [8, 0]  # two rows at the end, one column
    assert changed.sum() == 2
    assert torch.allclose(image[0, 8:, 0], before.mean())


def test_bending_is_smooth_and_small():
    places = augment._bent(torch.zeros(16, 1, 32, 32), generator(), 0.02)
    assert places.shape == (16, 32, 32, 2)
    assert 0.01 < places.std() < 0.06  # coordinates run from -1 to 1
    assert (places[:, 1:] - places[:, :-1]).abs().max() < 0.06


def test_only_training_images_are_ever_augmented(squares, tmp_path, monkeypatch):
    """A whole run with every kind of validation: routing, soups, losses, scores, test images."""
    plan = toy.plan_of(
        squares,
        methods=["fedavg", "fedsm", "fedsoup"],
        rounds=2,
        training={"batch_size": 3, "augment": "light"},
    )
    seen = []

    def spy(x, y, noise, training):
        seen.extend(x.clone())
        return augmented(x, y, noise, training)

    monkeypatch.setattr(site_module, "augmented", spy)
    toy.whole_run(plan, tmp_path / "run")
    train = training_data(plan.data_folder, plan.sites).train
    known = {image.numpy().tobytes() for image in train.batch(torch.arange(len(train)))[0]}
    assert {image.numpy().tobytes() for image in seen} == known
