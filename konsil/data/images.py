"""Decoded images in memory maps, and the view of them that training gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from konsil.data.cache import keep
from konsil.errors import DataError


@dataclass(frozen=True, eq=False)
class Images:
    """One split of one site, or of several sites pooled."""

    images: Tensor  # uint8 [N, C, H, W]
    targets: Tensor  # segmentation: uint8 0/1 [N, S, H, W]; classification: int64 [N]

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, index: Tensor, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """These images as float32 in [0, 1], and their masks as float32 or classes as int64."""
        x = self.images.index_select(0, index).to(device)  # bytes travel, floats are made there
        y = self.targets.index_select(0, index).to(device)
        return x.float().div_(255), y.float() if y.dtype == torch.uint8 else y

    @staticmethod
    def pooled(parts: Sequence[Images]) -> Images:
        """All images of several splits, one after the other."""
        if len(parts) == 1:
            return parts[0]
        images, targets = zip(*((part.images, part.targets) for part in parts), strict=True)
        return Images(torch.cat(images), torch.cat(targets))


@dataclass(frozen=True)
class TrainingData:
    """What training code gets: no test images, and no path that would lead to them."""

    train: Images
    val: Images


def training_data(folder: Path, sites: Sequence[str]) -> TrainingData:
    """The training and validation images of these sites, pooled in this order; no test file
    is opened.
    """
    keep(folder)
    train, val = ([_open(folder / site / split) for site in sites] for split in ("train", "val"))
    return TrainingData(Images.pooled(train), Images.pooled(val))


def test_images(folder: Path, site: str) -> Images:
    """The test images of a site. For evaluation alone."""
    keep(folder)
    return _open(folder / site / "test")


test_images.__test__ = False  # type: ignore[attr-defined]  # pytest shall not take it for a test


def _open(folder: Path) -> Images:
    return Images(_map(folder / "images.npy"), _map(folder / "targets.npy"))


def _map(path: Path) -> Tensor:
    try:
        # Copy on write: torch wants writable memory, and the file must never change.
        return torch.from_numpy(np.load(path, mmap_mode="c"))
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"{path}: the cached images cannot be opened ({error}); open the federation again, "
            "which rebuilds them"
        ) from None
