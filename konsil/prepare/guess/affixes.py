"""How the names of images and masks belong together: `case01_t2` and `case01_mask`, say."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

NEIGHBOURS = 16  # of an image's name among the sorted names of masks, that may be its own
TRIED = 5  # images
SAMPLE, KEPT = 60, 24  # images on which ways are compared, and ways that are then counted


@dataclass(frozen=True)
class Affix:
    """What surrounds the part of a name that an image and its masks share."""

    before: str = ""
    after: str = ""

    def core(self, name: str) -> str | None:
        """The name without it; None if the name is not of this kind."""
        long_enough = len(name) > len(self.before) + len(self.after)
        if not (long_enough and name.startswith(self.before) and name.endswith(self.after)):
            return None
        return name[len(self.before) : len(name) - len(self.after)]

    def around(self, core: str) -> str:
        """A name of this kind."""
        return self.before + core + self.after


@dataclass(frozen=True)
class Relation:
    """How an image's name becomes its mask's, and for how many images that works."""

    image: Affix
    mask: Affix
    hits: int


def relations(images: set[str], masks: set[str]) -> list[Relation]:
    """Every way in which names of images become names of masks, found on a few and counted."""
    tried = sorted(images)[:: max(1, len(images) // TRIED)][:TRIED]
    forward = sorted((name, name) for name in masks)
    backward = sorted((name[::-1], name) for name in masks)
    ways: set[tuple[Affix, Affix]] = set()
    for image in tried:
        for near in {*_near(image, forward), *_near(image[::-1], backward)}:
            ways.update(_ways(image, near))
    few = set(sorted(images)[:: max(1, len(images) // SAMPLE)])
    likely = sorted(ways, key=lambda way: (-_hits(way, few, masks), str(way)))[:KEPT]
    counted = [Relation(*way, hits=_hits(way, images, masks)) for way in likely]
    return [relation for relation in counted if relation.hits]


def _near(name: str, ordered: Sequence[tuple[str, str]]) -> list[str]:
    at = bisect_left(ordered, (name, ""))
    return [mask for _, mask in ordered[max(0, at - NEIGHBOURS) : at + NEIGHBOURS]]


def _ways(image: str, mask: str) -> Iterator[tuple[Affix, Affix]]:
    """The longest common beginning and the longest common end, cut between words."""
    start = _common_start(image, mask)
    if start:
        yield Affix(after=image[start:]), Affix(after=mask[start:])
    end = _common_start(image[::-1], mask[::-1])
    if end:
        yield Affix(before=image[: len(image) - end]), Affix(before=mask[: len(mask) - end])


def _common_start(one: str, other: str) -> int:
    """How many characters two names share from the beginning, in whole words."""
    pairs = enumerate(zip(one, other, strict=False))
    at = next((k for k, (a, b) in pairs if a != b), min(len(one), len(other)))
    while at and not (_ends_word(one, at) and _ends_word(other, at)):
        at -= 1
    return at


def _ends_word(name: str, at: int) -> bool:
    """Whether a word ends before this position: 1 is not the beginning of 10."""
    if at == len(name):
        return True
    left, right = name[at - 1], name[at]
    return (left.isalnum() or left in ")]") and (
        not right.isalnum() or left.isdigit() != right.isdigit()
    )


def _hits(way: tuple[Affix, Affix], images: set[str], masks: set[str]) -> int:
    own, other = way
    cores = (own.core(name) for name in images)
    return sum(core is not None and other.around(core) in masks for core in cores)
