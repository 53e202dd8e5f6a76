"""Glob patterns for the files of a site, and what their stars stand for."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from unicodedata import normalize

from konsil.data.sources import leaves_folder, visible
from konsil.errors import ConfigError

STARS = {"**/": r"((?:.*/)?)", "**": r"(.*)", "*": r"([^/]*)", "?": r"([^/])"}
TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|\{[^{}]*\}|.", re.DOTALL)
Stars = tuple[str, ...]


class Pattern:
    """A path with `*` (part of a name), `**` (any folders), `?` and `{jpg,png}`."""

    def __init__(self, text: str, key: str) -> None:
        if leaves_folder(text):
            raise ConfigError(
                f"{key} = {text!r}: paths are relative to the federation file and stay in its "
                "folder: move the file or the images"
            )
        self.text = text.removeprefix("./").rstrip("/")
        self._regex = re.compile("".join(_translate(token) for token in TOKEN.findall(self.text)))

    def find(self, root: Path) -> Iterator[tuple[str, Stars]]:
        """Matching files and folders below the root with their stars, in the order of names."""
        fixed = re.split(r"[*?{]", self.text, maxsplit=1)[0]  # nothing else needs to be walked
        yield from self._search(root, fixed.rpartition("/")[0])

    def stars(self, path: str) -> Stars | None:
        """What the stars stand for in a path; None if it does not match."""
        match = self._regex.fullmatch(path)
        # a Mac writes an umlaut as two characters, others as one
        return match and tuple(normalize("NFC", star) for star in match.groups())

    def _search(self, root: Path, folder: str, *above: str) -> Iterator[tuple[str, Stars]]:
        real = os.path.realpath(root / folder)
        if real in above or not os.path.isdir(real):  # a link back to where we come from
            return
        for entry in visible(root / folder):
            path = f"{folder}/{entry.name}" if folder else entry.name
            stars = self.stars(path)
            if stars is not None:
                yield path, stars
            elif entry.is_dir():
                yield from self._search(root, path, *above, real)


def _translate(token: str) -> str:
    if token.startswith("{") and token.endswith("}"):
        return "(?:" + "|".join(re.escape(part) for part in token[1:-1].split(",")) + ")"
    return STARS.get(token, re.escape(token))
