"""The data side: federations from folders, files and generators, as arrays on disk.

`open_federation` finds, checks, splits and decodes. Training code gets `TrainingData`, which has
no test images and no way to them; `test_images` is for evaluation alone.

Names are loaded when they are asked for: commands that only look at files do without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from konsil.data.augment import augmented
    from konsil.data.federation import Federation, open_federation
    from konsil.data.images import Images, TrainingData, test_images, training_data

__all__ = [
    "Federation",
    "Images",
    "TrainingData",
    "augmented",
    "open_federation",
    "test_images",
    "training_data",
]

_HOMES = {
    "augment": ("augmented",),
    "federation": ("Federation", "open_federation"),
    "images": ("Images", "TrainingData", "test_images", "training_data"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
