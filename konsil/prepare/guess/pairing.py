"""The patterns of one site: what its images are called, and the masks that go with them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from konsil.prepare.guess.affixes import Affix, Relation, relations
from konsil.prepare.guess.walk import Unit
from konsil.prepare.guess.words import MASKS, OPTIC, preference, role_of, skeleton

MOST_STRUCTURES = 8
MOST_NAMES = 12  # of one series, as different scanners call it
NEARLY_ALL = 0.8


@dataclass(frozen=True)
class Group:
    """Files that one pattern describes."""

    units: tuple[Unit, ...]
    free: tuple[bool, ...]  # for each folder, whether it varies
    names: tuple[str, ...] = ()  # given where the folder says whose it is: T2, or mask

    def keys(self) -> dict[Unit, str]:
        """The last part of each path that says whose it is."""
        if not self.names:
            return {unit: unit.stem for unit in self.units}
        last = max(depth for depth, free in enumerate(self.free) if free)
        return {unit: unit.dirs[last] for unit in self.units}

    def matching(self, affix: Affix) -> list[Unit]:
        """The units whose names are of this kind."""
        return [unit for unit, key in self.keys().items() if affix.core(key) is not None]

    def pattern(self, affix: Affix) -> str:
        """The glob pattern of the units of this kind."""
        folders = [
            "*" if free else _literal(name)
            for name, free in zip(self.units[0].dirs, self.free, strict=True)
        ]
        varying = f"{_literal(affix.before)}*{_literal(affix.after)}"
        name = _either(map(_literal, self.names)) if self.names else varying
        suffix = _either({unit.suffix for unit in self.matching(affix)})
        return "/".join([*folders, name + suffix])


def _literal(text: str) -> str:
    """Text that a pattern takes as it is, as far as that can be said."""
    return re.sub(r"[*?{}]", "?", text)


def _either(texts: Iterable[str]) -> str:
    ordered = sorted(texts)
    return ordered[0] if len(ordered) == 1 else "{" + ",".join(ordered) + "}"


@dataclass
class Pairing:
    """The patterns of a site, and what they leave out."""

    images: str
    used: list[Unit]
    labels: dict[str, str] = field(default_factory=dict)  # structure, or "" for all -> pattern
    masks: dict[str, list[Unit]] = field(default_factory=dict)  # likewise -> files
    unused: list[Unit] = field(default_factory=list)


def pair(images: Sequence[Unit], masks: Sequence[Unit]) -> Pairing | None:
    """The best way to give every image its mask or masks; None if there is none."""
    mask_groups = [part for found in _groups(masks) for part in _by_structure(found, images)]
    ordered = sorted(_groups(images), key=_wanted)
    offers = [offer for group in ordered if (offer := _match(group, mask_groups))]
    if not offers:
        return None
    best = max(offers, key=lambda offer: len(offer.used))  # the first of equals
    taken = {*best.used, *(unit for own in best.masks.values() for unit in own)}
    best.unused = [unit for unit in (*images, *masks) if unit not in taken]
    return best


def _wanted(group: Group) -> tuple[int, str]:
    """Of images of several kinds, which first."""
    folders = enumerate(group.units[0].dirs)
    meant = [name for depth, name in folders if role_of(name, depth) == "image"]
    return min(preference(name) for name in (*group.names, *meant, group.units[0].stem))


# --- groups: files that lie alike ---------------------------------------------------------------


def _groups(units: Sequence[Unit]) -> Iterator[Group]:
    """Units of the same depth and kind, in folders of the same meaning."""
    alike: dict[tuple[object, ...], list[Unit]] = defaultdict(list)
    for unit in units:
        meanings = tuple(
            name if role_of(name, depth) in ("image", "mask") else ""
            for depth, name in enumerate(unit.dirs)
        )
        alike[unit.kind == "picture", meanings].append(unit)
    for own in alike.values():
        yield from _named_by_folder(_group(own))


def _group(units: Sequence[Unit]) -> Group:
    folders = zip(*(unit.dirs for unit in units), strict=True)
    return Group(tuple(units), tuple(len(set(names)) > 1 for names in folders))


def _named_by_folder(group: Group) -> list[Group]:
    """`P01/T2`, `P01/ADC`, `P02/T2`, ...: a group for each name that occurs in most folders."""
    folders = {unit.dirs for unit in group.units}
    times = Counter(unit.stem for unit in group.units)
    if not any(group.free) or len(folders) < 2:
        return [group]
    if len(group.units) == len(folders) and len(times) <= MOST_NAMES and all(map(role_of, times)):
        return [Group(group.units, group.free, tuple(times))]  # one a folder, variously called
    usual = [name for name, count in times.items() if count >= len(folders) / 2]
    numbered = len({skeleton(name) for name in usual}) == 1 < len(usual)
    if not usual or len(usual) > MOST_NAMES or (numbered and group.units[0].kind == "picture"):
        return [group]
    return [
        Group(tuple(u for u in group.units if u.stem == name), group.free, (name,))
        for name in usual
    ]


def _by_structure(group: Group, images: Sequence[Unit]) -> list[Group]:
    """`masks/disc/*`, `masks/cup/*`: a folder that only the masks have, one a structure."""
    elsewhere = {name for image in images for name in image.parts}
    for depth, free in enumerate(group.free):
        if not free:
            continue
        parts: dict[str, list[Unit]] = defaultdict(list)
        for unit in group.units:
            parts[unit.dirs[depth]].append(unit)
        names = parts.keys() - {name for name in parts if role_of(name, depth) == "split"}
        if names == parts.keys() and len(parts) <= MOST_STRUCTURES and not elsewhere & names:
            return [part for own in parts.values() for part in _named_by_folder(_group(own))]
    return [group]


# --- matching -----------------------------------------------------------------------------------


def _match(images: Group, mask_groups: Sequence[Group]) -> Pairing | None:
    """The masks of a group of images, by the rule for names that fits most of them."""
    offers = [
        (relation, masks)
        for masks in mask_groups
        for relation in relations(set(images.keys().values()), set(masks.keys().values()))
        if _can_be_written(relation, images, masks)
    ]
    if not offers:
        return None
    most = max(relation.hits for relation, _ in offers)
    good = [offer for offer in offers if offer[0].hits >= NEARLY_ALL * most]
    best = min((relation.image for relation, _ in good if relation.hits == most), key=_plain)
    chosen = _one_a_mask([offer for offer in good if offer[0].image == best])
    return _pairing(images, best, chosen)


def _plain(affix: Affix) -> tuple[tuple[int, str], int]:
    return preference(affix.before + affix.after), len(affix.before + affix.after)


def _can_be_written(relation: Relation, images: Group, masks: Group) -> bool:
    """A pattern takes the folders' names whole."""
    sides = ((images, relation.image), (masks, relation.mask))
    return not any(group.names and affix != Affix() for group, affix in sides)


def _one_a_mask(offers: list[tuple[Relation, Group]]) -> list[tuple[Relation, Group]]:
    """Each file counts once, with the rule that fits most images."""
    taken: set[Unit] = set()
    kept = []
    for relation, group in sorted(offers, key=_first_hits):
        units = set(group.matching(relation.mask))
        if not units & taken:
            kept.append((relation, group))
            taken |= units
    return kept


def _first_hits(offer: tuple[Relation, Group]) -> tuple[object, ...]:
    relation, group = offer
    mask = relation.mask
    return (
        -relation.hits,
        len(mask.before + mask.after),
        mask.before,
        mask.after,
        group.units[0].path,
    )


def _pairing(images: Group, own: Affix, masks: list[tuple[Relation, Group]]) -> Pairing:
    written = not images.names and not any(group.names for _, group in masks)
    shared = _common_beginning(images, own) if written else ""
    begun = Affix(own.before + shared, own.after)
    result = Pairing(images.pattern(begun), images.matching(begun))
    for name, (relation, group) in zip(_structure_names(masks), masks, strict=True):
        affix = Affix(relation.mask.before + shared, relation.mask.after)
        result.labels[name] = group.pattern(affix)
        result.masks[name] = group.matching(affix)
    return result


def _common_beginning(images: Group, affix: Affix) -> str:
    """Of folders that are series: `*` alone would match the folder of the masks beside them."""
    if images.units[0].kind != "series":
        return ""
    cores = [core for key in images.keys().values() if (core := affix.core(key))]
    first, last = min(cores), max(cores)
    same = next((k for k, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)
    return first[:same].rstrip("0123456789")


def _structure_names(masks: list[tuple[Relation, Group]]) -> list[str]:
    """What distinguishes the masks of one image: a folder, a file's name, or its ending."""
    if len(masks) == 1:
        return [""]
    texts = [_description(relation.mask, group) for relation, group in masks]
    shared = set.intersection(*map(set, texts))
    names = ["_".join(word for word in words if word not in shared) for words in texts]
    if {OPTIC.get(name.lower()) for name in names} == {"disc", "cup"}:
        names = [OPTIC[name.lower()] for name in names]
    usable = all(names) and len(set(names)) == len(names)
    return names if usable else [f"structure_{k}" for k, _ in enumerate(masks, 1)]


def _description(affix: Affix, group: Group) -> list[str]:
    text = " ".join([*group.units[0].dirs, *group.names, affix.before, affix.after])
    return [w for w in re.findall(r"[A-Za-z0-9]+", text) if w.lower() not in MASKS]
