"""Named weights with a JSON header, as bytes: one form on the wire and on the disk.

    magic | length of the header | checksum | header (JSON) | the flat buffers, one by one

The header lists each part with its layout; it never holds anything that must be executed. The
checksum covers all that follows it: a flipped digit in a header is as bad as one in a buffer. A
file is written beside its place and renamed: it is there whole or not at all, and a damaged one
is refused by name.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import torch

from konsil.errors import StateError
from konsil.files import replacing
from konsil.weights import KINDS, Group, Layout, Parts, Weights

MAGIC = b"KNSL1\n"
PREFIX = struct.Struct(f"<{len(MAGIC)}sII")  # magic, length of the header, checksum
Header = dict[str, Any]


def pack(header: Header, parts: Parts) -> bytes:
    """Header and parts as one message."""
    return b"".join(_pieces(header, parts))


def unpack(
    message: bytes | bytearray, source: str = "message"
) -> tuple[Header, dict[str, Weights]]:
    """Header and parts of a message; the weights are views of its bytes."""
    data = message if isinstance(message, bytearray) else bytearray(message)
    if len(data) < PREFIX.size or data[: len(MAGIC)] != MAGIC:
        raise StateError(f"{source}: not a Konsil message")
    _, length, checksum = PREFIX.unpack_from(data)
    rest = memoryview(data)[PREFIX.size :]
    if length > len(rest) or zlib.crc32(rest) != checksum:
        raise StateError(f"{source}: damaged: length or checksum is wrong")
    try:
        header = json.loads(bytes(rest[:length]))
        return header["header"], _weights(header["parts"], data, PREFIX.size + length)
    except Exception as error:  # whatever somebody made of it: nested too deep, numbers too large
        raise StateError(f"{source}: damaged header ({error})") from None


def write_parts(path: Path, header: Header, parts: Parts, durable: bool = False) -> None:
    """A file of header and parts, whole or not at all; `durable` also survives a power cut."""
    try:
        with replacing(path, durable) as file:
            for piece in _pieces(header, parts):
                file.write(piece)
    except OSError as error:
        raise StateError(
            f"{path}: cannot be written ({error.strerror or error}); what was there before is "
            "whole: make room, then go on with the run"
        ) from None


def read_parts(path: Path) -> tuple[Header, dict[str, Weights]]:
    """Header and parts of a file written by `write_parts`."""
    try:
        data = bytearray(path.stat().st_size)
        with open(path, "rb") as file:
            file.readinto(data)
    except OSError as error:
        raise StateError(f"{path}: cannot be read ({error})") from None
    return unpack(data, str(path))


def _pieces(header: Header, parts: Parts) -> Iterator[bytes | memoryview]:
    buffers = [_bytes_of(weights) for weights in parts.values()]
    listing = [{"name": name, "layout": w.layout.to_json()} for name, w in parts.items()]
    text = json.dumps({"header": header, "parts": listing}).encode()
    # padding keeps the buffers aligned to 64 bytes, so that they can be used where they lie
    text += b" " * (-(PREFIX.size + len(text)) % 64)
    checksum = zlib.crc32(text)
    for buffer in buffers:
        checksum = zlib.crc32(buffer, checksum)
    yield PREFIX.pack(MAGIC, len(text), checksum) + text
    yield from buffers


def _bytes_of(weights: Weights) -> memoryview:
    return memoryview(weights.flat.contiguous().numpy().view("uint8"))  # type: ignore[arg-type]


def _weights(listing: list[Header], data: bytearray, offset: int) -> dict[str, Weights]:
    layouts = {_text(part["name"]): _layout(part["layout"]) for part in listing}
    if len(data) - offset != 4 * sum(layout.size for layout in layouts.values()):
        raise ValueError("the layouts do not fit the length")
    parts = {}
    for name, layout in layouts.items():
        size = layout.size
        flat = (
            torch.frombuffer(data, dtype=torch.float32, count=size, offset=offset)
            if size
            else torch.zeros(0)
        )
        parts[name] = Weights(layout, flat)
        offset += 4 * size
    return parts


def _layout(listing: Any) -> Layout:
    for name, shape, kind, group in listing:
        _text(name)
        if kind not in KINDS or group not in get_args(Group):
            raise ValueError("a layout with an entry of no known kind or group")
        if not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError("a layout with a shape that is none")
    return Layout.from_json(listing)


def _text(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError("a name that is no text")
    return name
