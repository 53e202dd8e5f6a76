"""What lies below a folder."""

import os
from collections.abc import Iterator
from pathlib import Path

from konsil.errors import DataError


def folders(
    root: Path, folder: str = "", above: frozenset[str] = frozenset()
) -> Iterator[tuple[str, list[str]]]:
    """Every folder relative to the root, "" first, with the names of its files, all in order.

    Hidden things are left alone; links to folders are followed, but never in a circle.
    """
    real = os.path.realpath(root / folder)
    if real in above:
        return
    try:
        entries = sorted(os.scandir(root / folder), key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(f"{root / folder}: cannot be listed ({error.strerror})") from None
    visible = [entry for entry in entries if not entry.name.startswith(".")]
    yield folder, [entry.name for entry in visible if not entry.is_dir()]
    for entry in visible:
        if entry.is_dir():
            yield from folders(root, below(folder, entry.name), above | {real})


def below(folder: str, name: str) -> str:
    """The path of something in a folder that is relative to the root."""
    return f"{folder}/{name}" if folder else name
