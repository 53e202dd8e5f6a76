"""From the files of a federation to the arrays of its cache entry."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from multiprocessing.pool import ThreadPool
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from konsil.data.findings import BadFile, Findings
from konsil.data.readers import Picture, mask_values, read_mask, read_picture, structure_planes
from konsil.data.recipe import THREADS, Digests, Recipe
from konsil.data.sources import Item

Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class _Decoded:
    picture: Picture
    target: NDArray[Any]
    values: frozenset[int] = frozenset()  # of the mask


@dataclass(frozen=True)
class _Decoder:
    root: Path
    recipe: Recipe
    digests: Digests

    def __call__(self, item: Item) -> _Decoded | tuple[str, BadFile]:
        """The item's arrays, or the file that cannot be used and why."""
        name = item.image
        try:
            picture = read_picture(self._bytes(name), self.recipe.channels, self.recipe.size)
            if self.recipe.classes:
                return _Decoded(picture, np.array(self.recipe.classes.index(item.label), "<i8"))
            name = item.label
            mask = read_mask(self._bytes(name))
            values = mask_values(mask)
            self._check_mask(mask, values, picture)
        except BadFile as bad:
            return name, bad
        planes = structure_planes(mask, list(self.recipe.structures), self.recipe.size)
        return _Decoded(picture, planes, values)

    def _bytes(self, name: str) -> bytes:
        try:
            data = (self.root / name).read_bytes()
        except OSError as error:
            raise BadFile("file that cannot be opened", "check it", str(error.strerror)) from None
        if hashlib.sha256(data).hexdigest() != self.digests[name]:
            raise BadFile("file that changed while it was read", "run again when it is at rest")
        return data

    def _check_mask(self, mask: NDArray[Any], values: frozenset[int], picture: Picture) -> None:
        size = mask.shape[1], mask.shape[0]
        if size != picture.original:
            detail = "mask {} x {}, image {} x {}".format(*size, *picture.original)
            raise BadFile("mask of another size than its image", "export both alike", detail)
        known = self.recipe.known_values
        unknown = sorted(values - known) if known is not None else []
        if unknown:
            mapping = ", ".join(f"{name}: {numbers}" for name, numbers in self.recipe.structures)
            raise BadFile(
                "mask value that task.structures does not mention",
                f"task.structures is {{{mapping}}}, and 0 is background: add the value to a "
                "structure or mend the mask (JPEG changes values: save masks as PNG)",
                f"{'value' if len(unknown) == 1 else 'values'} {_some(unknown)}",
            )


def _some(values: Sequence[int]) -> str:
    return ", ".join(map(str, values[:5])) + (", ..." if len(values) > 5 else "")


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
    with ThreadPool(THREADS) as pool:
        results = pool.imap(_Decoder(root, recipe, digests), items, chunksize=4)
        for site, group in groupby(items, key=lambda item: item.site):
            seen[site] = _SiteFacts(recipe)
            _write_site(folder / site, list(group), results, seen[site], found, report)
    found.raise_if_any(root)
    if recipe.structures and recipe.known_values is None:
        _check_one_value({site: facts.values for site, facts in seen.items()}, found)
        found.raise_if_any(root)
    return {site: facts.as_json() for site, facts in seen.items()}


class _SiteFacts:
    """What can only be known after decoding, kept for the warnings of later runs."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self.values: set[int] = set()
        self._brightest: int | None = None

    def see(self, decoded: _Decoded) -> None:
        self.values |= decoded.values
        brightest = decoded.picture.brightest
        if brightest is not None:
            self._brightest = max(brightest, self._brightest or 0)

    def as_json(self) -> dict[str, Any]:
        empty = [
            name
            for name, values in self._recipe.structures
            if not (self.values if values is None else self.values & set(values))
        ]
        return {"empty_structures": empty, "brightest_16_bit": self._brightest}


def _write_site(
    folder: Path,
    items: list[Item],
    results: Iterator[_Decoded | tuple[str, BadFile]],
    facts: _SiteFacts,
    found: Findings,
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
                if isinstance(decoded, _Decoded):
                    image_file.append(decoded.picture.pixels)
                    target_file.append(decoded.target)
                    facts.see(decoded)
                else:
                    found.add_file(*decoded)
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


def _check_one_value(values: Mapping[str, set[int]], found: Findings) -> None:
    """Without task.structures all masks together may hold one value beside 0."""
    every = sorted(set().union(*values.values()))
    if len(every) <= 1:
        return
    for site, present in values.items():
        found.add(
            "masks with several values, and task.structures does not say what they mean",
            f"{site}: {_some(sorted(present)) or 'none'}",
            f"write which values are which structure, for example task.structures: "
            f"{{first: {every[:1]}, second: {every[1:2]}}}, or {{foreground: [{_some(every)}]}} "
            "if all mean the same",
        )
