"""The patterns of one site: what its images are called, and the masks that go with them.

Files that lie alike may be described by several patterns, such as `north/images/*.png` and
`north/images/img_*.png`. The two patterns of images and masks whose stars agree most often are
right: a federation file pairs its files by those stars.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from konsil.data.patterns import Pattern, Stars
from konsil.data.sources import without_suffix
from konsil.prepare.guess.files import Unit
from konsil.prepare.guess.rules import called, role_of, words

MOST_STRUCTURES = 8
MOST_TEMPLATES = 24  # of files that lie alike
NEARLY_ALL = 0.8


@dataclass(frozen=True, eq=False)
class Template:
    """A pattern that may be meant, and the files it matches by what its stars stand for."""

    text: str
    affix: str  # what stands before and after the last star
    files: dict[Stars, Unit]

    @cached_property
    def ends(self) -> list[set[Stars]]:
        """What the last stars stand for: none of them, one, two, ..."""
        stars = len(next(iter(self.files)))
        return [{own[stars - k :] for own in self.files} for k in range(stars + 1)]

    def agreeing(self, other: Template) -> int:
        """How often the stars, from the end as many as both have, are those of the other."""
        shared = min(len(self.ends), len(other.ends)) - 1
        return len(self.ends[shared] & other.ends[shared])


# --- the templates that come into question --------------------------------------------------------


def place(units: Iterable[Unit]) -> str:
    """The folders of units of the same depth, as a pattern writes them."""
    columns = zip(*(unit.dirs for unit in units), strict=True)
    return "".join(f"{_literal(c[0])}/" if len(set(c)) == 1 else "*/" for c in columns)


def suffixes(units: Iterable[Unit]) -> str:
    """Their one suffix, or {several}."""
    found = sorted({unit.suffix for unit in units})
    return found[0] if len(found) == 1 else "{" + ",".join(found) + "}"


def _literal(text: str) -> str:
    """Text that a pattern takes as it is, as far as that can be said."""
    return re.sub(r"[*?{}]", "?", text)


def _templates(units: Sequence[Unit], known: set[str]) -> Iterator[Template]:
    for own in _alike(units, known):
        folders, suffix = place(own), suffixes(own)
        stems = [unit.stem for unit in own]
        homes = len({unit.dirs for unit in own})
        usual = Counter(stems).most_common(MOST_TEMPLATES) if homes > 1 else []
        names = [("*", "")]
        names += [(f"{_literal(a)}*{_literal(b)}", a + b) for a, b in affixes(stems)]
        # the whole name, where a folder says whose it is: P01/T2, P01/mask
        names += [(_literal(name), "") for name, times in usual if 2 * times >= homes]
        for name, affix in names:
            pattern = Pattern(folders + name + suffix, "images")
            matches = ((pattern.stars(unit.path), unit) for unit in own)
            files = {stars: unit for stars, unit in matches if stars is not None}
            if files:
                yield Template(pattern.text, affix, files)


def affixes(stems: Sequence[str]) -> list[tuple[str, str]]:
    """Beginnings and endings that several names have, cut between words: 1 does not begin 10."""
    times: Counter[tuple[str, str]] = Counter()
    for stem in stems:
        for word in re.finditer(r"(?:\d+|[^\W\d_]+)[)\]]*", stem):
            begin, end = word.span()
            times[stem[:begin], ""] += 1
            times["", stem[end:]] += 1
    del times["", ""]
    enough = len(stems) / (2 * MOST_STRUCTURES)
    return [affix for affix, count in times.most_common(MOST_TEMPLATES) if count >= enough]


def _alike(units: Sequence[Unit], known: set[str]) -> Iterable[list[Unit]]:
    """Units of the same depth and kind, in folders of the same meaning.

    A few folders that are not `known` from the images are one a structure: `masks/disc/*`.
    """
    foreign: dict[int, set[str]] = defaultdict(set)
    for unit in units:
        for depth in unit.neutral:
            foreign[depth] |= {unit.dirs[depth]} - known
    few = {depth: own for depth, own in foreign.items() if 1 < len(own) <= MOST_STRUCTURES}
    groups: dict[tuple[object, ...], list[Unit]] = defaultdict(list)
    for unit in units:
        apart = [
            name if role_of(name, depth) in ("image", "mask") or name in few.get(depth, ()) else ""
            for depth, name in enumerate(unit.dirs)
        ]
        groups[unit.kind == "picture", *apart].append(unit)
    return groups.values()


# --- which of them fit ----------------------------------------------------------------------------


def pair(images: Sequence[Unit], masks: Sequence[Unit]) -> tuple[dict[str, Any], list[Unit]] | None:
    """The patterns that give most images their mask or masks, and those images; None if none do."""
    known = {name for image in images for name in (*image.dirs, image.stem)}
    labels = list(_templates(masks, known))
    best = min(_templates(images, known), key=lambda template: _rank(template, labels))
    fits = [(best.agreeing(label), label) for label in labels]
    hits = max((number for number, _ in fits), default=0)
    if not hits:
        return None
    kept = _one_a_mask([fit for fit in fits if fit[0] >= NEARLY_ALL * hits])
    named = dict(zip(_structure_names([label.text for label in kept]), kept, strict=True))
    texts = {name: label.text for name, label in named.items()}
    return {"images": best.text, "labels": texts.get("", texts)}, list(best.files.values())


def _rank(images: Template, labels: Sequence[Template]) -> tuple[object, ...]:
    """Most hits first; then plain patterns, T2 before what is called an image, short ones.

    A plain pattern of series is the last resort: `north/*` is also the folder of their masks.
    """
    hits = max((images.agreeing(label) for label in labels), default=0)
    series = next(iter(images.files.values())).kind == "series"
    said = set(words(images.text))
    wanted = [{"t2", "t2w"} & said, (called("image") | {"0000"}) & said]  # nnU-Net's first is 0000
    misses = len(images.files) - hits
    plain = bool(images.affix) == series
    text = images.text
    return -hits, not plain, misses, *(not said for said in wanted), len(text), text


def _one_a_mask(fits: list[tuple[int, Template]]) -> list[Template]:
    """Each file counts once, with the template that fits most images."""
    taken: set[Unit] = set()
    kept = []
    for _, label in sorted(fits, key=lambda fit: (-fit[0], len(fit[1].affix), fit[1].text)):
        units = set(label.files.values())
        if not units & taken:
            kept.append(label)
            taken |= units
    return kept


def _structure_names(patterns: Sequence[str]) -> list[str]:
    """What distinguishes the masks of one image: a folder, a file's name, or its ending."""
    if len(patterns) == 1:
        return [""]
    every = [re.findall(r"[A-Za-z0-9]+", without_suffix(text)) for text in patterns]
    texts = [[word for word in own if word.lower() not in called("mask")] for own in every]
    shared = set.intersection(*map(set, texts))
    names = ["_".join(word for word in text if word not in shared) for text in texts]
    usable = all(names) and len(set(names)) == len(names)
    return names if usable else [f"structure_{k}" for k, _ in enumerate(patterns, 1)]
