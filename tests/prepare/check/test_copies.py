"""Copies that are not the same bytes, and images that only resemble each other."""

import io
import tracemalloc

import numpy as np
import pytest
from PIL import Image, ImageEnhance
from scipy.ndimage import gaussian_filter

from konsil.prepare.check import copies as module
from konsil.prepare.check.copies import links
from konsil.prepare.check.look import _thumbnail


def smooth(seed: int, width: float) -> np.ndarray:
    noise = gaussian_filter(np.random.default_rng(seed).standard_normal((128, 128)), width)
    return noise / noise.std()


def texture(seed: int) -> Image.Image:
    """An anatomy that everybody shares, a patient's own fine structure, and a camera's noise."""
    noise = np.random.default_rng([seed, 1]).standard_normal((128, 128))
    pixels = 120 + 30 * smooth(10_000, 8) + 5 * smooth(seed, 3) + 4 * noise
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def as_jpeg(image: Image.Image) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=60)
    return Image.open(file)


CHANGES = {
    "saved as JPEG": as_jpeg,
    "halved": lambda image: image.resize((64, 64)),
    "enlarged": lambda image: image.resize((300, 280), Image.Resampling.BICUBIC),
    "of odd size": lambda image: image.resize((101, 77), Image.Resampling.BICUBIC),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.15),
    "darker": lambda image: ImageEnhance.Brightness(image).enhance(0.8),
    "more contrast": lambda image: ImageEnhance.Contrast(image).enhance(1.2),
    "gamma": lambda image: image.point([round(255 * (g / 255) ** 0.8) for g in range(256)]),
}


def small(images) -> np.ndarray:
    return np.stack([_thumbnail(image) for image in images])


def found(images, sites=None, patients=None):
    count = len(images)
    sites = np.zeros(count, int) if sites is None else np.array(sites)
    patients = np.arange(count) if patients is None else np.array(patients)
    return {(i, j) for i, j, _ in links(small(images), sites, patients)}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_copies_are_found_and_nothing_else(change):
    originals = [texture(seed) for seed in range(20)]
    copies = [CHANGES[change](image) for image in originals[:10]]
    assert found(originals + copies) == {(i, 20 + i) for i in range(10)}


def test_copies_between_sites():
    originals = [texture(seed) for seed in range(12)]
    sites = [0] * 6 + [1] * 6 + [1]
    assert found([*originals, as_jpeg(originals[2])], sites) == {(2, 12)}


def test_images_of_one_patient_do_not_count():
    image = texture(0)
    images = [image, as_jpeg(image), texture(1)]
    assert found(images, patients=[7, 7, 8]) == set()
    assert found(images, patients=[6, 7, 8]) == {(0, 1)}


def test_of_many_copies_each_is_linked_to_another():
    image = texture(0)
    copies = [image.resize((100 + 5 * k, 100)) for k in range(5)]
    linked = found([texture(1), *copies, texture(2)])
    assert {i for i, _ in linked} == {1, 2, 3, 4}
    assert {j for _, j in linked} <= {2, 3, 4, 5}


def test_two_copies_alone_are_found():
    assert found([texture(0), as_jpeg(texture(0))]) == {(0, 1)}


def test_a_frame_that_all_share_makes_no_copies():
    """The round field of a camera is the strongest structure in a photograph."""
    row, column = np.mgrid[:128, :128] - 63.5
    outside = row**2 + column**2 > 58**2
    images = []
    for seed in range(40):
        pixels = np.asarray(texture(seed)).copy()
        pixels[outside] = 0
        images.append(Image.fromarray(pixels))
    assert found(images) == set()
    assert found([*images, as_jpeg(images[3])]) == {(3, 40)}


def test_blank_images_are_no_copies():
    blank = [Image.new("L", (50, 50), 200), Image.new("L", (50, 50), 201)]
    assert found([*blank, texture(0), texture(1)]) == set()
    assert found(blank) == set()


@pytest.mark.parametrize("block", [3, 7, 30])
def test_blocks_of_any_size_give_the_same(monkeypatch, block):
    """A copy is found within a block, in a later one, and across the border of two sites."""
    originals = [texture(seed) for seed in range(20)]
    images = originals + [as_jpeg(image) for image in originals[5:15]]
    sites = [0] * 7 + [1] * 23
    whole = found(images, sites)
    assert whole == {(k, 15 + k) for k in range(5, 15)}
    monkeypatch.setattr(module, "BLOCK", block)
    assert found(images, sites) == whole


def test_every_image_is_found_with_the_one_most_like_it():
    """Against a loop over all pairs, with two sites and several images a patient."""
    rng = np.random.default_rng(5)
    own = small([texture(seed) for seed in range(15)]).astype(float)
    noisy = [own + rng.normal(0, strength, own.shape) for strength in (0.5, 1.0, 1.5)]
    thumbnails = np.concatenate([own, *noisy]).clip(0, 255).astype(np.uint8)
    sites, patients = rng.integers(0, 2, 60), rng.integers(0, 20, 60)
    order = np.argsort(sites, kind="stable")
    vectors = module._fine_structure(thumbnails)
    wanted = {}
    for place, i in enumerate(order):
        common = vectors[sites == sites[i]].sum(axis=0) / ((sites == sites[i]).sum() + 10)
        centred = vectors - common
        centred /= np.linalg.norm(centred, axis=1, keepdims=True)
        others = [j for j in order[place + 1 :] if patients[j] != patients[i]]
        alike = {j: centred[i] @ centred[j] for j in others}
        if alike and max(alike.values()) > module.LIKE:
            wanted[i] = max(alike, key=alike.get), max(alike.values())
    made = links(thumbnails, sites, patients)
    assert len(made) > 20
    assert {i: j for i, j, _ in made} == {i: j for i, (j, _) in wanted.items()}
    for i, _, value in made:
        assert value == pytest.approx(wanted[i][1], abs=1e-4)


def test_the_memory_does_not_grow_with_the_number_of_pairs(monkeypatch):
    """3,000 images have 9 million pairs, 36 MB of them as numbers; a block has 1 MB."""
    monkeypatch.setattr(module, "BLOCK", 500)
    thumbnails = np.random.default_rng(0).integers(0, 256, (3000, 32, 32), dtype=np.uint8)
    tracemalloc.start()
    links(thumbnails, np.zeros(3000, int), np.arange(3000))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 25e6
