"""From the files of a federation to the arrays of its cache entry."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from konsil.data.findings import BadFile, Findings
from konsil.data.image_with_masks import ImageWithMasks, open_with_masks, some
from konsil.data.recipe import UNNAMED, Digests, Reading, Recipe, in_threads
from konsil.data.sources import Item

Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class _Decoded:
    image: NDArray[np.uint8]
    target: NDArray[Any]
    values: frozenset[int]  # of its masks
    structures: frozenset[str]  # that are marked anywhere
    brightest: int | None  # of a 16-bit image, before it was scaled to 8 bit


@dataclass(frozen=True)
class _Decoder:
    root: Path
    recipe: Recipe
    digests: Digests

    def __call__(self, items: list[Item]) -> list[_Decoded]:
        """The arrays of all wanted planes of one file. Raises BadFile if it cannot be used."""
        opened = open_with_masks(self.root, items[0], self.recipe.reading(items[0].site))
        self._check_unchanged(opened)
        brightest = int(opened.raw.max()) if opened.sixteen_bit else None
        values = opened.values
        structures = frozenset(name for name, area in opened.areas.items() if area)
        return [
            _Decoded(
                opened.image(item.plane, self.recipe.channels, self.recipe.size),
                self._target(opened, item),
                values,
                structures,
                brightest,
            )
            for item in items
        ]

    def _target(self, opened: ImageWithMasks, item: Item) -> NDArray[Any]:
        if self.recipe.classes:
            return np.array(self.recipe.classes.index(item.label), "<i8")
        return opened.target(item.plane, self.recipe.size)

    def _check_unchanged(self, opened: ImageWithMasks) -> None:
        for name, found in opened.digests.items():
            if found != self.digests[name]:
                cure = "run again when it is at rest"
                bad = BadFile("file that changed while it was read", cure)
                bad.name = name
                raise bad


def bytes_of(recipe: Recipe, images: int) -> int:
    """What the arrays of so many images need on the disk, headers of the files aside."""
    plane = recipe.size**2
    target = 8 if recipe.classes else len(recipe.structures) * plane
    return images * (recipe.channels * plane + target)


# --- all of them --------------------------------------------------------------------------------


def write_arrays(
    folder: Path,
    root: Path,
    items: Sequence[Item],
    recipe: Recipe,
    digests: Digests,
    report: Report | None,
) -> dict[str, Any]:
    """Decode everything into <site>/<split>/{images,targets}.npy; what was seen at each site.

    Items are grouped by site and split. Rows are written in their order as they are decoded, so
    neither threads nor memory limit the size of a federation.
    """
    found = Findings()
    seen: dict[str, _SiteFacts] = {}
    files = [list(group) for _, group in groupby(items, key=lambda item: (item.site, item.image))]
    with closing(in_threads(_Decoder(root, recipe, digests), files, found, chunk=4)) as decoded:
        results = _one_by_one(files, decoded)
        for site, group in groupby(items, key=lambda item: item.site):
            seen[site] = _SiteFacts(recipe.reading(site))
            _write_site(folder / site, list(group), results, seen[site], report)
    found.raise_if_any(root)
    check_one_value({site: facts.values for site, facts in seen.items()}, recipe, found)
    found.raise_if_any(root)
    return {site: facts.as_json() for site, facts in seen.items()}


def _one_by_one(
    files: list[list[Item]], decoded: Iterator[list[_Decoded] | None]
) -> Iterator[_Decoded | None]:
    """The planes of all files in their order; None for each that is not to be had."""
    for items, planes in zip(files, decoded, strict=True):
        yield from [None] * len(items) if planes is None else planes


class _SiteFacts:
    """What can only be known after decoding, kept for the warnings of later runs."""

    def __init__(self, reading: Reading) -> None:
        self._structures = reading.structures
        self.values: set[int] = set()
        self._marked: set[str] = set()
        self._brightest: int | None = None

    def see(self, decoded: _Decoded) -> None:
        self.values |= decoded.values
        self._marked |= decoded.structures
        if decoded.brightest is not None:
            self._brightest = max(decoded.brightest, self._brightest or 0)

    def as_json(self) -> dict[str, Any]:
        empty = [name for name, _ in self._structures if name not in self._marked]
        return {"empty_structures": empty, "brightest_16_bit": self._brightest}


def _write_site(
    folder: Path,
    items: list[Item],
    results: Iterator[_Decoded | None],
    facts: _SiteFacts,
    report: Report | None,
) -> None:
    done = 0
    for split, group in groupby(items, key=lambda item: item.split):
        rows = len(list(group))
        (folder / split).mkdir(parents=True)
        images, targets = folder / split / "images.npy", folder / split / "targets.npy"
        with _ArrayFile(images, rows) as image_file, _ArrayFile(targets, rows) as target_file:
            for _ in range(rows):
                decoded = next(results)
                if decoded is not None:
                    image_file.append(decoded.image)
                    target_file.append(decoded.target)
                    facts.see(decoded)
                done += 1
                if report is not None:
                    report(folder.name, done, len(items))


class _ArrayFile:
    """A .npy file written row by row. (A writable memory map would crash on a full disk.)"""

    def __init__(self, path: Path, rows: int) -> None:
        self._file = path.open("wb")
        self._rows = rows
        self._started = False

    def append(self, row: NDArray[Any]) -> None:
        if not self._started:
            header = {
                "descr": row.dtype.str,
                "fortran_order": False,
                "shape": (self._rows, *row.shape),
            }
            np.lib.format.write_array_header_1_0(self._file, header)
            self._started = True
        self._file.write(row.tobytes())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._file.flush()
            os.fsync(self._file.fileno())  # on disk before the entry gets its name
        self._file.close()


def check_one_value(values: Mapping[str, set[int]], recipe: Recipe, found: Findings) -> None:
    """If nobody says what they mean, all masks together may hold one value beside background."""
    every = sorted(set().union(*values.values()))
    if recipe.structures != UNNAMED or len(every) <= 1:
        return
    for site, present in values.items():
        mapping = recipe.reading(site).mapping
        found.add(
            f"masks with several values, and {mapping} does not say what they mean",
            f"{site}: {some(sorted(present)) or 'none'}",
            f"write which values are which structure, for example {mapping.split()[0]}: "
            f"{{first: {every[:1]}, second: {every[1:2]}}}, or {{foreground: [{some(every)}]}} "
            "if all mean the same",
        )
