"""What is kept of each file, on pictures small enough to count by hand."""

import hashlib

import numpy as np
import pytest

from konsil.config import FederationConfig, TaskConfig
from konsil.data.findings import Findings
from konsil.data.listing import list_manifest
from konsil.data.manifest import read_manifest
from konsil.data.origin import FileSource
from konsil.prepare.check.look import STATISTICS, look_at
from tests.data import volume_files as files

SITES = "sites: {a: {images: a/images/*.png, labels: a/masks/*.png}}\n"


def look(path, report=None):
    manifest = read_manifest(path)
    source = FileSource(manifest, FederationConfig(file=path), TaskConfig(name=manifest.task))
    found = Findings()
    return look_at(source, list_manifest(manifest, None, found).items, found, report)


def greys(seen):
    return {int(grey): int(seen.histogram[grey]) for grey in np.flatnonzero(seen.histogram)}


def test_a_grey_picture_by_hand(build):
    pixels = np.array([[10, 10, 10, 50], [10, 50, 50, 200]], np.uint8)
    mask = np.array([[128, 0, 0, 255], [128, 0, 0, 0]], np.uint8)
    build.array("a/images/x.png", pixels)
    build.array("a/masks/x.png", mask)
    [seen] = look(
        build.manifest(f"structures: {{disc: [128, 255], cup: [255]}}\nchannels: 1\n{SITES}")
    )
    assert (seen.kind, seen.pixel, seen.size, seen.planes) == ("PNG", "8-bit grey", (4, 2), ())
    assert (seen.low, seen.high) == (10, 200)
    assert greys(seen) == {10: 4, 50: 3, 200: 1}
    assert seen.values == {128: 2, 255: 1}
    assert seen.areas == {"disc": 3 / 8, "cup": 1 / 8}
    assert seen.without == {"disc": 0, "cup": 0}
    assert seen.unmarked == 0
    assert seen.thumbnails.shape == (1, 32, 32)
    # half of the pixels are 10, 7 of 8 at most 50: the first grey that reaches a percentile counts
    wanted = [pixels.mean(), pixels.std(), 10, 10, 10, 50, 200]
    np.testing.assert_allclose(seen.statistics, [wanted], rtol=1e-5)
    assert seen.statistics.shape == (1, len(STATISTICS))
    for name in ("a/images/x.png", "a/masks/x.png"):
        content = (build.root / name).read_bytes()
        assert seen.digests[name] == hashlib.sha256(content).hexdigest()


def test_statistics_of_colours_are_red_then_green_then_blue(build):
    pixels = np.zeros((4, 4, 3), np.uint8)
    pixels[..., 0], pixels[..., 1], pixels[:2, :, 2] = 200, 100, 40
    build.array("a/images/x.png", pixels)
    build.mask("a/masks/x.png", size=(4, 4))
    [seen] = look(build.manifest(SITES))
    means = seen.statistics[0, :: len(STATISTICS)]
    deviations = seen.statistics[0, 1 :: len(STATISTICS)]
    np.testing.assert_allclose(means, [200, 100, 20])
    np.testing.assert_allclose(deviations, [0, 0, 20])
    assert seen.pixel == "8-bit colour"


def test_a_window_changes_the_greys_but_not_the_intensities(build):
    build.array("a/images/x.png", np.array([[100, 1000, 1100, 3000]] * 2, np.uint16))
    build.mask("a/masks/x.png", size=(4, 2))
    [seen] = look(build.manifest(f"window: [1000, 1100]\nchannels: 1\n{SITES}"))
    assert (seen.low, seen.high, seen.pixel) == (100, 3000, "16-bit grey")
    assert {int(g): int(seen.histogram[g]) for g in np.flatnonzero(seen.histogram)} == {
        0: 4,
        255: 4,
    }


@pytest.fixture
def volume(build):
    """Voxels along right, front, head; gland on axial slices 2 and 3, core on 3 alone."""
    shape, affine = files.grid()
    image = np.zeros(shape, np.int16)
    image[..., 2:4], image[0, 0, 0], image[0, 0, 5] = 100, -50, 900
    mask = np.zeros(shape, np.uint8)
    mask[:, :, 2] = 1
    mask[:2, :, 3] = 2
    files.write_nifti(build.root / "a/images/v.nii.gz", image, affine)
    files.write_nifti(build.root / "a/masks/v.nii.gz", mask, affine)
    return build


def test_of_a_volume_only_the_chosen_planes_are_described(volume):
    sites = SITES.replace("png", "nii.gz")
    top = "structures: {gland: [1, 2], core: [2]}\nchannels: 1\nwindow: [0, 100]\n"
    [seen] = look(volume.manifest(top + sites))
    assert (seen.kind, seen.pixel, seen.planes) == ("volume", "16-bit grey", (2, 3))
    assert seen.size == files.WORLD[:2]
    assert seen.spacing == pytest.approx((3.0, 1.25, 0.5))
    assert (seen.low, seen.high) == (-50, 900)  # of the whole file
    assert seen.histogram[255] == seen.histogram.sum() == 2 * 4 * 5
    assert seen.values == {1: 20, 2: 10}
    assert seen.areas == {"gland": (20 + 10) / 40, "core": 10 / 40}
    assert seen.without == {"gland": 0, "core": 1}
    assert len(seen.thumbnails) == len(seen.statistics) == 2
    assert [image.plane for image in seen.images] == [2, 3]
    [whole] = look(volume.manifest(top + "slices: {which: all}\n" + sites))
    assert whole.count == 6
    assert whole.unmarked == 4
    assert whole.areas["gland"] == pytest.approx(30 / 120)


def test_progress_is_told_until_each_site_is_done(build):
    build.pairs("a", 5)
    build.pairs("b", 3)
    told = []
    sites = SITES.replace("}}", "}, b: {images: b/images/*.png, labels: b/masks/*.png}}")
    look(build.manifest(sites), lambda *step: told.append(step))
    assert ("a", 5, 5) in told
    assert told[-1] == ("b", 3, 3)
    assert told == sorted(told)


def test_structures_in_files_of_their_own(build):
    build.image("a/images/x.png")
    build.mask("a/disc/x.png", 255)
    build.mask("a/cup/x.png", 0)
    [seen] = look(
        build.manifest(
            "sites: {a: {images: a/images/*.png, labels: {disc: a/disc/*.png, cup: a/cup/*.png}}}"
        )
    )
    assert seen.areas == {"disc": 0.5, "cup": 0}
    assert seen.without == {"disc": 0, "cup": 1}
    assert seen.unmarked == 0
