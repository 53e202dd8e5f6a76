"""What of a structure is left at the network's size: the best that any model can reach."""

import math
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from konsil.data.image_with_masks import ImageWithMasks
from konsil.data.readers import shrink


def best_dice(mask: NDArray[np.bool_], size: int) -> float:
    """Dice that a perfect answer at size x size has on the mask's own pixels; nan if it is empty.

    The answer comes back as a super model's does (`at_size` in `konsil/networks/outputs.py`), by
    Pillow's interpolation, because who looks at data need not wait for torch.
    """
    marked = np.count_nonzero(mask)
    if not marked:
        return math.nan
    small = Image.fromarray(shrink(mask, size).astype(np.float32))
    height, width = mask.shape
    found = np.asarray(small.resize((width, height), Image.Resampling.BILINEAR)) > 0.5
    both = np.count_nonzero(found & mask)
    return 2 * both / (marked + np.count_nonzero(found))


def best_of(opened: ImageWithMasks, plane: int, size: int) -> dict[str, float]:
    """The same of every structure on one plane of an image."""
    best: dict[str, float] = {}
    for mask in opened.masks:
        layers = mask.planes(mask.values[plane])
        names = (name for name, _ in mask.structures)
        best |= {name: best_dice(one, size) for name, one in zip(names, layers, strict=True)}
    return best


def mean_of(found: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each structure over the images on which it is marked."""
    values: dict[str, list[float]] = {}
    for one in found:
        for name, dice in one.items():
            if not math.isnan(dice):
                values.setdefault(name, []).append(dice)
    return {name: sum(own) / len(own) for name, own in values.items()}
