"""What the files of a federation are turned into, and the fingerprint of the result."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path

from konsil.data.findings import BadFile, Findings
from konsil.data.sources import Item

THREADS = min(8, os.cpu_count() or 1)  # PIL and hashing release the lock; results do not depend
FORMAT = 1  # of the arrays; a change of the readers that changes pixels raises it

Digests = Mapping[str, str]  # file, relative to the federation's folder -> sha256 of its bytes


@dataclass(frozen=True)
class Recipe:
    """How files become arrays. Either structures or classes are given."""

    channels: int
    size: int
    structures: tuple[tuple[str, list[int] | None], ...] = ()  # None: every value but 0
    classes: tuple[str, ...] = ()

    @property
    def labels(self) -> list[str]:
        """Structure names, or class names."""
        return [name for name, _ in self.structures] or list(self.classes)

    @property
    def known_values(self) -> set[int] | None:
        """The mask values that mean something; None if any one value may be the foreground."""
        lists = [values for _, values in self.structures if values is not None]
        return {value for values in lists for value in values} if lists else None

    def files(self, item: Item) -> list[str]:
        """The files that an item is made of."""
        return [item.image, item.label] if self.structures else [item.image]


def hash_files(root: Path, names: Sequence[str]) -> Digests:
    """The sha256 of every file: content decides what is cached, never a date or a path."""
    found = Findings()
    with ThreadPool(THREADS) as pool:
        results = pool.map(lambda name: _digest(root / name), names, chunksize=16)
    for name, result in zip(names, results, strict=True):
        if isinstance(result, BadFile):
            found.add_file(name, result)
    found.raise_if_any(root)
    return {name: str(result) for name, result in zip(names, results, strict=True)}


def _digest(path: Path) -> str | BadFile:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        return BadFile("file that cannot be opened", "check its permissions", str(error.strerror))


def fingerprint(recipe: Recipe, items: Sequence[Item], digests: Digests) -> str:
    """A sha256 that changes exactly if the arrays, their order or their sites change."""
    rows = [
        [item.site, item.split, digests[item.image], _label_identity(recipe, item, digests)]
        for item in items
    ]
    structures = [[name, values and sorted(set(values))] for name, values in recipe.structures]
    whole = [FORMAT, recipe.channels, recipe.size, structures, recipe.classes, rows]
    return hashlib.sha256(json.dumps(whole).encode()).hexdigest()


def _label_identity(recipe: Recipe, item: Item, digests: Digests) -> str:
    return digests[item.label] if recipe.structures else item.label
