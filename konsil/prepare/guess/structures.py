"""What the values of the masks may mean."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

from konsil.prepare.guess.content import MOST_VALUES, MaskFacts
from konsil.prepare.guess.draft import Draft, SiteDraft, some_of

Facts = Mapping[str, Mapping[str, MaskFacts]]  # site -> structure, or "" for all -> its masks
NESTED = (
    "A value may belong to several structures: a disc that includes its cup is",
    "disc: [128, 255], cup: [255].",
)


def names_from_dataset(root: Path, datalists: Sequence[str]) -> dict[int, str]:
    """What the dataset.json of nnU-Net or the Decathlon calls the values."""
    for path in datalists:
        try:
            labels = json.loads((root / path).read_text(encoding="utf-8"))["labels"]
            pairs = [(k, v) if str(k).isdigit() else (v, k) for k, v in labels.items()]
            return {int(value): str(name) for value, name in pairs if int(value)}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return {}


def add_structures(draft: Draft, facts: Facts, names: Mapping[int, str]) -> None:
    """A mapping for every site, with names to be edited."""
    for site in draft.sites:
        masks = facts[site.name]
        _report_masks(draft, site, masks)
        grounds = {own.code(own.background) for own in masks.values() if own.opened}
        if len(grounds) == 1 and grounds.isdisjoint({0, "#000000"}):
            site.settings["background"] = grounds.pop()
    if all(list(site.masks) == [""] for site in draft.sites):
        _one_file_for_all(draft, {name: own[""] for name, own in facts.items()}, names)
    else:
        _one_file_each(draft, facts)


def _report_masks(draft: Draft, site: SiteDraft, masks: Mapping[str, MaskFacts]) -> None:
    for name, own in masks.items():
        which = f"{site.name} ({name})" if name else site.name
        if own.unreadable:
            draft.to_do.append(f"{which}: masks that cannot be read: {some_of(own.unreadable)}")
        if len(own.labels) > MOST_VALUES:
            draft.to_do.append(
                f"{which}: the masks hold {len(own.labels)} values, such as "
                f"{', '.join(map(str, own.labels[:4]))}. If they were saved as JPEG or resampled "
                "smoothly, they cannot be used: save masks as PNG, one value a structure"
            )
        elif own.opened and not own.labels:
            draft.to_do.append(f"{which}: nothing is marked in {own.opened} masks")


def _one_file_each(draft: Draft, facts: Facts) -> None:
    for site in draft.sites:
        values = {name: own.labels for name, own in facts[site.name].items()}
        plain = all(len(own) <= 1 for own in values.values())
        mapping = {name: own or [255] for name, own in values.items()}
        site.settings["structures"] = list(values) if plain else mapping
    names = dict.fromkeys(name for site in draft.sites for name in site.masks)
    draft.comments["structures"] = ["One mask file each. (!) Check the names."]
    draft.to_do.append(f"structures: check the names {', '.join(names)}, which come from the files")


def _one_file_for_all(
    draft: Draft, facts: Mapping[str, MaskFacts], known: Mapping[int, str]
) -> None:
    clear = {site: own for site, own in facts.items() if 0 < len(own.labels) <= MOST_VALUES}
    if not clear:
        draft.top["structures"] = {"foreground": [255]}
        draft.comments["structures"] = ["(!) No mask could be understood: this is a placeholder."]
        return
    codes = {site: [own.code(v) for v in own.labels] for site, own in clear.items()}
    given = dict(known)
    for own in clear.values():
        given |= own.names
    seen = _seen(codes, clear)
    if max(map(len, codes.values())) == 1:
        named = _one_structure(draft, facts, codes, given)
        draft.comments["structures"] = ["(!) Give it its name.", f"Found {seen}."]
    else:
        named = _several(draft, facts, codes, given)
        edit = "(!) Edit the names and what belongs to them."
        draft.comments["structures"] = [edit, f"Found {seen}.", *NESTED]
    if named:
        draft.to_do.append(f"structures: {named}; found {seen}")


def _one_structure(
    draft: Draft,
    facts: Mapping[str, MaskFacts],
    codes: Mapping[str, list[Any]],
    given: Mapping[int, str],
) -> str:
    """One value at each site: that is the structure."""
    every = list(dict.fromkeys(code for own in codes.values() for code in own))
    name = given.get(every[0], "foreground") if len(every) == 1 else "foreground"
    for site in draft.sites:
        own = [code for code in every if isinstance(code, str) == facts[site.name].coloured]
        site.settings["structures"] = {name: own or every}
    return f"give {name} its name" if name == "foreground" else ""


def _several(
    draft: Draft,
    facts: Mapping[str, MaskFacts],
    codes: Mapping[str, list[Any]],
    given: Mapping[int, str],
) -> str:
    """The same values for all sites; or, where sites write other ones, each its own in order."""
    every: list[Any] = sorted({code for own in codes.values() for code in own}, key=str)
    alike = len({isinstance(code, str) for code in every}) == 1 and not _differ([*codes.values()])
    if not alike:
        _by_rank(draft, facts, codes)
        return "give their names"
    every.sort()
    names = [given.get(code) or f"structure_{k}" for k, code in enumerate(every, 1)]
    for site in draft.sites:
        site.settings["structures"] = {n: [code] for n, code in zip(names, every, strict=True)}
    return "check their names" if all(code in given for code in every) else "give their names"


def _differ(codes: list[list[Any]]) -> bool:
    """As many values everywhere, but other ones: each site has a mapping of its own."""
    different = any(not set(one) & set(other) for one in codes for other in codes)
    return different and len(set(map(len, codes))) == 1


def _by_rank(draft: Draft, facts: Mapping[str, MaskFacts], codes: Mapping[str, list[Any]]) -> None:
    fullest = sorted(codes.values(), key=len, reverse=True)
    names = [f"structure_{k}" for k in range(1, len(fullest[0]) + 1)]
    for site in draft.sites:
        masks = facts[site.name]
        kind = [own for own in fullest if isinstance(own[0], str) == masks.coloured] or fullest
        own = codes.get(site.name, kind[0])
        values = kind[0] if set(own) <= set(kind[0]) else own
        lacking = names[len(values) :]
        if lacking:
            draft.to_do.append(
                f"{site.name}: its masks hold {', '.join(map(str, values))}, which is fewer values "
                f"than there are structures: {', '.join(lacking)} got a value that was not found; "
                "say what stands for it, or take the site out"
            )
        # a structure is named at every site, even where nothing is known of it
        free = (masks.code(value) for value in count(1) if value not in masks.values)
        padded = [*values, *islice(free, len(lacking))]
        site.settings["structures"] = {n: [code] for n, code in zip(names, padded, strict=True)}


def _seen(codes: Mapping[str, list[Any]], facts: Mapping[str, MaskFacts]) -> str:
    opened, whole = sum(m.opened for m in facts.values()), sum(m.of for m in facts.values())
    texts = {site: ", ".join(map(str, own)) for site, own in codes.items()}
    what = "; ".join(f"{text} at {site}" for site, text in texts.items())
    if len(set(texts.values())) == 1:
        what = next(iter(texts.values()))
    return f"{what} in {opened} of {whole} masks"
