"""The patterns of one site: what its images are called, and the masks that go with them.

Files that lie alike may be described by several templates, such as `north/images/*.png` and
`north/images/img_*.png`. The two templates of images and masks whose stars agree most often are
right: a federation file pairs its files by those stars.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from konsil.prepare.guess.files import Unit
from konsil.prepare.guess.rules import OPTIC, called, preference, role_of

MOST_STRUCTURES = 8
MOST_TEMPLATES = 24  # of files that lie alike
LOOKED_AT = 1000  # names, to see what they have in common
NEARLY_ALL = 0.8
Stars = tuple[str, ...]


@dataclass(frozen=True)
class Template:
    """A way to describe files that lie alike."""

    units: tuple[Unit, ...] = field(repr=False)
    folders: tuple[str | None, ...]  # None: any
    before: str = ""
    after: str = ""
    name: str | None = None  # the whole name, where a folder says whose it is: P01/T2, P01/mask
    _ends: dict[int, set[Stars]] = field(default_factory=dict, init=False, compare=False)

    @cached_property
    def matches(self) -> dict[Stars, Unit]:
        """Its files, by what stands in place of the stars."""
        found = {}
        for unit in self.units:
            core = self._core(unit.stem)
            if core is not None:
                free = (n for n, said in zip(unit.dirs, self.folders, strict=True) if said is None)
                found[(*free, *core)] = unit
        return found

    @property
    def stars(self) -> int:
        """How many there are."""
        return self.folders.count(None) + (self.name is None)

    def ends(self, shared: int) -> set[Stars]:
        """What the last stars stand for."""
        skipped = self.stars - shared
        if shared not in self._ends:
            self._ends[shared] = {stars[skipped:] for stars in self.matches}
        return self._ends[shared]

    def _core(self, stem: str) -> Stars | None:
        if self.name is not None:
            return () if stem == self.name else None
        end = len(stem) - len(self.after)
        fits = stem.startswith(self.before) and stem.endswith(self.after)
        return (stem[len(self.before) : end],) if fits and end > len(self.before) else None

    def pattern(self) -> str:
        """As a federation file writes it."""
        folders = ["*" if said is None else _literal(said) for said in self.folders]
        varying = f"{_literal(self.before)}*{_literal(self.after)}"
        name = varying if self.name is None else _literal(self.name)
        return "/".join([*folders, name + either({u.suffix for u in self.matches.values()})])

    def said(self) -> list[str]:
        """What is not free in it."""
        return [*filter(None, self.folders), self.name or "", self.before, self.after]

    @property
    def affix(self) -> str:
        """What stands before and after the star."""
        return self.before + self.after

    def wanted(self) -> int:
        """Of images of several kinds, which first."""
        folders = [name for k, name in enumerate(self.folders) if name and role_of(name, k)]
        return min(preference(name) for name in (*folders, self.name or self.affix))


def _literal(text: str) -> str:
    """Text that a pattern takes as it is, as far as that can be said."""
    return re.sub(r"[*?{}]", "?", text)


def either(texts: Iterable[str]) -> str:
    """One text, or {several}."""
    ordered = sorted(texts)
    return ordered[0] if len(ordered) == 1 else "{" + ",".join(ordered) + "}"


# --- the templates that come into question --------------------------------------------------------


def _templates(groups: Iterable[Sequence[Unit]]) -> Iterator[Template]:
    for units in groups:
        columns = zip(*(unit.dirs for unit in units), strict=True)
        folders = tuple(names[0] if len(set(names)) == 1 else None for names in columns)
        whole = Template(tuple(units), folders)
        yield whole
        for before, after in affixes([unit.stem for unit in units]):
            yield Template(whole.units, folders, before, after)
        homes = len({unit.dirs for unit in units})
        names = Counter(unit.stem for unit in units) if homes > 1 else Counter()
        for name, times in names.most_common(MOST_TEMPLATES):
            if 2 * times >= homes:
                yield Template(whole.units, folders, name=name)


def affixes(stems: Sequence[str]) -> list[tuple[str, str]]:
    """Beginnings and endings that several names have, cut between words: 1 does not begin 10."""
    times: Counter[tuple[str, str]] = Counter()
    if len(stems) > LOOKED_AT:  # in one piece each: c01_cup and c01_disc take turns
        stems = [*stems[: LOOKED_AT // 2], *stems[-LOOKED_AT // 2 :]]
    for stem in stems:
        for k in range(1, len(stem)):
            left, right = stem[k - 1], stem[k]
            apart = not (left.isalnum() and right.isalnum()) or left.isdigit() != right.isdigit()
            if apart and (left.isalnum() or left in ")]"):
                times["", stem[k:]] += 1
            if apart and right.isalnum():
                times[stem[:k], ""] += 1
    enough = len(stems) / (2 * MOST_STRUCTURES)
    return [affix for affix, count in times.most_common(MOST_TEMPLATES) if count >= enough]


def _alike(units: Sequence[Unit]) -> Iterator[list[Unit]]:
    """Units of the same depth and kind, in folders of the same meaning."""
    groups: dict[tuple[object, ...], list[Unit]] = defaultdict(list)
    for unit in units:
        meanings = tuple(
            name if role_of(name, depth) in ("image", "mask") else ""
            for depth, name in enumerate(unit.dirs)
        )
        groups[unit.kind == "picture", meanings].append(unit)
    yield from groups.values()


def _by_structure(masks: list[Unit], elsewhere: set[str]) -> list[list[Unit]]:
    """`masks/disc/*`, `masks/cup/*`: a folder that only the masks have, one a structure."""
    for depth in range(len(masks[0].dirs)):
        parts: dict[str, list[Unit]] = defaultdict(list)
        for unit in masks:
            parts[unit.dirs[depth]].append(unit)
        apart = not any(name in elsewhere or role_of(name, depth) == "split" for name in parts)
        if 1 < len(parts) <= MOST_STRUCTURES and apart:
            return list(parts.values())
    return [masks]


# --- which of them fit ----------------------------------------------------------------------------


@dataclass
class Pairing:
    """The patterns of a site, and what they leave out."""

    images: str
    used: list[Unit]
    labels: dict[str, str]  # structure, or "" for all -> pattern
    masks: dict[str, list[Unit]]  # likewise -> files
    unused: list[Unit] = field(default_factory=list)


def pair(images: Sequence[Unit], masks: Sequence[Unit]) -> Pairing | None:
    """The best way to give every image its mask or masks; None if there is none."""
    elsewhere = {name for image in images for name in image.parts}
    split = [part for own in _alike(masks) for part in _by_structure(own, elsewhere)]
    labels = list(_templates(split))
    best: tuple[tuple[object, ...], Template, list[tuple[int, Template]]] | None = None
    for template in _templates(_alike(images)):
        fits = [(agreeing(template, label), label) for label in labels]
        hits = max(number for number, _ in fits)
        misses = len(template.matches) - hits
        plain = (bool(template.affix), misses, template.wanted(), len(template.affix))
        rank = (-hits, _strangers(template, masks), *plain, template.said())
        if hits and (best is None or rank < best[0]):
            best = rank, template, [fit for fit in fits if fit[0] >= NEARLY_ALL * hits]
    return None if best is None else _pairing(best[1], _one_a_mask(best[2]), [*images, *masks])


def agreeing(images: Template, masks: Template) -> int:
    """For how many images the stars, from the end as many as both have, are those of a mask."""
    shared = min(images.stars, masks.stars)
    return len(images.ends(shared) & masks.ends(shared))


def _strangers(template: Template, masks: Sequence[Unit]) -> int:
    """Folders of masks that a template for series would take for series."""
    if template.units[0].kind != "series":
        return 0
    depth = len(template.folders)
    there = {"/".join(mask.dirs[: depth + 1]) for mask in masks if len(mask.dirs) > depth}
    strange = there - {unit.path for unit in template.units}
    units = tuple(Unit(folder, "series") for folder in strange)
    return len(replace(template, units=units).matches)


def _one_a_mask(fits: list[tuple[int, Template]]) -> list[Template]:
    """Each file counts once, with the template that fits most images."""
    taken: set[Unit] = set()
    kept = []
    order = sorted(fits, key=lambda fit: (-fit[0], len(fit[1].affix), fit[1].said()))
    for _, template in order:
        units = set(template.matches.values())
        if not units & taken:
            kept.append(template)
            taken |= units
    return kept


def _pairing(images: Template, masks: Sequence[Template], every: Sequence[Unit]) -> Pairing:
    used = list(images.matches.values())
    named = dict(zip(_structure_names(masks), masks, strict=True))
    files = {name: list(template.matches.values()) for name, template in named.items()}
    taken = {*used, *(unit for own in files.values() for unit in own)}
    labels = {name: template.pattern() for name, template in named.items()}
    unused = [unit for unit in every if unit not in taken]
    return Pairing(images.pattern(), used, labels, files, unused)


def _structure_names(masks: Sequence[Template]) -> list[str]:
    """What distinguishes the masks of one image: a folder, a file's name, or its ending."""
    if len(masks) == 1:
        return [""]
    every = [re.findall(r"[A-Za-z0-9]+", " ".join(template.said())) for template in masks]
    texts = [[word for word in words if word.lower() not in called("mask")] for words in every]
    shared = set.intersection(*map(set, texts))
    names = ["_".join(word for word in text if word not in shared) for text in texts]
    if {OPTIC.get(name.lower()) for name in names} == {"disc", "cup"}:
        names = [OPTIC[name.lower()] for name in names]
    usable = all(names) and len(set(names)) == len(names)
    return names if usable else [f"structure_{k}" for k, _ in enumerate(masks, 1)]
