"""Files that are there whole or not at all, and locks that go with their process."""

import hashlib
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from threading import get_ident
from typing import BinaryIO

from filelock import lock_descriptor, unlock_descriptor

GLANCE = 0.01  # seconds between two looks at a lock that another process holds


@contextmanager
def replacing(path: Path, durable: bool = False) -> Iterator[BinaryIO]:
    """A file beside `path` that takes its place if all goes well; a reader never sees half.

    `durable` waits for the disk and so survives a power cut; a killed process loses nothing
    either way.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing_by_name(path) as part, open(part, "wb") as file:
        yield file
        file.flush()
        if durable:
            os.fsync(file.fileno())
    if durable:
        _sync_folder(path.parent)


@contextmanager
def replacing_by_name(path: Path) -> Iterator[Path]:
    """The same for those who open a file themselves: the name to write to."""
    part = path.with_name(f".{path.name}.{os.getpid()}-{get_ident()}.part")  # threads may meet
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str, durable: bool = False) -> None:
    """A text file, whole or not at all."""
    with replacing(path, durable) as file:
        file.write(text.encode())


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time works in this folder; the others wait."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ".locked"
    lock = take_lock(path, patience=math.inf)
    assert lock is not None
    with lock:
        try:
            yield
        finally:
            with suppress(OSError):  # Windows keeps a file that is open: it is in nobody's way
                path.unlink()
            unlock_descriptor(lock.fileno())  # a child that was forked meanwhile has it open, too


def take_lock(path: Path, patience: float = 0.0) -> FileIO | None:
    """A lock on this file, which must be kept; None if another has it for longer than `patience`.

    It lasts until it is closed or forgotten. The system takes it back when the process ends,
    however it ends, and the children that inherited it.
    """
    end = time.monotonic() + patience
    while True:
        lock = _lock_file(path)
        if lock_descriptor(lock.fileno(), blocking=False):
            if _is_at(path, lock):
                return lock
            lock.close()  # its holder took the file away when it was done
            continue
        lock.close()
        if time.monotonic() >= end:
            return None
        time.sleep(GLANCE)


def _lock_file(path: Path) -> FileIO:
    try:
        return FileIO(os.open(path, os.O_RDWR | os.O_CREAT, 0o666))  # as the umask allows
    except PermissionError:  # another user's; to wait for it, reading is enough
        return FileIO(os.open(path, os.O_RDONLY))


def _is_at(path: Path, lock: FileIO) -> bool:
    try:
        return os.path.samestat(os.fstat(lock.fileno()), path.stat())
    except FileNotFoundError:
        return False


def remove_parts(folder: Path) -> None:
    """Sweep away what killed processes left half-written, here and in every folder below."""
    for part in folder.rglob(".*.part"):
        part.unlink(missing_ok=True)


def store_once(folder: Path, pattern: str) -> None:
    """Let files of the same bytes in this folder and below lie on the disk once.

    They become names of one file (hard links), so they must be replaced and never written into.
    Where a disk has no such links they stay as they are.
    """
    known: dict[tuple[int, str], Path] = {}
    for path in sorted(folder.rglob(pattern)):
        with open(path, "rb") as file:
            key = path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()
        first = known.setdefault(key, path)
        if path.samefile(first):
            continue
        with suppress(OSError), replacing_by_name(path) as part:
            os.link(first, part)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # there, folders are not files
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
