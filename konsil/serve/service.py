"""Uploads become questions: files in a folder that lives as long as the question."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import unicodedata
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import HTTPException

from konsil.serve.messages import Question, Reply

if TYPE_CHECKING:
    from fastapi import UploadFile

    from konsil.serve.pool import Pool

LONGEST_NAME = 150  # bytes of a file's name; systems have 255 for it and for what we add
AT_ONCE = 1 << 20  # bytes that are copied at once


class Service:
    """Asks the workers about what was uploaded, and keeps nothing of it."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.limits = pool.setup.limits
        self._root = Path(tempfile.mkdtemp(prefix="konsil-serve-"))  # for our eyes only (0700)

    def close(self) -> None:
        """Forget whatever is left."""
        shutil.rmtree(self._root, ignore_errors=True)

    async def ask(self, files: Sequence[UploadFile], question: Question) -> Reply:
        """The answer to what was uploaded."""
        async with self.kept(files) as folder:
            return await self.ask_about(folder, question)

    async def ask_about(self, folder: Path, question: Question) -> Reply:
        """The answer to the files that are in a folder already."""
        asked = replace(question, folder=str(folder))
        return await asyncio.to_thread(self.pool.ask, asked)

    @asynccontextmanager
    async def kept(self, files: Sequence[UploadFile]) -> AsyncIterator[Path]:
        """A folder with what was uploaded, until the block ends."""
        home = Path(tempfile.mkdtemp(dir=self._root))
        try:
            yield await self.save(files, home)
        finally:
            await asyncio.to_thread(shutil.rmtree, home, True)

    async def save(self, files: Sequence[UploadFile], home: Path) -> Path:
        """Write uploads into `home`/series, under their own names; the folder."""
        folder = home / "series"  # what a DICOM series is called that has no name of its own
        folder.mkdir()
        if not files:
            raise HTTPException(422, "no file: send one picture, volume or DICOM series as `files`")
        for file in files:
            path = folder / plain_name(file.filename or "")
            if path.exists():
                raise HTTPException(422, f"{path.name}: two files of this name")
            await asyncio.to_thread(_copy, file, path)
        return folder

    def new_folder(self) -> Path:
        """A folder that stays until somebody removes it, or the server ends."""
        return Path(tempfile.mkdtemp(dir=self._root))


def plain_name(name: str) -> str:
    """A file's name, if it is one and no path, command or trick; HTTPException 400 if not."""
    odd = [c for c in name if c in '/\\:*?"<>|' or unicodedata.category(c) in ("Cc", "Cf", "Cs")]
    if not name or odd or name.startswith(".") or len(name.encode()) > LONGEST_NAME:
        raise HTTPException(
            400, "the name of a file must be plain: no path, no control characters, not too long"
        )
    return name


def _copy(file: UploadFile, path: Path) -> None:
    with open(path, "xb") as to:
        shutil.copyfileobj(file.file, to, AT_ONCE)
