"""Which slices of a volume become images. Known after the volume was opened once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from konsil.data.cache import named_errors
from konsil.data.findings import BadFile, Findings
from konsil.data.image_with_masks import ImageWithMasks, is_picture, open_with_masks
from konsil.data.manifest import Slices
from konsil.data.recipe import Digests, Recipe, in_threads
from konsil.data.sources import Item
from konsil.files import write_text

Report = Callable[[str, int, int], None]
FORMAT = 1  # of the notes below


def into_planes(
    root: Path,
    items: Sequence[Item],
    recipe: Recipe,
    slices: Callable[[str], Slices],
    digests: Digests,
    notes: Path,
    report: Report | None,
) -> list[Item]:
    """Every volume replaced by its slices; pictures as they are.

    What was found is noted by content, so a volume is opened for this only once.
    """
    volumes = [item for item in items if not is_picture(item.image)]
    if not volumes:
        return list(items)
    scout = _Scout(root, recipe, slices, digests, notes)
    found = Findings()
    planes: dict[tuple[str, str], list[int]] = {}
    results = in_threads(scout, volumes, found)
    for done, (item, result) in enumerate(zip(volumes, results, strict=True), 1):
        planes[item.site, item.image] = result or []
        if report is not None:
            report(item.site, done, len(volumes))
    found.raise_if_any(root)
    return [
        made
        for item in items
        for made in (
            [item]
            if is_picture(item.image)
            else [replace(item, plane=plane) for plane in planes[item.site, item.image]]
        )
    ]


class _Scout:
    """Finds the wanted slices of one volume."""

    def __init__(
        self,
        root: Path,
        recipe: Recipe,
        slices: Callable[[str], Slices],
        digests: Digests,
        notes: Path,
    ) -> None:
        self.root, self.recipe, self.slices = root, recipe, slices
        self.digests, self.notes = digests, notes

    def __call__(self, item: Item) -> list[int]:
        note = self.notes / f"{self._key(item)}.json"
        try:
            planes: list[int] = json.loads(note.read_text())
            return planes
        except (OSError, ValueError):
            pass
        planes = self._look(item)
        with named_errors(self.notes):
            write_text(note, json.dumps(planes))
        return planes

    def _key(self, item: Item) -> str:
        content = [self.digests[name] for name in self.recipe.files(item)]
        reading = self.recipe.reading(item.site).identity()
        whole = [FORMAT, content, reading, self.slices(item.site).model_dump()]
        return hashlib.sha256(json.dumps(whole).encode()).hexdigest()[:32]

    def _look(self, item: Item) -> list[int]:
        opened = open_with_masks(self.root, item, self.recipe.reading(item.site))
        return chosen_planes(item, opened, self.slices(item.site))


def chosen_planes(item: Item, opened: ImageWithMasks, rule: Slices) -> list[int]:
    """The slices that a site's rule asks for. Raises BadFile if there is none."""
    planes = list(range(len(opened.raw)))
    if rule.which == "labelled" and opened.masks:
        planes = opened.labelled()
    if not planes:
        bad = BadFile(
            "volume without a labelled slice",
            "mend its mask, take the volume away, or write slices: {which: all}",
        )
        bad.name = item.image
        raise bad
    return planes[:: rule.every]
