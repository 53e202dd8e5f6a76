"""Folders that are either whole or not there, and together no larger than allowed.

A folder is built under another name beside its place and renamed when it is finished. A kill
leaves only something that nobody takes for an entry and that the next run removes. Of two runs
that want the same entry one builds it while the other waits: the name says what is inside.

A process that uses or builds an entry holds a lock on a mark of its own, a file in the folder
`.in-use` beside the entry; the system takes locks back when a process ends, however it ends. What
nobody marks may go. Whoever looks, marks, reserves or removes does so under the lock of the cache.
"""

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from konsil.errors import DataError
from konsil.files import locked, take_lock, write_text

MANIFEST = "federation.json"
BUILDING = ".building-"  # begins the name of what is not, or no longer, an entry
MARKS = ".in-use"
SYNTHETIC = "synthetic"  # the folder of the synthetic federations, the only one with entries in it
MANIFEST_BYTES = 64 * 1024  # reserved beside what the caller reserves
GLANCE = 0.05  # seconds between two looks at what another process builds

Fill = Callable[[Path], dict[str, Any]]


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


def folder_once(
    final: Path, fill: Fill, *, size: int = 0, limit: int | None = None
) -> dict[str, Any]:
    """The facts about the folder `final`, which `fill` writes unless it is there and whole.

    `size` is how many bytes it will write. They are reserved before it begins: what no run uses
    goes from the cache, the least recently used first, until all of it stays within `limit` bytes
    and on the disk. From now on the folder is in use by this process. Raises DataError.
    """
    with named_errors(_root(final)):
        while True:
            facts = facts_if_whole(final) if keep(final) else None
            if facts is not None:
                return facts
            if _begin(final, size, limit):
                return _build(final, fill, limit)
            time.sleep(GLANCE)


def keep(folder: Path) -> bool:
    """Nobody removes this entry as long as this process lives; False if it is not there."""
    manifest = folder / MANIFEST
    if not manifest.is_file():
        return False
    with suppress(OSError), locked(_root(folder)):  # a cache of others is used, but not marked
        if manifest.is_file():
            _mark(folder)
            os.utime(manifest)
    return manifest.is_file()


def entries(root: Path) -> list[Entry]:
    """Everything in the cache `root`, the least recently used first."""
    if not root.is_dir():
        return []
    with locked(root):
        return _scan(root)


def remove(root: Path) -> list[Entry]:
    """Remove what no run uses; what was removed."""
    if not root.is_dir():
        return []
    with named_errors(root), locked(root):
        unused = [entry for entry in _scan(root) if not entry.in_use]
        for entry in unused:
            _discard(entry.folder)
    return unused


def readable(size: int) -> str:
    """A number of bytes as people say it."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


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


def _root(folder: Path) -> Path:
    return folder.parent.parent if folder.parent.name == SYNTHETIC else folder.parent


# --- building an entry --------------------------------------------------------------------------


def _begin(final: Path, size: int, limit: int | None) -> bool:
    """Reserve room for the folder; False if it has appeared, or another run is building it."""
    root, building = _root(final), final.with_name(BUILDING + final.name)
    with locked(root):
        for entry in _scan(root):
            if not entry.whole and not entry.in_use:  # a killed run has left it, or it is damaged
                _discard(entry.folder)
        if building.exists() or facts_if_whole(final) is not None:
            return False
        if final.exists():
            _discard(final)  # damaged, and some run uses it: what that has open, it keeps
        _make_room(root, size + MANIFEST_BYTES, limit)
        building.mkdir(parents=True)
        try:
            write_text(building / MANIFEST, json.dumps({"reserved": size + MANIFEST_BYTES}))
            _mark(building)
        except OSError:
            shutil.rmtree(building, ignore_errors=True)
            raise
        return True


def _build(final: Path, fill: Fill, limit: int | None) -> dict[str, Any]:
    """Fill the folder and give it its name; or leave nothing behind."""
    root, building = _root(final), final.with_name(BUILDING + final.name)
    try:
        facts = fill(building)
        written = [path for path in sorted(building.rglob("*")) if path.is_file()]
        sizes = {path.relative_to(building).as_posix(): path.stat().st_size for path in written}
        sizes.pop(MANIFEST, None)  # still the one that reserved room
        text = json.dumps({"facts": facts, "files": sizes}, indent=1)
        write_text(building / MANIFEST, text, durable=True)
        with locked(root):
            _make_room(root, 0, limit)  # if it has become larger than reserved
            building.rename(final)
            _mark(final)
            _unmark(building)
    except BaseException:
        with suppress(OSError):  # what stopped the build is to be told, not this
            _discard(building)
        with suppress(OSError), locked(root):
            _unmark(building)
        raise
    return facts


def _make_room(root: Path, size: int, limit: int | None) -> None:
    """Remove what was not used for the longest time until `size` more bytes fit, or refuse.

    Nothing is removed if all of it would not be enough.
    """
    there = _scan(root)
    unused = [entry for entry in there if not entry.in_use]
    used, written = sum(entry.bytes for entry in there), sum(entry.written for entry in there)
    free = shutil.disk_usage(root).free - (used - written)  # the rest is yet to come
    missing = max(size - free if size else 0, 0 if limit is None else used + size - limit)
    if missing > sum(entry.written for entry in unused):
        needed = f"{readable(size)} needed" if size else "more was written than was reserved"
        allowed = "without limit" if limit is None else f"at most {readable(limit)}"
        held = readable(sum(entry.bytes for entry in there if entry.in_use))
        raise DataError(
            f"{root}: no room in the cache: {needed}, {readable(max(free, 0))} free on the disk, "
            f"{allowed} allowed, {held} in use by runs; make room on the disk, allow more by "
            "federation.cache_limit or the variable KONSIL_CACHE_LIMIT, choose another folder by "
            "federation.cache or the variable KONSIL_CACHE, or take a smaller federation.image_size"
        )
    for entry in unused:
        if missing <= 0:
            break
        _discard(entry.folder)
        missing -= entry.written


def _discard(folder: Path) -> None:
    """Remove a folder of the cache: at once it is no entry any more, then its files go."""
    aside = folder.with_name(f"{BUILDING}removed-{uuid.uuid4().hex}")
    folder.rename(aside)
    shutil.rmtree(aside)


# --- what lies there, under the lock of the cache -----------------------------------------------


def facts_if_whole(folder: Path) -> dict[str, Any] | None:
    """What the manifest says, if every file that it lists is there with its size."""
    manifest = _manifest(folder)
    try:
        sizes: dict[str, int] = manifest["files"]
        whole = all((folder / name).stat().st_size == size for name, size in sizes.items())
        facts: dict[str, Any] = manifest["facts"]
    except (OSError, KeyError, TypeError, AttributeError):
        return None
    return facts if whole else None


def _manifest(folder: Path) -> dict[str, Any]:
    """What a folder's manifest says; nothing if there is none that can be read."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _scan(root: Path) -> list[Entry]:
    """What Konsil made, the least recently used first: a cache may lie among other things."""
    found = []
    for folder in [*root.glob("*"), *(root / SYNTHETIC).glob("*")]:
        ours = folder.name.startswith(BUILDING) or {"files", "facts"} <= set(_manifest(folder))
        if ours and folder.is_dir() and not folder.is_symlink():
            found.append(_entry(root, folder))
    return sorted(found, key=lambda entry: (entry.last_use, entry.name))


def _entry(root: Path, folder: Path) -> Entry:
    manifest, written = folder / MANIFEST, 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # a run that builds has files that come and go
            written += 0 if path.is_dir() else path.lstat().st_size
    there = manifest.exists()
    return Entry(
        name=folder.relative_to(root).as_posix(),
        folder=folder,
        bytes=max(written, _manifest(folder).get("reserved", 0)),
        written=written,
        last_use=(manifest if there else folder).stat().st_mtime,
        in_use=_in_use(folder) or (there and not os.access(manifest, os.W_OK)),  # another user's
        whole=not folder.name.startswith(BUILDING) and facts_if_whole(folder) is not None,
    )


# --- marks, under the lock of the cache ---------------------------------------------------------

_kept: dict[Path, tuple[Path, FileIO]] = {}  # entry -> this process' mark, and the lock on it


def _mark(folder: Path) -> None:
    """From now on this process uses an entry; children that it forks do, too."""
    if folder in _kept and _kept[folder][0].exists():
        return
    _in_use(folder)  # sweeps the marks of the dead
    mark = folder.parent / MARKS / folder.name / uuid.uuid4().hex
    mark.parent.mkdir(parents=True, exist_ok=True)
    lock = take_lock(mark)
    assert lock is not None  # nobody else knows its name
    _kept[folder] = mark, lock


def _unmark(folder: Path) -> None:
    _kept.pop(folder)[1].close()
    _in_use(folder)  # sweeps its mark


def _in_use(folder: Path) -> bool:
    """Whether a process that lives has marked an entry, or builds it."""
    marks, users = folder.parent / MARKS / folder.name, 0
    for mark in list(marks.glob("*")):
        lock = take_lock(mark)
        if lock is None:
            users += 1
            continue
        with lock, suppress(PermissionError):
            mark.unlink()  # its process has ended
    if not users:
        with suppress(OSError):  # others are in use
            marks.rmdir()
            marks.parent.rmdir()
    return users > 0
