"""Draw the contact sheets of docs/synthetic.md: a row a site, the label outlined.

    python docs/make_synthetic_sheets.py

A segmentation's structures are outlined (disc or prostate green, cup blue); a patch has a green
frame where it is normal and a red one where it is tumour.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import cycle, islice, zip_longest
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from konsil.data.synthetic import FEDERATIONS, SyntheticFederation, write_federation

COLUMNS, TILE, GAP = 6, 80, 3
GREEN, RED, BLUE = (60, 220, 90), (230, 50, 50), (70, 150, 255)
IMAGES = Path(__file__).parent / "images"


def outline(region: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The pixels of a region that touch its outside, above, below, left or right."""
    padded = np.pad(region, 1)
    core = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return region & ~core


def segmentation_tiles(federation: SyntheticFederation, site: Path) -> Iterator[Image.Image]:
    """Slices at increasing height of successive patients, or successive images, outlined."""
    paths = sorted((site / "images").glob("*.png"))
    groups = [[p for p in paths if p.stem.split("_")[0] == name] for name in patients(paths)]
    for column, group in enumerate(groups):
        path = group[len(group) * (2 * column + 1) // (2 * COLUMNS)]
        size = (TILE, TILE)
        picture = np.array(Image.open(path).convert("RGB").resize(size, Image.Resampling.BICUBIC))
        labels = Image.open(site / "masks" / path.name).resize(size, Image.Resampling.NEAREST)
        for values, colour in zip(
            (federation.structures or {}).values(), (GREEN, BLUE), strict=False
        ):
            picture[outline(np.isin(labels, values))] = colour
        yield Image.fromarray(picture)


def patients(paths: list[Path]) -> list[str]:
    """The part of the stems before the underscore, each once, in order."""
    return list(dict.fromkeys(path.stem.split("_")[0] for path in paths))


def classification_tiles(federation: SyntheticFederation, site: Path) -> Iterator[Image.Image]:
    """Patches of the classes by turns, framed in the colour of the class."""
    folders = [sorted((site / name).glob("*.png"))[::2] for name in federation.classes or []]
    by_turns = [path for pair in zip_longest(*folders) for path in pair if path is not None]
    for path, colour in zip(by_turns, cycle((GREEN, RED))):
        tile = Image.new("RGB", (TILE, TILE), colour)
        inner = TILE - 4
        patch = Image.open(path).resize((inner, inner), Image.Resampling.BICUBIC)
        tile.paste(patch, (2, 2))
        yield tile


def sheet(federation: SyntheticFederation, folder: Path) -> Image.Image:
    """One row of tiles a site, in the order of the federation."""
    step = TILE + GAP
    size = (COLUMNS * step - GAP, len(federation.images) * step - GAP)
    canvas = Image.new("RGB", size, "white")
    draw_tiles = classification_tiles if federation.classes else segmentation_tiles
    for row, site in enumerate(federation.images):
        for column, tile in enumerate(islice(draw_tiles(federation, folder / site), COLUMNS)):
            canvas.paste(tile, (column * step, row * step))
    return canvas


def main() -> None:
    """Write images/synthetic-<federation>.png for each federation."""
    IMAGES.mkdir(exist_ok=True)
    for name, federation in FEDERATIONS.items():
        wanted = 4 * COLUMNS if federation.classes else COLUMNS
        with tempfile.TemporaryDirectory() as scratch:
            write_federation(name, Path(scratch), dict.fromkeys(federation.images, wanted))
            target = IMAGES / f"synthetic-{name}.png"
            sheet(federation, Path(scratch)).save(target, optimize=True)
            print(f"{target.name}: {target.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
