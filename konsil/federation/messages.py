"""Requests and replies: plain data, the same on every engine."""

from __future__ import annotations

import re
import reprlib
import sys
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, get_args

from konsil.errors import StateError
from konsil.federation.storage import pack, unpack
from konsil.weights import Parts

Kind = Literal["round", "finish", "collect", "calibrate", "evaluate"]
UNPRINTABLE = re.compile(r"[\x00-\x1f\ud800-\udfff]")  # names get into logs and onto screens
LONGEST = 80  # characters of something that was sent, in an error's text


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
            arrived = cls(**header, parts=parts)
        except TypeError as error:
            raise StateError(f"{source}: not what a {source} holds ({shown(str(error))})") from None
        for name in _of_another_type(arrived):
            raise StateError(f"{source}: {name} is {shown(getattr(arrived, name))}")
        return arrived


def _of_another_type(message: Message) -> list[str]:
    """The fields that hold what nobody who follows the protocol puts there."""
    fits = {
        "kind": message.kind in get_args(Kind),
        **{name: _is_name(getattr(message, name)) for name in ("job", "site", "plan")},
        "round": type(message.round) is int,
        "facts": isinstance(message.facts, dict),
    }
    return [name for name, fit in fits.items() if not fit]


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and not UNPRINTABLE.search(value)


def is_number(value: Any) -> bool:
    """A finite number that fits a float: what a site sends as one may be anything."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and abs(value) <= sys.float_info.max


def shown(value: Any) -> str:
    """What a site sent, fit for an error's text: short, and printable."""
    text = value if isinstance(value, str) else reprlib.repr(value)
    short = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return short if short.isprintable() else ascii(short)


class Request(Message):
    """What the server asks of one site."""


class Reply(Message):
    """What one site answers."""


@dataclass(frozen=True)
class Failure:
    """A site that did not answer, and why."""

    site: str
    reason: str
