"""How much of a structure the network's size leaves, by hand."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from konsil.config import FederationConfig, TaskConfig
from konsil.data import open_federation
from konsil.data.detail import best_dice, mean_of
from konsil.data.readers import shrink
from konsil.networks.outputs import at_size
from konsil.prepare.check import check_federation


def stripes(first: int, step: int = 2) -> np.ndarray:
    mask = np.zeros((8, 8), bool)
    mask[:, first::step] = True
    return mask


def test_stripes_that_every_sample_hits_or_misses():
    """Of 8 columns at size 4 the odd ones are looked at: all are marked, or none is."""
    assert best_dice(stripes(1), 4) == pytest.approx(2 * 32 / (32 + 64))
    assert best_dice(stripes(0), 4) == 0.0


def test_what_keeps_its_size_loses_nothing():
    assert best_dice(stripes(1), 8) == 1.0
    assert best_dice(np.ones((100, 60), bool), 16) == 1.0


def test_a_large_shape_loses_little_and_a_thin_one_most():
    y, x = np.mgrid[:512, :512]
    disc = (y - 256) ** 2 + (x - 256) ** 2 < 150**2
    vessel = np.abs(y - x) < 2
    assert best_dice(disc, 64) > 0.98
    assert best_dice(vessel, 64) < 0.6
    assert best_dice(vessel, 512) == 1.0


@pytest.mark.parametrize("shape", [(37, 61), (16, 16), (9, 130), (5, 7)])
def test_the_answer_comes_back_as_a_super_models_does(shape):
    mask = np.random.default_rng(sum(shape)).random(shape) > 0.4
    small = torch.from_numpy(shrink(mask, 16).astype(np.float32))
    found = (at_size(small[None, None], shape)[0, 0] > 0.5).numpy()
    dice = 2 * (found & mask).sum() / (found.sum() + mask.sum())
    assert best_dice(mask, 16) == pytest.approx(dice, abs=0.01)  # a half may round either way


def test_images_without_the_structure_do_not_count():
    assert math.isnan(best_dice(np.zeros((8, 8), bool), 4))
    found = [{"disc": 0.5, "cup": math.nan}, {"disc": 1.0, "cup": math.nan}]
    assert mean_of(found) == {"disc": 0.75}


@pytest.fixture
def fine(tmp_path: Path) -> Path:
    """A site whose structure is a hair, and another whose is a box."""
    rng = np.random.default_rng(0)
    for site in ("hair", "box"):
        for number in range(10):
            image = rng.integers(0, 200, (128, 128)).astype(np.uint8)
            mask = np.zeros((128, 128), np.uint8)
            start = 10 + 5 * number
            if site == "hair":
                mask[start, 10:110] = 255
            else:
                mask[start : start + 50, 20:90] = 255
            for kind, pixels in (("images", image), ("masks", mask)):
                path = tmp_path / site / kind / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(path)
    return tmp_path


def test_the_plan_warns_where_the_size_destroys_a_structure(fine):
    config = FederationConfig(folder=fine, image_size=32)
    notes = [n for n in open_federation(config, TaskConfig()).warnings if "too fine" in n]
    assert len(notes) == 1
    assert notes[0].startswith("site hair: foreground is too fine for image_size 32: a perfect")
    again = open_federation(config, TaskConfig())  # from the cache
    assert notes[0] in again.warnings
    larger = FederationConfig(folder=fine, image_size=128)
    assert not [n for n in open_federation(larger, TaskConfig()).warnings if "too fine" in n]


def test_the_check_says_the_same(fine):
    blocks = "".join(
        f"  {site}: {{images: {site}/images/*.png, labels: {site}/masks/*.png}}\n"
        for site in ("hair", "box")
    )
    (fine / "federation.yaml").write_text(f"structures: {{thing: [255]}}\nsites:\n{blocks}")
    result = check_federation(fine, image_size=32)
    fine_notes = [note for note in result.warnings if note.kind == "structure too fine"]
    assert [note.site for note in fine_notes] == ["hair"]
    assert not [n for n in check_federation(fine, image_size=128).warnings if "too fine" in n.text]
