"""Room in the cache: what lies there, who uses it, and what goes when more is wanted.

A process that uses an entry holds a shared lock on the entry's manifest, one that builds it an
exclusive one; the system takes locks back when a process ends, however it ends. What nobody has
locked may go. Whoever looks, reserves or removes does so under the lock of the whole cache.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

from konsil.errors import DataError
from konsil.files import locked

MANIFEST = "federation.json"
BUILDING = ".building-"  # begins the name of what is not, or no longer, an entry
SYNTHETIC = "synthetic"  # the folder of the synthetic federations, the only one with entries in it


@dataclass(frozen=True)
class Entry:
    """A folder of the cache."""

    name: str  # below the cache's folder
    folder: Path
    bytes: int  # of its files, or what is reserved for it
    written: int  # of its files
    last_use: float  # seconds since 1970
    in_use: bool  # by a process that lives
    whole: bool  # False: under construction, left over from a killed run, or damaged


def entries(root: Path) -> list[Entry]:
    """Everything in the cache `root`, the least recently used first."""
    if not root.is_dir():
        return []
    with locked(root):
        return _scan(root)


def remove(root: Path, names: Collection[str] | None = None) -> list[Entry]:
    """Remove what no run uses, or of that the entries of these names; what was removed."""
    if not root.is_dir():
        return []
    with named_errors(root), locked(root):
        there = _scan(root)
        known = {entry.name: entry for entry in there}
        for name in names or ():
            if name not in known:
                raise DataError(f"{root}: no entry {name} in this cache; list them first")
            if known[name].in_use:
                raise DataError(f"{root}: {name} is in use; remove it when its runs have ended")
        unused = [e for e in there if not e.in_use and (names is None or e.name in names)]
        for entry in unused:
            discard(entry.folder)
    return unused


def readable(size: int) -> str:
    """A number of bytes as people say it."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


# --- what lies there ----------------------------------------------------------------------------


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """What a folder's manifest says; None if there is none that can be read."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) else None


def facts_if_whole(folder: Path) -> dict[str, Any] | None:
    """What the manifest says, if every file that it lists is there with its size."""
    manifest = read_manifest(folder) or {}
    try:
        sizes: dict[str, int] = manifest["files"]
        whole = all((folder / name).stat().st_size == size for name, size in sizes.items())
        facts: dict[str, Any] = manifest["facts"]
    except (OSError, KeyError, TypeError, AttributeError):
        return None
    return facts if whole else None


def _scan(root: Path) -> list[Entry]:
    found = []
    for place in (root, root / SYNTHETIC):
        with suppress(FileNotFoundError):
            found += [_entry(root, path) for path in place.iterdir() if _is_ours(path)]
    return sorted(found, key=lambda entry: (entry.last_use, entry.name))


def _is_ours(path: Path) -> bool:
    """Whether Konsil made this folder: a cache may lie in a folder with other things in it."""
    if path.is_symlink() or not path.is_dir():
        return False
    return path.name.startswith(BUILDING) or {"files", "facts"} <= set(read_manifest(path) or {})


def _entry(root: Path, folder: Path) -> Entry:
    manifest = folder / MANIFEST
    written = _bytes_in(folder)
    building = folder.name.startswith(BUILDING)
    reserved = (read_manifest(folder) or {}).get("reserved", 0)
    return Entry(
        name=folder.relative_to(root).as_posix(),
        folder=folder,
        bytes=max(written, reserved),
        written=written,
        last_use=(manifest if manifest.exists() else folder).stat().st_mtime,
        in_use=_in_use(manifest),
        whole=not building and facts_if_whole(folder) is not None,
    )


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # a run that builds has files that come and go
            total += 0 if path.is_dir() else path.lstat().st_size
    return total


def _in_use(manifest: Path) -> bool:
    try:
        descriptor = os.open(manifest, os.O_RDWR)  # network file systems lock only what is writable
    except FileNotFoundError:
        return False
    except PermissionError:
        return True  # another user's: not ours to remove
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


# --- making room, under the lock of the cache ---------------------------------------------------


def make_room(root: Path, size: int, limit: int | None) -> None:
    """Remove what was not used for the longest time until `size` more bytes fit, or refuse.

    Nothing is removed if all of it would not be enough.
    """
    there = _scan(root)
    unused = [entry for entry in there if not entry.in_use]
    to_come = sum(entry.bytes - entry.written for entry in there)
    free = shutil.disk_usage(root).free - to_come
    used = sum(entry.bytes for entry in there)
    missing = max(size - free if size else 0, 0 if limit is None else used + size - limit)
    if missing > sum(entry.written for entry in unused):
        held = sum(entry.bytes for entry in there if entry.in_use)
        raise DataError(_no_room(root, size, free, limit, held))
    for entry in unused:
        if missing <= 0:
            break
        discard(entry.folder)
        missing -= entry.written


def _no_room(root: Path, size: int, free: int, limit: int | None, held: int) -> str:
    needed = f"{readable(size)} needed" if size else "more was written than was reserved"
    allowed = "without limit" if limit is None else f"at most {readable(limit)}"
    return (
        f"{root}: no room in the cache: {needed}, {readable(max(free, 0))} free on the disk, "
        f"{allowed} allowed, {readable(held)} in use by runs; make room on the disk, allow more "
        "by federation.cache_limit or the variable KONSIL_CACHE_LIMIT, choose another folder by "
        "federation.cache or the variable KONSIL_CACHE, or take a smaller federation.image_size"
    )


def sweep(root: Path) -> None:
    """Remove what killed runs have left and what is damaged, unless it is in use."""
    for entry in _scan(root):
        if not entry.whole and not entry.in_use:
            discard(entry.folder)


def discard(folder: Path) -> None:
    """Remove a folder of the cache: at once it is no entry any more, then its files go."""
    aside = folder.with_name(f"{BUILDING}removed-{uuid.uuid4().hex}")
    folder.rename(aside)
    shutil.rmtree(aside)


# --- using an entry -----------------------------------------------------------------------------

_kept: dict[Path, BinaryIO] = {}  # files whose locks last as long as this process
_kept_guard = Lock()


def keep(folder: Path) -> bool:
    """Nobody removes this entry as long as this process lives; False if it is not there."""
    try:
        manifest = open(folder / MANIFEST, "rb")  # noqa: SIM115  its lock lasts
    except OSError:
        return False
    try:
        fcntl.flock(manifest, fcntl.LOCK_SH)  # waits for one who looks, never for one who builds
        here = os.path.samestat(os.fstat(manifest.fileno()), (folder / MANIFEST).stat())
    except FileNotFoundError:
        here = False  # removed while we waited
    if not here:
        manifest.close()
        return False
    with suppress(OSError):  # another user's entry is used, but not marked
        os.utime(manifest.fileno())
    keep_open(folder, manifest)
    return True


def keep_open(folder: Path, manifest: BinaryIO) -> None:
    """Hold on to this lock on an entry, and let go of an earlier one."""
    with _kept_guard:
        earlier = _kept.pop(folder, None)
        _kept[folder] = manifest
    if earlier is not None:
        earlier.close()


@contextmanager
def named_errors(root: Path) -> Iterator[None]:
    """What the system refuses in the cache's folder, as an error that says what to do."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{root}: the cache cannot be written ({error.strerror or error}); make room "
            "or choose another folder by federation.cache or the variable KONSIL_CACHE"
        ) from None
