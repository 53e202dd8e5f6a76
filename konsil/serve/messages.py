"""What goes between the listening process and its workers."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

LENGTH = 4  # bytes that say how long the head of a reply is


@dataclass(frozen=True)
class Question:
    """About the files in a folder."""

    folder: str  # that holds one picture, volume or DICOM series, and nothing else
    ask: str = "auto"
    site: str | None = None  # read as this one's images
    reading: dict[str, Any] = field(default_factory=dict)  # window, view, channel, series
    form: str = "answer"  # answer: JSON; mask: the file itself
    include: tuple[str, ...] = ()  # of a JSON answer: mask, images, overlays

    def to_bytes(self) -> bytes:
        """As it goes through the pipe: one object of JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Question:
        """What `to_bytes` has written."""
        return cls(**json.loads(data))


@dataclass(frozen=True)
class Reply:
    """What a client is sent. Of a worker's bytes only the short head is parsed."""

    status: int
    body: bytes
    type: str = "application/json"
    name: str = ""  # of a file
    spent: bool = False  # the worker should be replaced

    @classmethod
    def problem(cls, status: int, detail: str, spent: bool = False) -> Reply:
        """Why there is no answer."""
        return cls(status, json.dumps({"detail": detail}).encode(), spent=spent)

    def to_bytes(self) -> bytes:
        """As it goes through the pipe: the head's length, the head, the body."""
        facts = {"status": self.status, "type": self.type, "name": self.name, "spent": self.spent}
        head = json.dumps(facts).encode()
        return len(head).to_bytes(LENGTH, "big") + head + self.body

    @classmethod
    def from_bytes(cls, data: bytes) -> Reply:
        """What `to_bytes` has written."""
        end = LENGTH + int.from_bytes(data[:LENGTH], "big")
        return cls(body=data[end:], **json.loads(data[LENGTH:end]))
