"""The audit trail: who sent what. Part names, bytes, hashes and norms, never values."""

import hashlib
from pathlib import Path
from typing import Any, TypeVar

from konsil.errors import StateError
from konsil.federation.messages import Message
from konsil.observers.eventlog import EventLog
from konsil.report.audit import FILE

Buffer = bytes | memoryview
M = TypeVar("M", bound=Message)


class Audit:
    """One party's log: a line for every message and every decision."""

    def __init__(self, folder: Path, party: str) -> None:
        self.party = party
        self._log = EventLog(folder / FILE)

    def note(self, event: str, **facts: Any) -> None:
        """A decision, or something that happened."""
        self._log({"party": self.party, "event": event, **facts})

    def sent(self, site: str, message: Message, payload: Buffer) -> None:
        """A message that leaves, with its bytes."""
        self._message("sent", site, payload, _contents(message))

    def received(self, site: str, payload: Buffer, kind: type[M], event: str = "received") -> M:
        """The message in these bytes. One that is damaged is in the trail as well, and refused."""
        try:
            message = kind.from_bytes(bytearray(payload))
        except StateError as error:
            self._message(event, site, payload, {"damaged": str(error)})
            raise
        self._message(event, site, payload, _contents(message))
        return message

    def _message(self, event: str, site: str, payload: Buffer, contents: dict[str, Any]) -> None:
        digest = hashlib.sha256(payload).hexdigest()
        self.note(event, site=site, bytes=len(payload), sha256=digest, **contents)

    def close(self) -> None:
        """Close the file; no more events come."""
        self._log.close()


def _contents(message: Message) -> dict[str, Any]:
    address = {name: getattr(message, name) for name in ("kind", "job", "round", "plan")}
    parts = {
        name: {"values": part.layout.size, "norm": float(f"{float(part.flat.norm()):.6g}")}
        for name, part in message.parts.items()
    }
    return {**address, "parts": parts}
