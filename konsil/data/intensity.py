"""From a scanner's intensities to the 8 bit that the cache holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Percentiles:
    """From the darker to the brighter percentile of an image or volume."""

    low: float
    high: float


Window = tuple[float, float] | Percentiles | Literal["full"]
# MR has no absolute unit, and single bright voxels (vessels, coils) would darken all others.
OF_VOLUMES = Percentiles(0.5, 99.5)


def limits(values: NDArray[Any], window: Window) -> tuple[float, float]:
    """The intensities that become 0 and 255."""
    if isinstance(window, Percentiles):
        low, high = np.percentile(values, [window.low, window.high])
        if low == high:  # most of it is background
            low, high = values.min(), values.max()
        return float(low), float(high)
    if window == "full":
        if not np.issubdtype(values.dtype, np.integer):
            return float(values.min()), float(values.max())
        kind = np.iinfo(values.dtype)
        return float(kind.min), float(kind.max)
    return float(window[0]), float(window[1])


def to_eight_bit(values: NDArray[Any], window: Window) -> NDArray[np.uint8]:
    """Linear between the window's ends, cut off beyond them, rounded."""
    low, high = limits(values, window)
    if high <= low:
        return np.zeros(values.shape, np.uint8)
    scaled = (values.astype(np.float32) - np.float32(low)) * np.float32(255 / (high - low))
    return np.rint(scaled.clip(0, 255, out=scaled), out=scaled).astype(np.uint8)
