"""Requests and replies: plain data, the same on every engine."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

from konsil.errors import StateError
from konsil.storage import pack, unpack
from konsil.weights import Parts

Kind = Literal["round", "finish", "collect", "calibrate", "evaluate"]


@dataclass(frozen=True)
class Message:
    """What every message carries."""

    kind: Kind
    job: str  # which method and seed of the run
    site: str
    round: int
    plan: str  # the plan's hash: a site answers only for the plan it has agreed to
    parts: Parts = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The message as it travels."""
        return pack(self.header(), self.parts)

    def header(self) -> dict[str, Any]:
        """All but the parts."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "parts"}

    @classmethod
    def from_bytes(cls, message: bytes | bytearray) -> Self:
        """The message as it arrives."""
        source = cls.__name__.lower()
        header, parts = unpack(message, source)
        try:
            return cls(**header, parts=parts)
        except TypeError as error:
            raise StateError(f"{source}: not what a {source} holds ({error})") from None


class Request(Message):
    """What the server asks of one site."""


class Reply(Message):
    """What one site answers."""


@dataclass(frozen=True)
class Failure:
    """A site that did not answer, and why."""

    site: str
    reason: str
