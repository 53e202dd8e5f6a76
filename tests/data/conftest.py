"""Tiny federations of real PNG files, written by the tests."""

import zlib
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from PIL import Image

from konsil.config import FederationConfig, TaskConfig
from konsil.data import Federation, open_federation

SHARED_DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"


class Builder:
    """Writes a folder federation file by file, and opens it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "federation"
        self.cache = folder / "cache"
        self.root.mkdir()

    def image(self, name: str, size: tuple[int, int] = (20, 16)) -> Path:
        """A picture of noise that follows from its name; size is width and height."""
        noise = np.random.default_rng(zlib.crc32(name.encode()))
        return self.array(name, noise.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))

    def mask(self, name: str, value: int = 255, size: tuple[int, int] = (20, 16)) -> Path:
        """A mask whose left half holds one value."""
        pixels = np.zeros((size[1], size[0]), dtype=np.uint8)
        pixels[:, : size[0] // 2] = value
        return self.array(name, pixels)

    def array(self, name: str, pixels: np.ndarray) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        return path

    def pairs(self, site: str, count: int = 8, value: int = 255) -> None:
        for i in range(count):
            self.image(f"{site}/images/p{i}.png")
            self.mask(f"{site}/masks/p{i}.png", value)

    def classes(self, site: str, **counts: int) -> None:
        for name, count in counts.items():
            for i in range(count):
                self.image(f"{site}/{name}/{i}.png")

    def table(self, *rows: str, header: str = "site,image,label", name: str = "list.csv") -> Path:
        path = self.root / name
        path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
        return path

    def manifest(self, text: str) -> Path:
        """A federation.yaml beside the sites."""
        path = self.root / "federation.yaml"
        path.write_text(dedent(text), encoding="utf-8")
        return path

    def open(
        self, task: dict[str, Any] | None = None, report: Any = None, **federation: Any
    ) -> Federation:
        if not {"csv", "synthetic", "file"} & set(federation):
            federation.setdefault("folder", self.root)
        config = FederationConfig(**{"image_size": 16, "cache": self.cache, **federation})
        return open_federation(config, TaskConfig(**(task or {})), report)


@pytest.fixture
def build(tmp_path: Path) -> Builder:
    return Builder(tmp_path)


@pytest.fixture
def shared_data() -> Path:
    if not SHARED_DATA.is_dir():
        pytest.skip("the real data lie beside the repository only on the project's machines")
    return SHARED_DATA
