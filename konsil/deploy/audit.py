"""The audit trail: who sent what. Part names, bytes, hashes and norms, never values."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from konsil.errors import StateError
from konsil.messages import Message
from konsil.observers.eventlog import EventLog
from konsil.report.audit import FILE


class Audit:
    """One party's log: a line for every message and every decision."""

    def __init__(self, folder: Path, party: str) -> None:
        self.party = party
        self._log = EventLog(folder / FILE)

    def note(self, event: str, **facts: Any) -> None:
        """A decision, or something that happened."""
        self._log({"party": self.party, "event": event, **facts})

    def message(self, event: str, site: str, payload: bytes, kind: type[Message]) -> None:
        """A request or reply that was sent or received."""
        facts: dict[str, Any] = {
            "site": site,
            "bytes": len(payload),
            "sha256": hashlib.sha256(payload).hexdigest(),
        }
        try:
            self.note(event, **facts, **_contents(kind.from_bytes(payload)))
        except StateError as error:  # a damaged message is logged as well
            self.note(event, **facts, damaged=str(error))

    def close(self) -> None:
        """No more events."""
        self._log.close()


def _contents(message: Message) -> dict[str, Any]:
    return {
        "kind": message.kind,
        "job": message.job,
        "round": message.round,
        "plan": message.plan,
        "parts": {
            name: {"values": part.layout.size, "norm": float(f"{float(part.flat.norm()):.6g}")}
            for name, part in message.parts.items()
        },
    }
