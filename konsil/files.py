"""Files that are there whole or not at all."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident
from typing import BinaryIO


@contextmanager
def replacing(path: Path, durable: bool = False) -> Iterator[BinaryIO]:
    """A file beside `path` that takes its place if all goes well; a reader never sees half.

    `durable` waits for the disk and so survives a power cut; a killed process loses nothing
    either way.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}-{get_ident()}.part")  # threads may meet
    try:
        with open(part, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(part, path)
        if durable:
            _sync_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str, durable: bool = False) -> None:
    """A text file, whole or not at all."""
    with replacing(path, durable) as file:
        file.write(text.encode())


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time works in this folder; the lock goes with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def remove_parts(folder: Path) -> None:
    """Sweep away what killed processes left half-written, here and in every folder below."""
    for part in folder.rglob(".*.part"):
        part.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
