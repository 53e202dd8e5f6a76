"""events.jsonl: one line an event, appended and flushed as it happens."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


class EventLog:
    """Appends events to a file; a line that a kill cut short is dropped when it goes on."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():  # not written anew: the disk may be full
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115  closed by `close`

    def __call__(self, event: dict[str, Any]) -> None:
        """Write one event with the time."""
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._file.write(json.dumps({"time": stamp, **event}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; no more events come."""
        self._file.close()
