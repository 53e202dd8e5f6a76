"""What lies below a folder."""

import os
from collections.abc import Iterator
from pathlib import Path

from konsil.data.sources import visible


def folders(
    root: Path, folder: str = "", above: frozenset[str] = frozenset()
) -> Iterator[tuple[str, list[str]]]:
    """Every folder relative to the root, "" first, with the names of its files, all in order.

    Hidden things are left alone; links to folders are followed, but never in a circle.
    """
    real = os.path.realpath(root / folder)
    if real in above:
        return
    entries = visible(root / folder)
    yield folder, [entry.name for entry in entries if not entry.is_dir()]
    for entry in entries:
        if entry.is_dir():
            yield from folders(root, below(folder, entry.name), above | {real})


def below(folder: str, name: str) -> str:
    """The path of something in a folder that is relative to the root."""
    return f"{folder}/{name}" if folder else name
