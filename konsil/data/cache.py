"""Folders that are either whole or not there, and together no larger than allowed.

A folder is built under another name beside its place and renamed when it is finished. A kill
leaves only something that nobody takes for an entry and that the next run removes. Of two runs
that want the same entry one builds it while the other waits: the name says what is inside.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from konsil.data.cache_room import (
    BUILDING,
    MANIFEST,
    SYNTHETIC,
    Entry,
    discard,
    entries,
    facts_if_whole,
    keep,
    keep_open,
    make_room,
    named_errors,
    readable,
    remove,
    sweep,
)
from konsil.files import locked

__all__ = ["Entry", "entries", "facts_if_whole", "folder_once", "readable", "remove"]

MANIFEST_BYTES = 64 * 1024  # reserved beside what the caller reserves

Fill = Callable[[Path], dict[str, Any]]


def folder_once(
    final: Path, fill: Fill, *, size: int = 0, limit: int | None = None
) -> dict[str, Any]:
    """The facts about the folder `final`, which `fill` writes unless it is there and whole.

    `size` is how many bytes it will write. They are reserved before it begins: what no run uses
    goes from the cache, the least recently used first, until all of it stays within `limit` bytes
    and on the disk. From now on the folder is in use by this process. Raises DataError.
    """
    root = final.parent.parent if final.parent.name == SYNTHETIC else final.parent
    with named_errors(root):
        while True:
            facts = _used(final)
            if facts is not None:
                return facts
            build = _begin(root, final, size, limit)
            if build is not None:
                return build.run(fill)
            _wait_for_the_other(final)


def _used(folder: Path) -> dict[str, Any] | None:
    """The facts about a whole folder, which is in use from now on."""
    return facts_if_whole(folder) if keep(folder) else None


def _begin(root: Path, final: Path, size: int, limit: int | None) -> _Build | None:
    """Reserve room for the folder; None if it has appeared, or another run is building it."""
    with locked(root):
        sweep(root)
        if _building(final).exists() or facts_if_whole(final) is not None:
            return None
        if final.exists():
            discard(final)  # damaged, and some run uses it: what that has open, it keeps
        make_room(root, size + MANIFEST_BYTES, limit)
        build = _Build(root, final, limit)
        build.reserve(size + MANIFEST_BYTES)
        return build


def _building(final: Path) -> Path:
    return final.with_name(BUILDING + final.name)


def _wait_for_the_other(final: Path) -> None:
    """Until the run that builds this folder has finished, failed or died."""
    with suppress(FileNotFoundError), open(_building(final) / MANIFEST, "rb") as manifest:
        fcntl.flock(manifest, fcntl.LOCK_SH)


class _Build:
    """A folder under construction; made, and abandoned, under the lock of the cache."""

    def __init__(self, root: Path, final: Path, limit: int | None) -> None:
        self.root, self.final, self.limit = root, final, limit
        self.folder = _building(final)
        self.folder.mkdir(parents=True)
        self.manifest = open(self.folder / MANIFEST, "w+b")  # noqa: SIM115  its lock lasts
        fcntl.flock(self.manifest, fcntl.LOCK_EX)

    def reserve(self, size: int) -> None:
        """Say how much room is wanted, for others to see."""
        try:
            self._write({"reserved": size})
        except OSError:
            self._abandon()
            raise

    def run(self, fill: Fill) -> dict[str, Any]:
        """Fill the folder and give it its name; or leave nothing behind."""
        try:
            facts = fill(self.folder)
            self._write({"facts": facts, "files": self._sizes()})
            with locked(self.root):
                make_room(self.root, 0, self.limit)  # if it has become larger than reserved
                self.folder.rename(self.final)
                fcntl.flock(self.manifest, fcntl.LOCK_SH)
        except BaseException:
            with locked(self.root):
                self._abandon()
            raise
        keep_open(self.final, self.manifest)
        return facts

    def _sizes(self) -> dict[str, int]:
        return {
            path.relative_to(self.folder).as_posix(): path.stat().st_size
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and path != self.folder / MANIFEST
        }

    def _write(self, manifest: dict[str, Any]) -> None:
        """In place: the file is the lock, and nobody takes it for whole before the renaming."""
        self.manifest.seek(0)
        self.manifest.truncate()
        self.manifest.write(json.dumps(manifest, indent=1).encode())
        self.manifest.flush()
        os.fsync(self.manifest.fileno())

    def _abandon(self) -> None:
        with suppress(OSError):  # what stopped the build is to be told, not this
            discard(self.folder)
        with suppress(OSError):  # it may have something that could not be written
            self.manifest.close()
