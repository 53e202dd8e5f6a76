"""Named weights with a JSON header, as bytes: one form on the wire and on the disk.

It is the safetensors form, which many tools read: a length, a JSON text, the buffers one by one.
Each part is one flat float32 tensor; `__metadata__` holds our header, the parts' layouts and a
checksum of all that follows it (and of the length before it): a flipped digit in a header is as
bad as one in a buffer. Nothing in it is ever executed. A file is written beside its place and
renamed: it is there whole or not at all, and a damaged one is refused by name.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
import xxhash

from konsil.errors import StateError
from konsil.files import replacing
from konsil.weights import KINDS, Group, Layout, Parts, Weights

LENGTH = struct.Struct("<Q")
METADATA = "__metadata__"
DIGITS = 16  # of a checksum; they are not in it
BEGINNING = b'{"__metadata__": {"checksum": "'  # then the digits
CHECKED = LENGTH.size + len(BEGINNING) + DIGITS  # where that begins which the checksum is of
Header = dict[str, Any]


def pack(header: Header, parts: Parts) -> bytes:
    """Header and parts as one message."""
    return b"".join(_pieces(header, parts))


def unpack(
    message: bytes | bytearray, source: str = "message"
) -> tuple[Header, dict[str, Weights]]:
    """Header and parts of a message; the weights are views of its bytes."""
    data = message if isinstance(message, bytearray) else bytearray(message)
    view = memoryview(data)
    if view[LENGTH.size : CHECKED - DIGITS] != BEGINNING:
        raise StateError(f"{source}: not a Konsil message")
    end = LENGTH.size + LENGTH.unpack_from(data)[0]
    given, checked = view[CHECKED - DIGITS : CHECKED], (view[: LENGTH.size], view[CHECKED:])
    if end > len(data) or given != checksum(*checked):
        raise StateError(f"{source}: damaged: length or checksum is wrong")
    try:
        tensors = json.loads(bytes(view[LENGTH.size : end]))
        metadata = tensors.pop(METADATA)
        layouts = {n: _layout(known) for n, known in json.loads(metadata["layouts"]).items()}
        sizes = [layout.size for layout in layouts.values()]
        if tensors != _listing(layouts) or len(data) - end != 4 * sum(sizes):
            raise ValueError("the layouts do not fit the tensors")
        flats = torch.from_numpy(np.frombuffer(data, np.float32, offset=end)).split(sizes)
        parts = {n: Weights(w, flat) for (n, w), flat in zip(layouts.items(), flats, strict=True)}
        return json.loads(metadata["konsil"]), parts
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
    """By hand: the library would make one more copy of all buffers, and has no checksum."""
    layouts = {name: weights.layout for name, weights in parts.items()}
    metadata = {
        "checksum": "0" * DIGITS,
        "konsil": json.dumps(header),
        "layouts": json.dumps({name: layout.to_json() for name, layout in layouts.items()}),
    }
    text = json.dumps({METADATA: metadata, **_listing(layouts)}).encode()
    # padding keeps the buffers aligned to 64 bytes, so that they can be used where they lie
    text += b" " * (-(LENGTH.size + len(text)) % 64)
    buffers = [w.flat.contiguous().numpy().data.cast("B") for w in parts.values()]
    length, (before, after) = (
        LENGTH.pack(len(text)),
        (text[: len(BEGINNING)], text[CHECKED - LENGTH.size :]),
    )
    yield length + before + checksum(length, after, *buffers) + after
    yield from buffers


def _around_the_digits(text: bytes) -> tuple[bytes, bytes]:
    return text[: len(BEGINNING)], text[len(BEGINNING) + DIGITS :]


def checksum(*pieces: bytes | memoryview) -> bytes:
    """XXH3 of all pieces together: at the speed of memory, where a CRC takes ten times as long."""
    digest = xxhash.xxh3_64()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest().encode()


def _listing(layouts: Mapping[str, Layout]) -> dict[str, Any]:
    """The tensors as safetensors lists them: one a part, one after the other."""
    if METADATA in layouts:
        raise ValueError(f"no part can have the name {METADATA}")
    listing, begin = {}, 0
    for name, layout in layouts.items():
        span = [begin, begin + 4 * layout.size]
        listing[name] = {"dtype": "F32", "shape": [layout.size], "data_offsets": span}
        begin = span[1]
    return listing


def _layout(listing: Any) -> Layout:
    for name, shape, kind, group in listing:
        if not isinstance(name, str):
            raise TypeError("a name that is no text")
        if kind not in KINDS or group not in get_args(Group):
            raise ValueError("a layout with an entry of no known kind or group")
        if not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError("a layout with a shape that is none")
    return Layout.from_json(listing)
