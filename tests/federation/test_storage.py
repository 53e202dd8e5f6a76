import errno
import json
import os
from pathlib import Path
from threading import get_ident
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from konsil.errors import StateError
from konsil.federation import storage
from konsil.federation.storage import (
    BEGINNING,
    CHECKED,
    DIGITS,
    LENGTH,
    checksum,
    pack,
    read_parts,
    unpack,
    write_parts,
)
from konsil.weights import Layout, Weights

quickly = settings(max_examples=40, deadline=None)
WORDS = st.text('ab.é"\\\n', max_size=5)
NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | WORDS | NUMBERS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)
HEADERS = st.dictionaries(WORDS, PLAIN, max_size=4)


@st.composite
def weights(draw: Any) -> Weights:
    kinds = draw(st.lists(st.sampled_from(["trainable", "statistic", "counter"]), max_size=4))
    shapes = [draw(st.lists(st.integers(0, 3), max_size=2)) for _ in kinds]
    layout = Layout.build(
        (f"entry {i}", shape, kind, "body")
        for i, (kind, shape) in enumerate(zip(kinds, shapes, strict=True))
    )
    values = draw(st.lists(NUMBERS, min_size=layout.size, max_size=layout.size))
    return Weights(layout, torch.tensor(values, dtype=torch.float32))


def example() -> tuple[dict[str, Any], dict[str, Weights]]:
    layout = Layout.build([("w", (3,), "trainable", "body"), ("n", (), "counter", "norm")])
    parts = {
        "global": Weights(layout, torch.tensor([1.5, -2.0, 3.25, 7.0])),
        "personal": Weights(layout, torch.tensor([0.0, 1.0, 2.0, 3.0])),
    }
    return {"round": 12, "site": "north"}, parts


@quickly
@given(HEADERS, st.dictionaries(WORDS, weights(), max_size=3))
def test_a_message_comes_back_as_it_was(header: dict[str, Any], parts: dict[str, Weights]):
    again, found = unpack(pack(header, parts))
    assert again == header
    assert list(found) == list(parts)
    for name, part in parts.items():
        assert found[name].layout == part.layout
        assert torch.equal(found[name].flat.view(torch.int32), part.flat.view(torch.int32))


def test_buffers_lie_aligned_and_are_not_copied():
    message = bytearray(pack(*example()))
    _, parts = unpack(message)
    start = parts["global"].flat.data_ptr()
    assert parts["personal"].flat.data_ptr() == start + 4 * 4
    assert (len(message) - 2 * 4 * 4) % 64 == 0
    message[-4:] = bytes(4)
    assert parts["personal"].flat[-1] == 0


def test_a_message_cut_anywhere_is_refused_by_name():
    message = pack(*example())
    for length in range(len(message)):
        with pytest.raises(StateError, match=r"north\.safetensors"):
            unpack(message[:length], "north.safetensors")
    with pytest.raises(StateError, match=r"north\.safetensors"):
        unpack(message + b"\0", "north.safetensors")


def test_a_flipped_bit_anywhere_is_refused_by_name():
    message = pack(*example())
    for place in range(len(message)):
        broken = bytearray(message)
        broken[place] ^= 1 << (place % 8)
        with pytest.raises(StateError, match=r"north\.safetensors"):
            unpack(broken, "north.safetensors")


@quickly
@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes):
    for message in (noise, bytes(8) + BEGINNING + noise):
        with pytest.raises(StateError, match="the upload"):
            unpack(message, "the upload")


def signed(text: bytes, body: bytes = b"", length: int | None = None) -> bytes:
    """A message with a right checksum around whatever somebody put into it."""
    size = LENGTH.pack(len(text) if length is None else length)
    rest = text[CHECKED - LENGTH.size :]
    return size + BEGINNING + checksum(size, rest, body) + rest + body


def made(tensors: Any = None, body: bytes = b"", **metadata: Any) -> bytes:
    """A message with such metadata, and such tensors in its listing."""
    known = {"checksum": "0" * DIGITS, "konsil": "{}", "layouts": "{}"} | metadata
    shown = {k: v for k, v in known.items() if v is not None}
    return signed(json.dumps({"__metadata__": shown, **(tensors or {})}).encode(), body)


def of(entry: Any, name: Any = "w") -> bytes:
    tensors = {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    return made(tensors, bytes(4), layouts=json.dumps({name: [entry]}))


GOOD = ["w", [1], "trainable", "body"]
DEEP = "[" * 10**5 + "]" * 10**5


def test_messages_made_by_hand_can_be_right():
    assert unpack(made()) == ({}, {})
    assert unpack(of(GOOD))[1]["w"].flat.tolist() == [0.0]


@pytest.mark.parametrize(
    "message",
    [
        signed(BEGINNING + b'00000000"'),
        signed(BEGINNING + b'00000000"}, \xff\xfe}'),
        signed(BEGINNING + b'00000000"}}' + b"x"),
        signed(b"", length=0),
        signed(b"", length=40),
        signed(BEGINNING + b'00000000"}}', length=2**63),
        made(konsil=None),
        made(konsil="no json"),
        made(konsil=3),
        made(layouts=None),
        made(layouts="3"),
        made(layouts="[]"),
        made(layouts='{"w": 3}'),
        made(body=b"more"),
        made({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
        of(GOOD, name="v"),
        of(["w", [1]]),
        of(["w", "x", "trainable", "body"]),
        of(["w", [2], "trainable", "body"]),
        of(["w", [10**12], "trainable", "body"]),
        of(["w", [-1], "trainable", "body"]),
        of([["w"], [1], "trainable", "body"]),
        of(["w", [1], "kind", "body"]),
        of(["w", [1], "trainable", []]),
        of(["w", [1.0], "trainable", "body"]),
        of(["w", [-1, -1], "trainable", "body"]),
        made({"w": {"dtype": "F16", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
        made(layouts='{"__metadata__": []}'),
        made(konsil=DEEP),
        made(layouts='{"w": ' + DEEP + "}"),
        signed(BEGINNING + b'00000000", "x": ' + DEEP.encode() + b"}}"),
        made(konsil="9" * 10**5),
    ],
)
def test_a_message_made_by_hand_is_refused_and_not_believed(message: bytes):
    with pytest.raises(StateError, match="the upload"):
        unpack(message, "the upload")


def test_terabytes_that_a_header_promises_are_not_made_room_for():
    size = 10**12
    layouts = json.dumps({"w": [["w", [size], "trainable", "body"]]})
    tensors = {"w": {"dtype": "F32", "shape": [size], "data_offsets": [0, 4 * size]}}
    with pytest.raises(StateError, match="do not fit"):
        unpack(made(tensors, layouts=layouts))


def test_a_part_cannot_have_the_metadatas_name():
    with pytest.raises(ValueError, match="__metadata__"):
        pack({}, {"__metadata__": example()[1]["global"]})


def test_any_reader_of_safetensors_opens_it(tmp_path: Path):
    header, parts = example()
    parts["empty"] = Weights.zeros(Layout.build([]))
    path = tmp_path / "state.safetensors"
    write_parts(path, header, parts)
    tensors = load_file(path)
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {
        name: part.flat.tolist() for name, part in parts.items()
    }
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    assert json.loads(metadata["konsil"]) == header
    assert Layout.from_json(json.loads(metadata["layouts"])["global"]) == parts["global"].layout
    assert pack(header, parts) == pack(header, parts)


# Files


def test_a_file_gives_back_what_was_written(tmp_path: Path):
    header, parts = example()
    path = tmp_path / "deep" / "state.safetensors"
    write_parts(path, header, parts, durable=True)
    again, found = read_parts(path)
    assert again == header
    assert all(found[name].equals(part) for name, part in parts.items())
    assert path.read_bytes() == pack(header, parts)


def test_a_file_that_is_not_there_or_damaged_is_refused_by_name(tmp_path: Path):
    path = tmp_path / "state.safetensors"
    with pytest.raises(StateError, match=r"state\.safetensors: cannot be read"):
        read_parts(path)
    path.write_bytes(b"")
    with pytest.raises(StateError, match=r"state\.safetensors: not a Konsil message"):
        read_parts(path)
    path.write_bytes(pack(*example())[:-1])
    with pytest.raises(StateError, match=r"state\.safetensors: damaged"):
        read_parts(path)


class Interrupted(Exception):
    """Stands for whatever may end a process in the middle of a write."""


@pytest.mark.parametrize(
    ("trouble", "seen"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), StateError),
        (OSError(errno.EIO, "Input/output error"), StateError),
        (Interrupted(), Interrupted),
    ],
)
def test_a_write_that_fails_in_the_middle_leaves_the_old_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trouble: Exception,
    seen: type[Exception],
):
    path = tmp_path / "state.safetensors"
    header, parts = example()
    write_parts(path, header, parts)
    before = path.read_bytes()
    whole = storage._pieces

    def half(*args: Any) -> Any:
        yield next(whole(*args))
        raise trouble

    monkeypatch.setattr(storage, "_pieces", half)
    with pytest.raises(seen) as caught:
        write_parts(path, {"round": 13}, parts)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["state.safetensors"]
    if seen is StateError:
        assert "state.safetensors" in str(caught.value)
        assert trouble.strerror in str(caught.value)
        assert "then go on with the run" in str(caught.value)


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path):
    full = Path("/dev/full")  # Linux: every write finds no room
    if not full.exists():
        pytest.skip("no /dev/full here")
    header, parts = example()
    path = tmp_path / "state.safetensors"
    part = path.with_name(f".state.safetensors.{os.getpid()}-{get_ident()}.part")
    part.symlink_to(full)
    with pytest.raises(StateError, match=r"state\.safetensors: cannot be written \(No space left"):
        write_parts(path, header, parts)
    assert not path.exists()


def test_a_folder_that_cannot_be_made_is_an_error_that_names_the_file(tmp_path: Path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StateError, match=r"file/state\.safetensors: cannot be written"):
        write_parts(tmp_path / "file" / "state.safetensors", *example())
