"""What the values of the masks may mean."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from konsil.data.guess.content import MOST_VALUES, MaskFacts
from konsil.data.guess.draft import Draft, SiteDraft, some_of

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
    usable = {
        site.name: own for site in draft.sites if (own := _usable(facts[site.name])) is not None
    }
    several_files = any(list(site.masks) != [""] for site in draft.sites)
    if several_files:
        _one_file_each(draft, facts)
    else:
        _one_file_for_all(draft, {name: own[""] for name, own in usable.items()}, names)
    for site in draft.sites:
        background = _background(facts[site.name])
        if background is not None:
            site.settings["background"] = background


def _usable(masks: Mapping[str, MaskFacts]) -> Mapping[str, MaskFacts] | None:
    return masks if all(0 < len(m.labels) <= MOST_VALUES for m in masks.values()) else None


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
    draft: Draft, facts: Mapping[str, MaskFacts], names: Mapping[int, str]
) -> None:
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
        mapping: dict[str, Any] = {name: codes}
        _everywhere(draft, mapping)
        if len(codes) > 1 or name == "foreground":
            draft.to_do.append(f"structures: give {name} its name; {seen}")
        draft.comments["structures"] = ["(!) Give it its name.", _sentence(seen)]
        return
    if _differ(list(values.values())):
        by_rank = [f"structure_{k}" for k in range(1, len(next(iter(values.values()))) + 1)]
        for site in draft.sites:
            own = values.get(site.name) or next(iter(values.values()))
            site.settings["structures"] = {n: [c] for n, c in zip(by_rank, own, strict=True)}
    else:
        coloured = any(own.coloured for own in facts.values())
        called = [given.get(v) or f"structure_{k}" for k, v in enumerate(every, 1)]
        _everywhere(draft, {n: [_code(v, coloured)] for n, v in zip(called, every, strict=True)})
    named = all(value in given for value in every)
    draft.to_do.append(f"structures: {'check' if named else 'give'} their names; {seen}")
    draft.comments["structures"] = [
        "(!) Edit the names and what belongs to them.",
        _sentence(seen),
        *NESTED,
    ]


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _everywhere(draft: Draft, mapping: dict[str, Any]) -> None:
    for site in draft.sites:
        site.settings["structures"] = mapping


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
