"""The folder that a person downloaded, and which of its files belong together."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from pathlib import Path

from konsil.data.findings import Findings
from konsil.errors import DataError
from konsil.prepare.walk import below, folders

JUNK = ("__macosx", "thumbs.db", "desktop.ini")  # what unpacking leaves
SHOWN = 12  # folders of a download that is not understood
UNPAIRED = "get the data set again, or take the file away"
TWICE = "keep one of the two; was the data set unpacked twice?"


class Source:
    """A downloaded folder and its files. How deep the expected folders lie does not matter."""

    def __init__(self, root: Path, name: str, title: str, layout: str) -> None:
        if not root.is_dir():
            raise DataError(f"{root}: no such folder; give the folder that {name} is in")
        self.root = root
        self._name, self._title, self._layout = name, title, layout
        self._found = Findings()

    @cached_property
    def files(self) -> list[str]:
        """Every file below the folder, in the order of names."""
        paths = (below(folder, name) for folder, names in folders(self.root) for name in names)
        return sorted(path for path in paths if not set(JUNK) & set(path.lower().split("/")))

    @cached_property
    def folders(self) -> dict[str, list[str]]:
        """Every folder that holds files, with their paths."""
        found: dict[str, list[str]] = {}
        for path in self.files:
            found.setdefault(path.rpartition("/")[0] or ".", []).append(path)
        return found

    # --- files by their names ---

    def matching(self, pattern: str, of: Collection[str] | None = None) -> dict[str, re.Match[str]]:
        """Files whose path ends as the pattern says, from a folder's or file's name on."""
        regex = re.compile(rf"(?:^|.*/)(?:{pattern})$", re.IGNORECASE)
        files = self.files if of is None else of
        return {name: match for name in files if (match := regex.match(name))}

    def by_name(self, pattern: str, of: Collection[str] | None = None) -> dict[str, list[str]]:
        """Files by the pattern's groups in lower case, joined by _."""
        files: dict[str, list[str]] = {}
        for path, match in self.matching(pattern, of).items():
            files.setdefault("_".join(match.groups()).lower(), []).append(path)
        return files

    def named(self, pattern: str, of: Collection[str] | None = None) -> dict[str, str]:
        """The same where a name must not occur twice."""
        files = self.by_name(pattern, of)
        for first, *others in files.values():
            for other in others:
                self.refuse("file that is there twice", f"{first} and {other}", TWICE)
        return {key: paths[0] for key, paths in files.items()}

    def pairs(
        self, explained: Iterable[str] | None = None, **patterns: str
    ) -> dict[str, dict[str, str]]:
        """Files that belong together by their names: name -> image, mask, ... -> path.

        `explained` are further pictures that the layout knows; given, no other may be there.
        """
        found = {file: self.named(pattern) for file, pattern in patterns.items()}
        return self.together(found, explained)

    def together(
        self, files: Mapping[str, Mapping[str, str]], explained: Iterable[str] | None = None
    ) -> dict[str, dict[str, str]]:
        """`pairs` of files that were found already, by kind and name; the first are the images."""
        first, *others = files
        for kind in files:
            if not files[kind]:
                raise self.not_understood(f"no {kind.replace('_', ' ')} of it was found")
        for kind in others:
            self._refuse_unpaired(files[first], files[kind], kind.replace("_", " "))
        if explained is not None:
            known = {path for own in files.values() for path in own.values()}
            self.refuse_unexplained(known.union(explained))
        self.raise_if_any()
        return {key: {kind: files[kind][key] for kind in files} for key in files[first]}

    # --- what is wrong ---

    def refuse(self, what: str, where: str, cure: str) -> None:
        """A mistake in the folder; all of them are raised together when the cases are found."""
        self._found.add(what, where, cure)

    def raise_if_any(self) -> None:
        """Go no further with what was refused."""
        self._found.raise_if_any(self.root)

    def _refuse_unpaired(
        self, images: Mapping[str, str], labels: Mapping[str, str], kind: str
    ) -> None:
        for key in sorted(images.keys() - labels.keys()):
            self.refuse(f"image without a {kind}", images[key], UNPAIRED)
        for key in sorted(labels.keys() - images.keys()):
            self.refuse(f"{kind} without an image", labels[key], UNPAIRED)

    def refuse_unexplained(self, explained: Iterable[str]) -> None:
        """Every picture must have been explained by the layout: none is skipped in silence."""
        from konsil.data.sources import SUFFIXES

        cure = (
            "take it away, or give the folder of this data set alone; "
            f"`konsil data import` shows the layout of {self._name}"
        )
        for path in sorted(set(self.files).difference(explained)):
            if path.lower().endswith(SUFFIXES):
                self.refuse("image that the layout does not explain", path, cure)

    def not_understood(self, why: str) -> DataError:
        """An error that shows the layout expected and what was found instead."""
        layout = "\n".join(f"    {line}" for line in self._layout.strip("\n").splitlines())
        return DataError(
            f"{self.root}: {why}\n  {self._title} is expected as\n{layout}\n"
            f"  at any depth; found\n{self._contents()}\n"
            "  -> give the folder into which the data set was unpacked"
        )

    def _contents(self) -> str:
        lines = [
            f"    {folder}/: {len(paths)} file(s), such as {paths[0].rpartition('/')[2]}"
            for folder, paths in list(self.folders.items())[:SHOWN]
        ]
        if len(self.folders) > SHOWN:
            lines.append(f"    and {len(self.folders) - SHOWN} more folders")
        return "\n".join(lines) or "    nothing: the folder is empty"
