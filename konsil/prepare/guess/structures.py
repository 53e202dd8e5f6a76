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
        _report_masks(draft, site, facts[site.name])
    several_files = any(list(site.masks) != [""] for site in draft.sites)
    if several_files:
        _one_file_each(draft, facts)
    else:
        _one_file_for_all(draft, {name: own[""] for name, own in facts.items()}, names)
    for site in draft.sites:
        background = _background(facts[site.name])
        if background is not None:
            site.settings["background"] = background


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


def _background(masks: Mapping[str, MaskFacts]) -> int | str | None:
    values = {own.background for own in masks.values() if own.opened}
    value = values.pop() if len(values) == 1 else 0
    coloured = any(own.coloured for own in masks.values())
    return (_code(value, coloured)) if value else None


def _code(value: int, coloured: bool) -> int | str:
    return f"#{value:06x}" if coloured else value


# --- one mask for all structures ----------------------------------------------------------------


def _one_file_for_all(
    draft: Draft, every_site: Mapping[str, MaskFacts], names: Mapping[int, str]
) -> None:
    facts = {site: m for site, m in every_site.items() if 0 < len(m.labels) <= MOST_VALUES}
    if not facts:
        draft.top["structures"] = {"foreground": [255]}
        draft.comments["structures"] = ["(!) No mask could be understood: this is a placeholder."]
        return
    given = {**names, **{k: v for own in facts.values() for k, v in own.names.items()}}
    values = {site: [_code(v, own.coloured) for v in own.labels] for site, own in facts.items()}
    every = sorted({v for own in facts.values() for v in own.labels})
    seen = _seen(values, facts)
    if max(map(len, values.values())) == 1:
        codes = list(dict.fromkeys(code for own in values.values() for code in own))
        name = given.get(every[0], "foreground") if len(every) == 1 else "foreground"
        for site in draft.sites:
            own = _of_kind(codes, every_site[site.name].coloured)
            site.settings["structures"] = {name: own or codes}
        if len(codes) > 1 or name == "foreground":
            draft.to_do.append(f"structures: give {name} its name; {seen}")
        draft.comments["structures"] = ["(!) Give it its name.", _sentence(seen)]
        return
    mixed = len({own.coloured for own in facts.values()}) > 1
    if mixed or _differ(list(values.values())):
        _by_rank(draft, every_site, values)
    else:
        coloured = any(own.coloured for own in facts.values())
        called = [given.get(v) or f"structure_{k}" for k, v in enumerate(every, 1)]
        mapping = {n: [_code(v, coloured)] for n, v in zip(called, every, strict=True)}
        for site in draft.sites:
            site.settings["structures"] = mapping
    named = all(value in given for value in every)
    draft.to_do.append(f"structures: {'check' if named else 'give'} their names; {seen}")
    draft.comments["structures"] = [
        "(!) Edit the names and what belongs to them.",
        _sentence(seen),
        *NESTED,
    ]


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _of_kind(codes: Sequence[Any], coloured: bool) -> list[Any]:
    """The colours of some codes, or the values."""
    return [code for code in codes if isinstance(code, str) == coloured]


def _by_rank(draft: Draft, facts: Mapping[str, MaskFacts], values: Mapping[str, list[Any]]) -> None:
    """A mapping for each site, its values in their order; sites without any get another's."""
    fullest = sorted(values.values(), key=len, reverse=True)
    names = [f"structure_{k}" for k in range(1, len(fullest[0]) + 1)]
    for site in draft.sites:
        masks = facts[site.name]
        ground = _code(masks.background, masks.coloured)
        kind = [own for own in fullest if _of_kind(own, masks.coloured)]
        alike = [own for own in kind if ground not in own] or kind or fullest
        own = values.get(site.name, alike[0])
        codes = alike[0] if set(own) <= set(alike[0]) else own
        lacking = names[len(codes) :]
        if lacking:
            draft.to_do.append(
                f"{site.name}: its masks hold {', '.join(map(str, codes))}, which is fewer values "
                f"than there are structures: {', '.join(lacking)} got a value that was not found; "
                "say what stands for it, or take the site out"
            )
        padded = [*codes, *_not_found(masks, len(lacking))]
        site.settings["structures"] = {n: [c] for n, c in zip(names, padded, strict=True)}


def _not_found(masks: MaskFacts, number: int) -> list[int | str]:
    """Values that no mask holds: a structure is named at every site, even where it is unknown."""
    free = (value for value in count(1) if value not in masks.values)
    return [_code(value, masks.coloured) for value in islice(free, number)]


def _differ(values: list[list[Any]]) -> bool:
    """As many values everywhere, but other ones: each site has a mapping of its own."""
    different = any(not set(one) & set(other) for one in values for other in values)
    return different and len({len(own) for own in values}) == 1


def _seen(values: Mapping[str, list[Any]], facts: Mapping[str, MaskFacts]) -> str:
    opened = sum(own.opened for own in facts.values())
    whole = sum(own.of for own in facts.values())
    kinds = {tuple(own) for own in values.values()}
    if len(kinds) == 1:
        what = ", ".join(map(str, next(iter(kinds))))
    else:
        what = "; ".join(f"{', '.join(map(str, own))} at {site}" for site, own in values.items())
    return f"found {what} in {opened} of {whole} masks"


# --- one file a structure -----------------------------------------------------------------------


def _one_file_each(draft: Draft, facts: Facts) -> None:
    for site in draft.sites:
        values = {name: own.labels for name, own in facts[site.name].items()}
        if all(len(own) <= 1 for own in values.values()):
            site.settings["structures"] = list(values)
        else:
            site.settings["structures"] = {name: own or [255] for name, own in values.items()}
    names = dict.fromkeys(name for site in draft.sites for name in site.masks)
    draft.comments["structures"] = ["One mask file each. (!) Check the names."]
    draft.to_do.append(f"structures: check the names {', '.join(names)}, which come from the files")
