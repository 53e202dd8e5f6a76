"""Training batches as one makes them with MONAI: its caches, its transforms, its loader."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any, Literal

import torch
from monai.data import (
    CacheDataset,
    DataLoader,
    Dataset,
    PersistentDataset,
    get_track_meta,
    set_track_meta,
)
from monai.transforms import (
    Compose,
    EnsureTyped,
    RandAdjustContrastd,
    RandAffined,
    RandFlipd,
    RandScaleIntensityFixedMeand,
    RandShiftIntensityd,
    ScaleIntensityRanged,
    Transform,
)
from torch import Tensor

from konsil.data import Images
from konsil.data.augment import RANGES

BOTH = ("image", "label")


class FromKonsil(Transform):
    """The same pixels on both sides: an image as Konsil decoded it. Done once, then cached."""

    def __init__(self, images: Images) -> None:
        self.images = images

    def __call__(self, data: Mapping[str, int]) -> dict[str, Tensor]:
        x, y = self.images.batch(torch.tensor([data["row"]]))
        return dict(zip(BOTH, (x[0], y[0]), strict=True))


def like_light(size: int) -> list[Callable[..., Any]]:
    """What `augment: light` does, with its ranges."""
    light = RANGES["light"]
    gamma = math.exp(-light.gamma), math.exp(light.gamma)
    return [
        RandFlipd(BOTH, prob=0.5, spatial_axis=1),
        RandAffined(
            BOTH,
            prob=1,
            spatial_size=(size, size),
            rotate_range=math.radians(light.rotation),
            scale_range=(light.scale,) * 2,
            translate_range=(light.shift * size,) * 2,
            mode=("bilinear", "nearest"),
            padding_mode="border",
            cache_grid=True,
        ),
        RandAdjustContrastd("image", prob=1, gamma=gamma),
        RandScaleIntensityFixedMeand("image", prob=1, factors=light.contrast),
        RandShiftIntensityd("image", prob=1, offsets=light.brightness),
        ScaleIntensityRanged("image", 0, 1, 0, 1, clip=True),
    ]


@dataclass(frozen=True)
class Way:
    """How MONAI is used."""

    dataset: Literal["CacheDataset", "PersistentDataset"]  # from memory; from files, one an image
    augmented: bool
    metadata: bool = False  # whether tensors carry the history of their transforms: its default

    def transform(self, images: Images) -> Compose:
        """Decoding, which is cached, and what is drawn anew for every batch."""
        kept = [EnsureTyped(BOTH, track_meta=True)] if self.metadata else []
        drawn = like_light(images.images.shape[-1]) if self.augmented else []
        return Compose([FromKonsil(images), *kept, *drawn]).set_random_state(0)

    def open(self, images: Images, folder: Path) -> Dataset:
        """The dataset, its cache not yet filled where it lies in files."""
        rows = [{"row": row} for row in range(len(images))]
        if self.dataset == "CacheDataset":
            return CacheDataset(rows, self.transform(images), progress=False)
        safe = {"track_meta": self.metadata, "weights_only": not self.metadata}
        return PersistentDataset(rows, self.transform(images), folder, **safe)


class MonaiEpoch:
    """A call is one epoch in random order; the loader works in this process, on one core."""

    def __init__(self, way: Way, images: Images, batch_size: int, folder: Path) -> None:
        self.way = way
        with tracking(way.metadata):
            self.dataset = way.open(images, folder)
        self.loader = DataLoader(self.dataset, batch_size=batch_size, shuffle=True, num_workers=0)

    def __call__(self) -> float:
        """Processor seconds of an epoch."""
        with tracking(self.way.metadata):
            began = process_time()
            rows = sum(len(batch["image"]) for batch in self.loader)
            took = process_time() - began
        assert rows == len(self.dataset)
        return took

    def item(self, row: int) -> tuple[Tensor, Tensor]:
        """One image and its masks, as a network would get them."""
        with tracking(self.way.metadata):
            item = self.dataset[row]
        return item["image"], item["label"]


@contextmanager
def tracking(metadata: bool) -> Iterator[None]:
    """MONAI's switch is one for the whole process."""
    usual = get_track_meta()
    set_track_meta(metadata)
    try:
        yield
    finally:
        set_track_meta(usual)
