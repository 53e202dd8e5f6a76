"""Folders that are either whole or not there.

A folder is built under another name beside its place and renamed when it is finished. A kill
leaves only something that nobody takes for an entry, and of two runs that build the same entry
one wins while the other takes what it finds: the name says what is inside.
"""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from konsil.errors import DataError
from konsil.files import write_text

MANIFEST = "federation.json"
BUILDING = ".building-"
ABANDONED_AFTER = 24 * 3600  # seconds after which a folder under construction is left over
ATTEMPTS = 3


def folder_once(final: Path, fill: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """The facts about the folder `final`, which `fill` writes unless it is there and whole."""
    facts = facts_if_whole(final)
    if facts is not None:
        return facts
    building = final.parent / f"{BUILDING}{uuid.uuid4().hex}"
    try:
        building.mkdir(parents=True)
        _remove_abandoned(final.parent)
        facts = fill(building)
        _write_manifest(building, facts)
        _publish(building, final)
    except OSError as error:
        raise DataError(
            f"{final.parent}: the cache cannot be written ({error.strerror or error}); make room "
            "or choose another folder by federation.cache or the variable KONSIL_CACHE"
        ) from None
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return facts


def facts_if_whole(folder: Path) -> dict[str, Any] | None:
    """What the manifest says, if every file that it lists is there with its size."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        sizes: dict[str, int] = manifest["files"]
        whole = all((folder / name).stat().st_size == size for name, size in sizes.items())
        facts: dict[str, Any] = manifest["facts"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return facts if whole else None


def _write_manifest(folder: Path, facts: dict[str, Any]) -> None:
    files = {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    text = json.dumps({"facts": facts, "files": files}, indent=1)
    write_text(folder / MANIFEST, text, durable=True)


def _publish(building: Path, final: Path) -> None:
    for attempt in range(ATTEMPTS):
        try:
            building.rename(final)
            return
        except OSError:
            if facts_if_whole(final) is not None:
                return  # another run was faster, and the same name means the same content
            if attempt == ATTEMPTS - 1 or not final.exists():
                raise
            _set_aside(final)


def _set_aside(damaged: Path) -> None:
    aside = damaged.parent / f"{BUILDING}{uuid.uuid4().hex}"
    try:
        damaged.rename(aside)
    except FileNotFoundError:
        return  # another run is mending it too
    shutil.rmtree(aside, ignore_errors=True)


def _remove_abandoned(parent: Path) -> None:
    """Sweep what killed runs left, so that they do not fill the disk."""
    for folder in parent.glob(f"{BUILDING}*"):
        try:
            abandoned = time.time() - folder.stat().st_mtime > ABANDONED_AFTER
        except FileNotFoundError:
            continue
        if abandoned:
            shutil.rmtree(folder, ignore_errors=True)
