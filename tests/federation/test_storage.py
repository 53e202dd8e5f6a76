import errno
import json
import os
import zlib
from pathlib import Path
from threading import get_ident
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from konsil.errors import StateError
from konsil.federation import storage
from konsil.federation.storage import MAGIC, PREFIX, pack, read_parts, unpack, write_parts
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
        with pytest.raises(StateError, match=r"north\.knsl"):
            unpack(message[:length], "north.knsl")
    with pytest.raises(StateError, match=r"north\.knsl"):
        unpack(message + b"\0", "north.knsl")


def test_a_flipped_bit_anywhere_is_refused_by_name():
    message = pack(*example())
    for place in range(len(message)):
        broken = bytearray(message)
        broken[place] ^= 1 << (place % 8)
        with pytest.raises(StateError, match=r"north\.knsl"):
            unpack(broken, "north.knsl")


@quickly
@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes):
    for message in (noise, MAGIC + noise):
        with pytest.raises(StateError, match="the upload"):
            unpack(message, "the upload")


def signed(content: Any, body: bytes = b"") -> bytes:
    """A message with a right checksum around whatever somebody put into it."""
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return PREFIX.pack(MAGIC, len(text), zlib.crc32(text + body)) + text + body


@pytest.mark.parametrize(
    "content",
    [
        b"no json",
        b"\xff\xfe",
        [],
        3,
        {"header": {}},
        {"parts": []},
        {"header": {}, "parts": 3},
        {"header": {}, "parts": [{"name": "w"}]},
        {"header": {}, "parts": [{"name": "w", "layout": [["w", [1]]]}]},
        {"header": {}, "parts": [{"name": "w", "layout": [["w", "x", "trainable", "body"]]}]},
        {"header": {}, "parts": [{"name": "w", "layout": [["w", [1], "trainable", "body"]]}]},
        {"header": {}, "parts": [{"name": "w", "layout": [["w", [-1], "trainable", "body"]]}]},
        {"header": {}, "parts": [{"name": 3, "layout": []}]},
        {"header": {}, "parts": [{"name": "w", "layout": [[["w"], [0], "trainable", "body"]]}]},
        {"header": {}, "parts": [{"name": "w", "layout": [["w", [0], "kind", "body"]]}]},
        {"header": {}, "parts": [{"name": "w", "layout": [["w", [0], "trainable", []]]}]},
        {"header": {}, "parts": [{"name": "w", "layout": [["w", [0.0], "trainable", "body"]]}]},
        {"header": {}, "parts": [{"name": "w", "layout": [["w", [-2, -0], "trainable", "body"]]}]},
        b'{"header": ' + b"[" * 10**5 + b"]" * 10**5 + b', "parts": []}',
        b'{"header": ' + b"9" * 10**5 + b', "parts": []}',
    ],
)
def test_a_message_made_by_hand_is_refused_and_not_believed(content: Any):
    with pytest.raises(StateError, match="the upload"):
        unpack(signed(content), "the upload")


# Files


def test_a_file_gives_back_what_was_written(tmp_path: Path):
    header, parts = example()
    path = tmp_path / "deep" / "state.knsl"
    write_parts(path, header, parts, durable=True)
    again, found = read_parts(path)
    assert again == header
    assert all(found[name].equals(part) for name, part in parts.items())
    assert path.read_bytes() == pack(header, parts)


def test_a_file_that_is_not_there_or_damaged_is_refused_by_name(tmp_path: Path):
    path = tmp_path / "state.knsl"
    with pytest.raises(StateError, match=r"state\.knsl: cannot be read"):
        read_parts(path)
    path.write_bytes(b"")
    with pytest.raises(StateError, match=r"state\.knsl: not a Konsil message"):
        read_parts(path)
    path.write_bytes(pack(*example())[:-1])
    with pytest.raises(StateError, match=r"state\.knsl: damaged"):
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
    path = tmp_path / "state.knsl"
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
    assert os.listdir(tmp_path) == ["state.knsl"]
    if seen is StateError:
        assert "state.knsl" in str(caught.value)
        assert trouble.strerror in str(caught.value)
        assert "then go on with the run" in str(caught.value)


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path):
    full = Path("/dev/full")  # Linux: every write finds no room
    if not full.exists():
        pytest.skip("no /dev/full here")
    header, parts = example()
    path = tmp_path / "state.knsl"
    part = path.with_name(f".state.knsl.{os.getpid()}-{get_ident()}.part")
    part.symlink_to(full)
    with pytest.raises(StateError, match=r"state\.knsl: cannot be written \(No space left"):
        write_parts(path, header, parts)
    assert not path.exists()


def test_a_folder_that_cannot_be_made_is_an_error_that_names_the_file(tmp_path: Path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StateError, match=r"file/state\.knsl: cannot be written"):
        write_parts(tmp_path / "file" / "state.knsl", *example())
