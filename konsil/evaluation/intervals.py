"""How sure a mean over images is: its 95 % interval by the bootstrap.

Images are drawn with replacement, as often as there are images, and their mean is taken: the
middle 95 % of such means. The draws are the same wherever they are made. Several images of one
patient are drawn as if they were of several, so that such intervals are too narrow.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from konsil.randomness import derive

DRAWS, AT_ONCE = 2000, 50
ENDS = (2.5, 97.5)  # percentiles
FEWEST = 2  # images: the mean of one has no interval


def intervals_of(
    columns: Mapping[str, Sequence[float]], metrics: Sequence[str]
) -> dict[str, list[float]]:
    """Both ends of the interval of every metric that is a mean of single images' values."""
    given = [name for name in metrics if len(columns.get(name, ())) >= FEWEST]
    if not given:
        return {}
    values = np.array([columns[name] for name in given], np.float64)
    ends = np.percentile(_means(values), ENDS, axis=0).T
    return {name: both.tolist() for name, both in zip(given, ends, strict=True)}


def _means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """[draws, metrics] of values [metrics, images], some draws at a time: images may be many."""
    images = values.shape[1]
    generator = np.random.Generator(np.random.PCG64(derive("interval", images)))
    pieces = []
    for _ in range(DRAWS // AT_ONCE):
        drawn = generator.integers(0, images, (AT_ONCE, images))
        pieces.append(values[:, drawn].mean(axis=2).T)
    return np.concatenate(pieces)
