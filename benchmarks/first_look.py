"""Import and check of a public data set, against a loop that only reads its files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import numpy as np
from PIL import Image

from benchmarks.measure import Figure, Goal, Outcome, Ratio, Side, interleave, warm_up
from benchmarks.setup import Setup
from konsil.data import synthetic
from konsil.prepare.check import check_federation
from konsil.prepare.importers import import_dataset

PAINTED_AT = 128  # pixels, of the synthetic pictures that are enlarged
NOISE = 6.0  # of a camera, in units of 8 bit; without it a picture would compress like none
AT_MOST = Goal("at most", 1.5)
CUP, RIM, BACKGROUND = 0, 128, 255  # in REFUGE's masks


def import_and_check(setup: Setup) -> Outcome:
    """Import and check of a data set, over a bare loop that reads the same files."""
    scale = setup.scale
    source = setup.folder / "refuge"
    setup.progress("pictures")
    write_refuge(source, scale.look_images, scale.look_size)
    with tempfile.TemporaryDirectory(dir=setup.folder) as scratch:
        imported = Path(scratch) / "imported"
        import_dataset("refuge", source, imported)
        sides: dict[str, Side] = {
            "bare loop": lambda: read_all(source),
            "import": lambda: _import(source, Path(scratch) / "new"),
            "check": lambda: _check(imported, scale.look_images),
        }
        warm_up(sides, setup.progress)
        times = interleave(sides, scale.repeats, setup.progress)
    both = [a + b for a, b in zip(times["import"], times["check"], strict=True)]
    what = f"{scale.look_images} images of {scale.look_size} x {scale.look_size}"
    return Outcome(
        [
            Figure(f"import and check / bare loop, {what}", _over(both, times), AT_MOST),
            Figure(f"import / bare loop, {what}", _over(times["import"], times)),
            Figure(f"check / bare loop, {what}", _over(times["check"], times)),
        ],
        [
            "REFUGE's layout with painted pictures: JPEG and BMP in, JPEG and PNG out; files in "
            "the page cache; the bare loop opens image and mask with Pillow, one after the other, "
            "and keeps nothing; Konsil uses all cores"
        ],
    )


def _over(side: list[float], times: dict[str, list[float]]) -> Ratio:
    return Ratio.of(side, times["bare loop"])


def write_refuge(folder: Path, count: int, size: int) -> None:
    """Pictures and masks named and coded like REFUGE's, painted larger than the synthetic ones."""
    for number, (picture, mask) in enumerate(_painted(folder.with_name("painted"), count)):
        noise = np.random.default_rng(number).normal(0, NOISE, (size, size, 3))
        large = np.asarray(picture.resize((size, size), Image.Resampling.BICUBIC)) + noise
        coded = np.full((PAINTED_AT, PAINTED_AT), BACKGROUND, np.uint8)
        coded[mask == synthetic.retina.RIM] = RIM
        coded[mask == synthetic.retina.CUP] = CUP
        image = folder / "Training400" / f"n{number + 1:04d}.jpg"
        label = folder / "Disc_Cup_Masks" / f"n{number + 1:04d}.bmp"
        for path in (image, label):
            path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(large.clip(0, 255).astype(np.uint8)).save(image, quality=90)
        Image.fromarray(coded).resize((size, size), Image.Resampling.NEAREST).save(label)


def _painted(folder: Path, count: int) -> Iterator[tuple[Image.Image, np.ndarray]]:
    synthetic.write_federation("retina", folder, {"aster": count})
    for path in sorted((folder / "aster" / "images").iterdir()):
        mask = folder / "aster" / "masks" / path.name
        yield Image.open(path), np.asarray(Image.open(mask))


def read_all(folder: Path) -> float:
    """The bare loop: every image and every mask becomes an array."""
    images, masks = sorted(folder.rglob("*.jpg")), sorted(folder.rglob("*.bmp"))
    began = perf_counter()
    for image, mask in zip(images, masks, strict=True):
        np.asarray(Image.open(image))
        np.asarray(Image.open(mask))
    return perf_counter() - began


def _import(source: Path, dest: Path) -> float:
    began = perf_counter()
    import_dataset("refuge", source, dest)
    took = perf_counter() - began
    shutil.rmtree(dest)
    return took


def _check(folder: Path, images: int) -> float:
    began = perf_counter()
    result = check_federation(folder)
    took = perf_counter() - began
    if not result.ok or sum(facts.images for facts in result.sites.values()) != images:
        raise AssertionError(f"the check did not see {images} good images: {result.errors}")
    return took
