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

LIKE = 0.88  # from here on two images are called the same
FLAT = 8  # grey levels: thumbnails within fewer show nothing that could be compared
AROUND = 5  # pixels a side: what local means
SOFTEN = 2.0  # grey levels: weaker structure is left weak, for it is mostly rounding
PRIOR = 10  # images: the common part of a site of two copies must not be those two

EVERY_PAIR = 30_000  # images; beyond, only those with a code in common are compared
BLOCK = 2048  # images at a time: bounds the memory
BANDS, BITS = 40, 20  # a similarity of .97 shares a band with 99.98 %, one of .93 with 96 %
NEIGHBOURS = 8  # of those with the same code, how many are compared
DIFFERENT_BITS = 0.2  # of all; at a similarity of LIKE .157 are expected

Link = tuple[int, int, float]  # two images and their similarity


def links(
    thumbnails: NDArray[np.uint8], sites: NDArray[np.int64], patients: NDArray[np.int64]
) -> list[Link]:
    """Images of different patients that look the same: each with the one most like it.

    Of several copies every one is linked to another, not all to all. Beyond `EVERY_PAIR` images
    similarity is first guessed from random codes; a weak similarity may then be missed.
    """
    height, width = thumbnails.shape[1:]
    spread = np.ptp(thumbnails.reshape(-1, height * width), axis=1)
    shown = np.flatnonzero(spread > FLAT)
    shown = shown[np.argsort(sites[shown], kind="stable")]
    if len(shown) < 2:
        return []
    gallery = _Gallery(thumbnails, sites, shown)
    best = _Best(patients[shown])
    (_every_pair if gallery.is_small else _by_codes)(gallery, best)
    return [(int(shown[i]), int(shown[j]), similarity) for i, j, similarity in best.links()]


class _Best:
    """For each image the later one of another patient that is most like it."""

    def __init__(self, patients: NDArray[np.int64]) -> None:
        self.patients = patients
        self.partner = np.full(len(patients), -1)
        self.similarity = np.full(len(patients), np.float32(LIKE))

    def offer(
        self, i: NDArray[np.int64], j: NDArray[np.int64], similarity: NDArray[np.float32]
    ) -> None:
        """Pairs to be considered."""
        i, j = np.minimum(i, j), np.maximum(i, j)
        better = (self.patients[i] != self.patients[j]) & (similarity > self.similarity[i])
        rising = np.argsort(similarity[better], kind="stable")  # so that the best is written last
        i, j, similarity = (values[better][rising] for values in (i, j, similarity))
        self.partner[i], self.similarity[i] = j, similarity

    def links(self) -> Iterator[Link]:
        for i in np.flatnonzero(self.partner >= 0).tolist():
            yield i, int(self.partner[i]), float(self.similarity[i])


class _Gallery:
    """Thumbnails in the order of their sites, as vectors whose products are likenesses."""

    def __init__(
        self, thumbnails: NDArray[np.uint8], sites: NDArray[np.int64], shown: NDArray[np.int64]
    ) -> None:
        self._thumbnails, self._shown = thumbnails, shown
        self.sites = sites[shown]
        self._sums: dict[int, NDArray[np.float32]] = {}
        self._kept: NDArray[np.float32] | None = None
        if self.is_small:
            self._kept = np.concatenate([self.vectors(block) for block in self.blocks()])
        for block in self.blocks():
            vectors = self.vectors(block)
            for site in np.unique(self.sites[block]).tolist():
                own = vectors[self.sites[block] == site].sum(axis=0)
                self._sums[site] = self._sums.get(site, np.float32(0)) + own

    def __len__(self) -> int:
        return len(self._shown)

    @property
    def is_small(self) -> bool:
        """Whether its vectors can be kept, and every pair of them compared."""
        return len(self) <= EVERY_PAIR

    def blocks(self, start: int = 0, stop: int | None = None) -> Iterator[NDArray[np.int64]]:
        stop = len(self) if stop is None else stop
        for begin in range(start, stop, BLOCK):
            yield np.arange(begin, min(begin + BLOCK, stop))

    def vectors(self, block: NDArray[np.int64]) -> NDArray[np.float32]:
        if self._kept is not None:
            return self._kept[block[0] : block[-1] + 1]
        return _fine_structure(self._thumbnails[self._shown[block]])

    def common(self, site: int) -> NDArray[np.float32]:
        """What the images of a site share."""
        return self._sums[site] / np.float32((self.sites == site).sum() + PRIOR)

    def common_to_all(self) -> NDArray[np.float32]:
        total = np.sum(list(self._sums.values()), axis=0)
        return np.asarray(total / np.float32(len(self) + PRIOR))


def _fine_structure(thumbnails: NDArray[np.uint8]) -> NDArray[np.float32]:
    pixels = thumbnails.astype(np.float32)
    pixels -= _local_mean(pixels)
    pixels /= np.sqrt(_local_mean(pixels**2)) + np.float32(SOFTEN)
    return _unit(pixels.reshape(len(pixels), -1))


def _local_mean(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Over a square of AROUND pixels about each; the border's pixels continue beyond it."""
    half = AROUND // 2
    padded = np.pad(images, [(0, 0), (half, half), (half, half)], mode="edge")
    rows, columns = images.shape[1:]
    down = padded[:, :rows].copy()
    for shift in range(1, AROUND):
        down += padded[:, shift : shift + rows]
    across = down[:, :, :columns].copy()
    for shift in range(1, AROUND):
        across += down[:, :, shift : shift + columns]
    across /= AROUND**2
    return across


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: NDArray[np.float32] = vectors / np.maximum(length, np.float32(1e-6))
    return scaled


def _every_pair(gallery: _Gallery, best: _Best) -> None:
    for site in np.unique(gallery.sites).tolist():
        own = np.flatnonzero(gallery.sites == site)
        common = gallery.common(site)
        for rows in gallery.blocks(int(own[0]), int(own[-1]) + 1):
            left = _unit(gallery.vectors(rows) - common)
            for columns in gallery.blocks(int(rows[0])):
                similarity = left @ _unit(gallery.vectors(columns) - common).T
                i, j = np.nonzero(similarity > LIKE)
                later = columns[j] > rows[i]
                i, j = i[later], j[later]
                best.offer(rows[i], columns[j], similarity[i, j])


# --- beyond what can be compared pair by pair ---------------------------------------------------


def _by_codes(gallery: _Gallery, best: _Best) -> None:
    """Only pairs that lie on the same side of BITS random planes, in one of BANDS tries.

    Two images of similarity c lie on different sides of a plane with probability arccos(c) / pi.
    """
    bits, codes = _codes(gallery)
    commons = {site: gallery.common(site) for site in np.unique(gallery.sites).tolist()}
    for band in range(BANDS):
        order = np.argsort(codes[:, band], kind="stable")
        for step in range(1, NEIGHBOURS + 1):
            i, j = order[:-step], order[step:]
            same = codes[i, band] == codes[j, band]
            i, j = i[same], j[same]
            other = best.patients[i] != best.patients[j]
            for pairs in _in_blocks(i[other], j[other]):
                _compare(gallery, commons, bits, *pairs, best)


def _codes(gallery: _Gallery) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """For each image its sides, 8 in a byte, and a number for each band of them."""
    draw = np.random.default_rng(0)  # which planes does not matter, but a check is repeatable
    common = gallery.common_to_all()
    planes = draw.standard_normal((len(common), BANDS * BITS), np.float32)
    powers = (1 << np.arange(BITS)).astype(np.uint32)
    bits, codes = [], []
    for block in gallery.blocks():
        sides = (gallery.vectors(block) - common) @ planes > 0
        bits.append(np.packbits(sides, axis=1))
        codes.append((sides.reshape(-1, BANDS, BITS) * powers).sum(axis=2, dtype=np.uint32))
    return np.concatenate(bits), np.concatenate(codes)


def _in_blocks(
    i: NDArray[np.int64], j: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    for begin in range(0, len(i), BLOCK):
        yield i[begin : begin + BLOCK], j[begin : begin + BLOCK]


def _compare(
    gallery: _Gallery,
    commons: dict[int, NDArray[np.float32]],
    bits: NDArray[np.uint8],
    i: NDArray[np.int64],
    j: NDArray[np.int64],
    best: _Best,
) -> None:
    different = np.unpackbits(bits[i] ^ bits[j], axis=1).mean(axis=1)
    i, j = i[different < DIFFERENT_BITS], j[different < DIFFERENT_BITS]
    if not len(i):
        return
    i, j = np.minimum(i, j), np.maximum(i, j)
    common = np.stack([commons[site] for site in gallery.sites[i].tolist()])
    left, right = (_unit(gallery.vectors(k) - common) for k in (i, j))
    best.offer(i, j, (left * right).sum(axis=1))
