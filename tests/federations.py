"""Writers of tiny federations, for tests of every folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

SIZE = 32


def write_squares(folder: Path, sites: dict[str, int]) -> None:
    for place, (site, count) in enumerate(sites.items()):
        rng = np.random.default_rng(place)
        for kind in ("images", "masks"):
            (folder / site / kind).mkdir(parents=True)
        for number in range(count):
            image = rng.normal(60 + 50 * place, 8, (SIZE, SIZE, 3)).clip(0, 255)
            mask = np.zeros((SIZE, SIZE), np.uint8)
            top, left = rng.integers(2, SIZE // 2, 2)
            mask[top : top + 12, left : left + 12] = 255
            image[mask > 0] += 60
            Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(
                folder / site / "images" / f"{number:03d}.png"
            )
            Image.fromarray(mask).save(folder / site / "masks" / f"{number:03d}.png")


def write_shades(folder: Path, sites: dict[str, int]) -> None:
    for place, (site, count) in enumerate(sites.items()):
        rng = np.random.default_rng(place)
        for name in ("healthy", "ill"):
            (folder / site / name).mkdir(parents=True)
        for number in range(count):
            ill = number % 2
            image = rng.normal(80 + 70 * ill + 20 * place, 10, (SIZE, SIZE, 3)).clip(0, 255)
            Image.fromarray(image.astype(np.uint8)).save(
                folder / site / ("ill" if ill else "healthy") / f"{number:03d}.png"
            )
