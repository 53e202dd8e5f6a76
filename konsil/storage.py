"""Named weights with a JSON header, as bytes: one form on the wire and on the disk.

    magic | header length | header (JSON) | the flat buffers, one after the other

The header lists each part with its layout; it never holds anything that must be executed. A file
is written beside its place and renamed, and carries a checksum: it is there whole or not at all,
and a damaged one is refused by name.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from konsil.errors import StateError
from konsil.files import replacing
from konsil.weights import Layout, Parts, Weights

MAGIC = b"KNSL1\n"
Header = dict[str, Any]


def pack(header: Header, parts: Parts) -> bytes:
    """Header and parts as one message."""
    return b"".join(_pieces(header, parts))


def unpack(
    message: bytes | bytearray, source: str = "message"
) -> tuple[Header, dict[str, Weights]]:
    """Header and parts of a message; the weights are views of its bytes."""
    data = message if isinstance(message, bytearray) else bytearray(message)
    start = len(MAGIC) + 4
    if len(data) < start or data[: len(MAGIC)] != MAGIC:
        raise StateError(f"{source}: not a Konsil message")
    (length,) = struct.unpack_from("<I", data, len(MAGIC))
    try:
        header = json.loads(bytes(data[start : start + length]))
        listing, user, checksum = header["parts"], header["header"], header["crc32"]
    except (ValueError, KeyError, TypeError):
        raise StateError(f"{source}: damaged header") from None
    body = memoryview(data)[start + length :]
    if len(body) != sum(4 * part["size"] for part in listing) or zlib.crc32(body) != checksum:
        raise StateError(f"{source}: damaged: length or checksum is wrong")
    return user, _weights(listing, data, start + length)


def write_parts(path: Path, header: Header, parts: Parts, durable: bool = False) -> None:
    """A file of header and parts, whole or not at all; `durable` also survives a power cut."""
    try:
        with replacing(path, durable) as file:
            for piece in _pieces(header, parts):
                file.write(piece)
    except OSError as error:
        raise StateError(
            f"{path}: cannot be written ({error.strerror or error}); what was there before is "
            "whole: make room, then --resume"
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
    checksum = 0
    for buffer in buffers:
        checksum = zlib.crc32(buffer, checksum)
    listing = [
        {"name": name, "size": w.layout.size, "layout": w.layout.to_json()}
        for name, w in parts.items()
    ]
    text = json.dumps({"header": header, "parts": listing, "crc32": checksum}).encode()
    # padding keeps the buffers aligned to 64 bytes, so that they can be used where they lie
    text += b" " * (-(len(MAGIC) + 4 + len(text)) % 64)
    yield MAGIC + struct.pack("<I", len(text)) + text
    yield from buffers


def _bytes_of(weights: Weights) -> memoryview:
    return memoryview(weights.flat.contiguous().numpy().view("uint8"))  # type: ignore[arg-type]


def _weights(listing: list[Header], data: bytearray, offset: int) -> dict[str, Weights]:
    parts = {}
    for part in listing:
        layout, size = Layout.from_json(part["layout"]), part["size"]
        if layout.size != size:
            raise StateError(f"part {part['name']}: layout and size disagree")
        flat = (
            torch.frombuffer(data, dtype=torch.float32, count=size, offset=offset)
            if size
            else torch.zeros(0)
        )
        parts[part["name"]] = Weights(layout, flat)
        offset += 4 * size
    return parts
