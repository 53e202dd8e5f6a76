"""Reading events.jsonl while somebody else writes it: only what is new, and only whole lines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

EVENTS = "events.jsonl"
MARK = 256  # bytes before the place that was read last, by which a replaced file is noticed
CHUNK = 1 << 20


@dataclass
class Following:
    """The events of a log, from where the last look ended; nothing is locked and nothing written.

    A line that is being written waits for its end. A log that is shorter than it was, or another
    file, or has other bytes before the place that was read last, is read from its beginning:
    then `replaced` counts one more.
    """

    path: Path
    replaced: int = 0
    _place: int = 0
    _mark: bytes = b""
    _file: tuple[int, int] = field(default=(0, 0))

    def new(self) -> list[dict[str, Any]]:
        """The events since the last look; none while there is no such file."""
        try:
            with open(self.path, "rb") as file:
                self._notice_replaced(file)
                return list(self._events(file))
        except FileNotFoundError:
            return []

    def _notice_replaced(self, file: BinaryIO) -> None:
        found = os.fstat(file.fileno())
        same = (found.st_dev, found.st_ino) == self._file
        file.seek(max(0, self._place - len(self._mark)) if same else 0)
        if self._place and not (same and file.read(len(self._mark)) == self._mark):
            self.replaced += 1
            self._place, self._mark = 0, b""
        self._file = found.st_dev, found.st_ino
        file.seek(self._place)

    def _events(self, file: BinaryIO) -> Iterator[dict[str, Any]]:
        rest = b""
        while chunk := file.read(CHUNK):
            whole, cut, rest = (rest + chunk).rpartition(b"\n")
            taken = whole + cut
            self._place += len(taken)
            self._mark = (self._mark + taken[-MARK:])[-MARK:]
            for line in whole.split(b"\n"):
                event = _event(line)
                if event is not None:
                    yield event


def _event(line: bytes) -> dict[str, Any] | None:
    """None for a line that is no event: a power cut may leave zeros, and they stay in the file."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None
