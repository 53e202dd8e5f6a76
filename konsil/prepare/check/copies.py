"""Images that occur twice: byte for byte, or nearly, which is found on thumbnails.

Compared is the fine structure. Every thumbnail has its local mean taken away and is divided by its
local deviation, so that brightness, contrast and gamma hardly matter. Then what the images of a
site have in common (the round field of a camera, a frame, the outline of a pelvis) is taken away,
because it would make all of them alike. The correlation of what is left is the similarity.

Measured on fundus photographs and prostate MR of eight hospitals: a copy that was saved as JPEG
(quality 70), resized or made 10 % brighter is at .93 or above; different patients are below .55,
and below .82 with an artificial round field that jumps about.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter

from konsil.data.notes import Note, Pair, between_splits, exact_copies, how_many
from konsil.data.recipe import mask_files
from konsil.data.sources import Item
from konsil.prepare.check.look import Seen

LIKE = 0.88  # from here on two images are called the same
FLAT = 8  # grey levels: thumbnails within fewer show nothing that could be compared
AROUND = 5  # pixels a side: what local means
SOFTEN = 2.0  # grey levels: weaker structure is left weak, for it is mostly rounding
PRIOR = 10  # images: the common part of a site of two copies must not be those two
BLOCK = 2048  # images at a time: bounds the memory

Thumbnails = NDArray[np.uint8]
Vectors = NDArray[np.float32]
Link = tuple[int, int, float]  # two images and their similarity


@dataclass(frozen=True)
class Copy:
    """Two files that hold the same picture; of volumes, the first slices that are alike."""

    first: Item
    second: Item
    similarity: float | None  # None: the same bytes

    def to_json(self) -> dict[str, Any]:
        """Who, where, and how much alike."""
        pair = self.first, self.second
        both = [{"site": i.site, "split": i.split, "image": i.name} for i in pair]
        return {"images": both, "exact": self.similarity is None, "similarity": self.similarity}


def find_copies(seen: Sequence[Seen]) -> list[Copy]:
    """Exact copies, then those that only look the same and are of different patients."""
    digests = _digests(seen)
    exact = exact_copies([one.item for one in seen], digests)
    copies = [Copy(first, second, None) for first, second in exact]
    found: set[tuple[str, str]] = set()
    for first, second, similarity in _alike(seen):
        files = first.image, second.image
        if digests[first.image] != digests[second.image] and files not in found:
            copies.append(Copy(first, second, round(similarity, 3)))
        found.add(files)
    return copies


def _digests(seen: Sequence[Seen]) -> dict[str, str]:
    return {name: digest for one in seen for name, digest in one.digests.items()}


def _alike(seen: Sequence[Seen]) -> Iterator[tuple[Item, Item, float]]:
    if not seen:
        return
    images = [image for one in seen for image in one.images]
    _, sites = np.unique([image.site for image in images], return_inverse=True)
    patients = [f"{image.site}/{image.patient}" for image in images]
    _, numbers = np.unique(patients, return_inverse=True)
    for i, j, similarity in links(np.concatenate([o.thumbnails for o in seen]), sites, numbers):
        yield images[i], images[j], similarity


# --- in words -----------------------------------------------------------------------------------


def notes_on(copies: Sequence[Copy], seen: Sequence[Seen]) -> Iterator[Note]:
    """What the copies mean for training."""
    exact = [(one.first, one.second) for one in copies if one.similarity is None]
    near = [(one.first, one.second) for one in copies if one.similarity is not None]
    yield from _labelled_differently(exact, _digests(seen))
    yield from _by_place(exact, "the same, byte for byte, as", "")
    visits = ". If they are slices or visits of one patient, say so by `patient`"
    yield from _by_place(near, "almost the same as", visits)


def _labelled_differently(pairs: Sequence[Pair], digests: Mapping[str, str]) -> Iterator[Note]:
    """The same image with two answers: one of them is wrong."""

    def label(item: Item) -> list[str]:
        return [digests.get(name, name) for name in mask_files(item)]

    different = [(a, b) for a, b in pairs if label(a) != label(b)]
    if different:
        text = (
            f"{how_many(different)} the same, byte for byte, as one with another label, such as "
            f"{_at_sites(*different[0])}; find out which label is right, and keep that one"
        )
        yield Note("copies with different labels", text)


def _by_place(pairs: Sequence[Pair], how: str, also: str) -> Iterator[Note]:
    yield from between_splits(pairs, how)
    rest = [(a, b) for a, b in pairs if a.split == b.split]
    sites = [(a, b) for a, b in rest if a.site != b.site]
    within = [(a, b) for a, b in rest if a.site == b.site]
    if sites:
        text = (
            f"{how_many(sites)} {how} one at another site, such as {_at_sites(*sites[0])}; a site "
            "then learns from, or is tested on, another one's data: keep each at one site"
        )
        yield Note("copies at several sites", text)
    if within:
        a, b = within[0]
        text = (
            f"{how_many(within)} {how} another one of the same site and split, such as {a.name} "
            f"and {b.name}; they count double: take the copies away{also}"
        )
        yield Note("copies in one split", text)


def _at_sites(a: Item, b: Item) -> str:
    return f"{a.name} ({a.site}) and {b.name} ({b.site})"


# --- nearly ------------------------------------------------------------------------------------


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
    local_mean = partial(uniform_filter, size=(1, AROUND, AROUND), mode="nearest")
    pixels -= local_mean(pixels)
    pixels /= np.sqrt(local_mean(pixels**2)) + np.float32(SOFTEN)
    return _unit(pixels.reshape(len(pixels), -1))


def _unit(vectors: Vectors) -> Vectors:
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(length, np.float32(1e-6)))
