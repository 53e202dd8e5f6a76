"""Images that look the same although their files differ, found on thumbnails.

Compared is the fine structure. Every thumbnail has its local mean taken away and is divided by its
local deviation, so that brightness, contrast and gamma hardly matter. Then what the images of a
site have in common (the round field of a camera, a frame, the outline of a pelvis) is taken away,
because it would make all of them alike. The correlation of what is left is the similarity.

Measured on fundus photographs and prostate MR of eight hospitals: a copy that was saved as JPEG
(quality 70), resized or made 10 % brighter is at .93 or above; different patients are below .55,
and below .82 with an artificial round field that jumps about.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter

LIKE = 0.88  # from here on two images are called the same
FLAT = 8  # grey levels: thumbnails within fewer show nothing that could be compared
AROUND = 5  # pixels a side: what local means
SOFTEN = 2.0  # grey levels: weaker structure is left weak, for it is mostly rounding
PRIOR = 10  # images: the common part of a site of two copies must not be those two
BLOCK = 2048  # images at a time: bounds the memory

Thumbnails = NDArray[np.uint8]
Vectors = NDArray[np.float32]
Link = tuple[int, int, float]  # two images and their similarity


def links(
    thumbnails: Thumbnails, sites: NDArray[np.int64], patients: NDArray[np.int64]
) -> list[Link]:
    """Images of different patients that look the same: each with the later one most like it.

    Every pair is compared. Of several copies every one is linked to another, not all to all.
    """
    shown = np.flatnonzero(np.ptp(thumbnails, axis=(1, 2)) > FLAT)
    shown = shown[np.argsort(sites[shown], kind="stable")]
    thumbnails, sites, patients = thumbnails[shown], sites[shown], patients[shown]
    found: list[Link] = []
    for site in np.unique(sites):
        first, last = np.searchsorted(sites, [site, site + 1])
        common = _common(thumbnails[first:last])
        for rows in _blocks(int(first), int(last)):
            partners, similarities = _most_alike(thumbnails, patients, rows, common)
            for i in np.flatnonzero(similarities > LIKE):
                link = int(shown[rows][i]), int(shown[partners[i]]), float(similarities[i])
                found.append(link)
    return found


def _blocks(begin: int, end: int) -> Iterator[slice]:
    for start in range(begin, end, BLOCK):
        yield slice(start, min(start + BLOCK, end))


def _common(thumbnails: Thumbnails) -> Vectors:
    """What the images of a site share."""
    blocks = _blocks(0, len(thumbnails))
    total = sum(_fine_structure(thumbnails[block]).sum(axis=0) for block in blocks)
    return np.asarray(total / np.float32(len(thumbnails) + PRIOR))


def _most_alike(
    thumbnails: Thumbnails, patients: NDArray[np.int64], rows: slice, common: Vectors
) -> tuple[NDArray[np.int64], Vectors]:
    """For each of some images the later one of another patient that is most like it."""
    left = _unit(_fine_structure(thumbnails[rows]) - common)
    partners = np.zeros(len(left), np.int64)
    most = np.zeros(len(left), np.float32)
    for columns in _blocks(rows.start, len(thumbnails)):
        similarity = left @ _unit(_fine_structure(thumbnails[columns]) - common).T
        similarity[patients[rows, None] == patients[columns]] = 0
        if columns.start == rows.start:
            similarity = np.triu(similarity)
        nearest = similarity.argmax(axis=1)
        value = similarity[np.arange(len(left)), nearest]
        better = value > most
        partners[better], most[better] = columns.start + nearest[better], value[better]
    return partners, most


def _fine_structure(thumbnails: Thumbnails) -> Vectors:
    pixels = thumbnails.astype(np.float32)
    pixels -= _local_mean(pixels)
    pixels /= np.sqrt(_local_mean(pixels**2)) + np.float32(SOFTEN)
    return _unit(pixels.reshape(len(pixels), -1))


def _local_mean(images: Vectors) -> Vectors:
    """Over a square of AROUND pixels about each; the border's pixels continue beyond it."""
    return np.asarray(uniform_filter(images, (1, AROUND, AROUND), mode="nearest"))


def _unit(vectors: Vectors) -> Vectors:
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(length, np.float32(1e-6)))
