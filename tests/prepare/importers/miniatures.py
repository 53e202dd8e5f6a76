"""Downloaded folders in miniature, and what an import made of them."""

import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from konsil.config import FederationConfig, TaskConfig
from konsil.data import Federation, open_federation
from konsil.prepare.importers import ImportReport, Options, import_dataset

SIZE = (60, 48)  # width and height of the miniature pictures
DISC, CUP = (12, 10, 41, 37), (20, 18, 33, 31)  # boxes of two ellipses, corners included


def ellipse(box: tuple[int, int, int, int], size: tuple[int, int] = SIZE) -> np.ndarray:
    """Where an ellipse is, [H, W]."""
    image = Image.new("L", size)
    ImageDraw.Draw(image).ellipse(box, fill=1)
    return np.asarray(image) == 1


def rim_and_cup(disc=DISC, cup=CUP, size=SIZE) -> np.ndarray:
    """What every importer should make of these ellipses: 0, 1 for the rim, 2 for the cup."""
    return np.where(ellipse(cup, size), 2, ellipse(disc, size)).astype(np.uint8)


class Download:
    """A folder as a person downloaded it, and the folder that it is imported into."""

    def __init__(self, folder: Path) -> None:
        self.root, self.dest = folder / "download", folder / "imported"
        self.root.mkdir()

    def write(self, name: str, pixels: np.ndarray, **how: object) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, **how)
        return path

    def text(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def picture(self, name: str, size: tuple[int, int] = SIZE) -> np.ndarray:
        """Noise that follows from the name, written as a picture."""
        noise = np.random.default_rng(zlib.crc32(name.encode()))
        pixels = noise.integers(60, 120, (size[1], size[0], 3), dtype=np.uint8)
        self.write(name, pixels)
        return pixels

    def take(self, name: str, **options: object) -> ImportReport:
        return import_dataset(name, self.root, self.dest, Options(**options))

    def made(self, name: str) -> np.ndarray:
        """The pixels of a file that the import wrote."""
        return np.asarray(Image.open(self.dest / name))

    def files(self) -> list[str]:
        """Every file below the destination."""
        return sorted(
            path.relative_to(self.dest).as_posix()
            for path in self.dest.rglob("*")
            if path.is_file()
        )

    def opened(self, task: str = "segmentation", **more: object) -> Federation:
        config = FederationConfig(
            file=self.dest, image_size=16, cache=self.dest.parent / "cache", **more
        )
        return open_federation(config, TaskConfig(name=task))
