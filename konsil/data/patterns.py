"""Glob patterns for the files of a site, and what their stars stand for."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from unicodedata import normalize

from konsil.errors import ConfigError, DataError

TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|\{[^{}]*\}|.", re.DOTALL)
Stars = tuple[str, ...]


class Pattern:
    """A path with `*` (part of a name), `**` (any folders), `?` and `{jpg,png}`."""

    def __init__(self, text: str, key: str) -> None:
        normal = os.path.normpath(text)
        if os.path.isabs(normal) or normal.split(os.sep)[0] == os.pardir:
            raise ConfigError(
                f"{key} = {text!r}: paths are relative to the federation file and stay in its "
                "folder: move the file or the images"
            )
        self.text = text.removeprefix("./").rstrip("/")
        self._regex = re.compile("".join(_translate(token) for token in TOKEN.findall(self.text)))

    def find(self, root: Path) -> Iterator[tuple[str, Stars]]:
        """Matching files and folders below the root with their stars, in the order of names."""
        yield from self._search(root, self._fixed_part(), ())

    def stars(self, path: str) -> Stars | None:
        """What the stars stand for in a path; None if it does not match."""
        match = self._regex.fullmatch(path)
        # a Mac writes an umlaut as two characters, others as one
        return match and tuple(normalize("NFC", star) for star in match.groups())

    def _fixed_part(self) -> str:
        """The folders before the first star: nothing else needs to be walked."""
        fixed = re.split(r"[*?{]", self.text, maxsplit=1)[0]
        return fixed.rpartition("/")[0]

    def _search(
        self, root: Path, folder: str, above: tuple[str, ...]
    ) -> Iterator[tuple[str, Stars]]:
        real = os.path.realpath(root / folder)
        if real in above:  # a link back to where we come from
            return
        try:
            entries = sorted(os.scandir(root / folder), key=lambda entry: entry.name)
        except FileNotFoundError:
            return
        except OSError as error:
            raise DataError(
                f"{root / folder}: cannot be listed ({error.strerror}); its images would be left "
                "out unseen: check its permissions"
            ) from None
        for entry in entries:
            if entry.name.startswith("."):
                continue
            path = f"{folder}/{entry.name}" if folder else entry.name
            stars = self.stars(path)
            if stars is not None:
                yield path, stars
            elif entry.is_dir():
                yield from self._search(root, path, (*above, real))


def _translate(token: str) -> str:
    if token == "**/":
        return r"((?:.*/)?)"
    if token == "**":
        return r"(.*)"
    if token == "*":
        return r"([^/]*)"
    if token == "?":
        return r"([^/])"
    if token.startswith("{") and token.endswith("}"):
        return "(?:" + "|".join(re.escape(part) for part in token[1:-1].split(",")) + ")"
    return re.escape(token)
