"""Mistakes in a federation, collected by kind so that one error shows them all."""

from collections.abc import Iterator, Sequence

from konsil.errors import DataError

SHOWN = 5  # of each kind; the rest is counted


class BadFile(Exception):
    """One file that cannot be used, and what to do. It never leaves this package."""

    def __init__(self, what: str, cure: str, detail: str = "", name: str = "") -> None:
        super().__init__(what, cure, detail)
        self.what, self.cure, self.detail = what, cure, detail
        self.name = name  # of the file, for those who opened several at once

    def __str__(self) -> str:
        return f"{self.what}{f' ({self.detail})' if self.detail else ''}; {self.cure}"


class Findings:
    """What is wrong, where, and the cure; raised together as one DataError."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str], list[str]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._places.values()))

    def add(self, what: str, where: str, cure: str) -> None:
        """One mistake of the kind `what`, at the file or site `where`."""
        self._places.setdefault((what, cure), []).append(where)

    def add_file(self, name: str, bad: BadFile) -> None:
        """A file that a reader refused."""
        self.add(bad.what, f"{name} ({bad.detail})" if bad.detail else name, bad.cure)

    def kinds(self) -> Iterator[tuple[str, list[str], str]]:
        """What is wrong, everywhere it is, and the cure; kind by kind."""
        for (what, cure), places in self._places.items():
            yield what, list(places), cure

    def raise_if_any(self, source: object) -> None:
        """Raise a DataError that lists every kind, with its first places and its cure."""
        if self._places:
            kinds = [paragraph(*kind, places) for kind, places in self._places.items()]
            raise DataError(f"{source}: this cannot be used:\n" + "\n".join(kinds))


def paragraph(what: str, cure: str, places: Sequence[str]) -> str:
    """A kind of mistake in lines: what, its first places, the cure."""
    count = f" ({len(places)} times)" if len(places) > 1 else ""
    shown = [f"    {place}" for place in places[:SHOWN]]
    if len(places) > SHOWN:
        shown.append(f"    and {len(places) - SHOWN} more")
    return "\n".join([f"  {what}{count}:", *shown, f"    -> {cure}"])
