"""How sure a mean over images is: its 95 % interval by the bootstrap.

Patients are drawn with replacement, as often as there are patients, and the mean of their images is
taken: the middle 95 % of such means. The draws are the same wherever they are made. Where nobody
has told whose an image is, each counts as a patient of its own, and such intervals are too narrow.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from konsil.randomness import derive

DRAWS, AT_ONCE = 2000, 50
ENDS = (2.5, 97.5)  # percentiles
FEWEST = 2  # patients: the mean of one has no interval


def intervals_of(
    columns: Mapping[str, Sequence[float]], metrics: Sequence[str], patients: Sequence[int] = ()
) -> dict[str, list[float]]:
    """Both ends of the interval of every metric that is a mean of single images' values.

    `patients`: of each image the number; none: nobody has told.
    """
    given = [name for name in metrics if len(columns.get(name, ())) >= FEWEST]
    if not given or len(set(patients)) == 1:
        return {}
    values = np.array([columns[name] for name in given], np.float64)
    sizes = np.ones(values.shape[1])
    if len(patients):
        sizes = np.bincount(patients).astype(np.float64)
        values = np.stack([np.bincount(patients, own) for own in values])
    ends = np.percentile(_means(values, sizes), ENDS, axis=0).T
    return {name: both.tolist() for name, both in zip(given, ends, strict=True)}


def _means(sums: NDArray[np.float64], sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """[draws, metrics] of sums [metrics, patients] over so many images of each patient.

    Some draws at a time: patients may be many.
    """
    patients = len(sizes)
    generator = np.random.Generator(np.random.PCG64(derive("interval", patients)))
    pieces = []
    for _ in range(DRAWS // AT_ONCE):
        drawn = generator.integers(0, patients, (AT_ONCE, patients))
        pieces.append((sums[:, drawn].sum(axis=2) / sizes[drawn].sum(axis=1)).T)
    return np.concatenate(pieces)
