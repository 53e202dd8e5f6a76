"""Images that occur twice: byte for byte, or nearly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from konsil.data.notes import Note, Pair, between_splits, exact_copies, how_many
from konsil.data.recipe import mask_files
from konsil.data.sources import Item
from konsil.prepare.check.look import Seen
from konsil.prepare.check.similarity import links


@dataclass(frozen=True)
class Copy:
    """Two files that hold the same picture; of volumes, the first slices that are alike."""

    first: Item
    second: Item
    similarity: float | None  # None: the same bytes

    @property
    def pair(self) -> Pair:
        """Both."""
        return self.first, self.second

    def to_json(self) -> dict[str, Any]:
        """Who, where, and how much alike."""
        both = [{"site": i.site, "split": i.split, "image": i.name} for i in self.pair]
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
    exact = [one.pair for one in copies if one.similarity is None]
    near = [one.pair for one in copies if one.similarity is not None]
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
