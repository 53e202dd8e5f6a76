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
    most = max(map(len, codes.values()))
    names = ["foreground"] if most == 1 else [f"structure_{k}" for k in range(1, most + 1)]
    if len({own.coloured for own in clear.values()}) > 1 or (most > 1 and _differ(codes)):
        _by_rank(draft, facts, codes, names)
    else:
        names = _alike(draft, codes, {**known, **_segment_names(clear)}, most)
    new = [name for name in names if name == "foreground" or name.startswith("structure_")]
    seen = _seen(codes, clear)
    if most == 1:
        draft.comments["structures"] = ["(!) Give it its name.", f"Found {seen}."]
        draft.to_do += [f"structures: give {name} its name; found {seen}" for name in new]
    else:
        edit = "(!) Edit the names and what belongs to them."
        draft.comments["structures"] = [edit, f"Found {seen}.", *NESTED]
        draft.to_do.append(f"structures: {'give' if new else 'check'} their names; found {seen}")


def _segment_names(facts: Mapping[str, MaskFacts]) -> dict[int, str]:
    return {value: name for own in facts.values() for value, name in own.names.items()}


def _alike(
    draft: Draft, codes: Mapping[str, list[Any]], given: Mapping[int, str], most: int
) -> list[str]:
    """The same mapping for all sites, in the order of values; its names."""
    every = sorted({code for own in codes.values() for code in own})
    if most == 1:
        name = given.get(every[0], "foreground") if len(every) == 1 else "foreground"
        mapping = {name: every}
    else:
        mapping = {given.get(code) or f"structure_{k}": [code] for k, code in enumerate(every, 1)}
    for site in draft.sites:
        site.settings["structures"] = mapping
    return list(mapping)


def _differ(codes: Mapping[str, list[Any]]) -> bool:
    """As many values everywhere, but other ones: each site has a mapping of its own."""
    sets = [set(own) for own in codes.values()]
    return len(set(map(len, sets))) == 1 and any(not one & other for one in sets for other in sets)


def _by_rank(
    draft: Draft,
    facts: Mapping[str, MaskFacts],
    codes: Mapping[str, list[Any]],
    names: Sequence[str],
) -> None:
    """Each site's own values in their order."""
    fullest = sorted(codes.values(), key=len, reverse=True)
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
