"""A log that grows is read line by line, once; one that was replaced, from its beginning."""

import json
import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from konsil.observers.eventlog import EventLog
from konsil.observers.following import MARK, Following


def names(following: Following) -> list[str]:
    return [event["event"] for event in following.new()]


def append(path: Path, text: str | bytes) -> None:
    with open(path, "ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)


def line(name: str) -> str:
    return json.dumps({"event": name}) + "\n"


def test_only_what_is_new_and_only_whole_lines(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    log = Following(path)
    assert names(log) == []  # not there yet
    append(path, line("a") + line("b")[:9])
    assert names(log) == ["a"]
    assert names(log) == []
    append(path, line("b")[9:] + line("c"))
    assert names(log) == ["b", "c"]
    assert log.replaced == 0


def test_a_cut_line_that_a_resumed_run_drops(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    log = Following(path)
    append(path, line("a") + '{"event": "cu')
    assert names(log) == ["a"]
    writer = EventLog(path)
    writer({"event": "b"})
    assert names(log) == ["b"]
    writer.close()
    assert log.replaced == 0


def test_what_is_no_event_is_passed_over(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    append(path, b"\0\0\n\xff\n[1]\n{}\n" + b'{"event": 3}\n\n' + line("a").encode())
    assert names(Following(path)) == ["a"]


def test_a_shorter_log_is_another(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    log = Following(path)
    append(path, line("a") + line("b"))
    assert names(log) == ["a", "b"]
    path.write_text(line("c"))
    assert (names(log), log.replaced) == (["c"], 1)


def test_a_longer_log_in_its_place_is_another(tmp_path: Path):
    """By its bytes, if the system gave it the same number."""
    path = tmp_path / "events.jsonl"
    log = Following(path)
    append(path, line("a"))
    assert names(log) == ["a"]
    path.write_text(line("x") + line("y"))  # the same file, written anew
    assert (names(log), log.replaced) == (["x", "y"], 1)
    other = tmp_path / "other"
    other.write_text(line("x") + line("y") + line("z"))
    os.replace(other, path)  # another file that begins alike
    assert (names(log), log.replaced) == (["x", "y", "z"], 2)


def test_a_log_that_goes_away_and_comes_back(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    log = Following(path)
    append(path, line("a"))
    assert names(log) == ["a"]
    path.unlink()
    assert names(log) == []
    append(path, line("b") * 2)
    assert (names(log), log.replaced) == (["b", "b"], 1)


@given(st.lists(st.integers(1, 3 * MARK), max_size=30))
def test_however_it_is_cut_into_pieces(sizes: list[int]):
    from tempfile import TemporaryDirectory

    text = "".join(line(f"e{n}ö") for n in range(40)).encode()
    with TemporaryDirectory() as folder:
        path, heard, place = Path(folder) / "events.jsonl", [], 0
        log = Following(path)
        for size in [*sizes, len(text)]:
            append(path, text[place : place + size])
            place += size
            heard += names(log)
        assert heard == [f"e{n}ö" for n in range(40)]
        assert log.replaced == 0


def test_a_long_log_is_not_read_again(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    append(path, line("a") * 50_000)
    log = Following(path)
    assert len(log.new()) == 50_000
    read = []
    usual = Following._events

    class Counted(Following):
        def _events(self, file):
            read.append(file.tell())
            yield from usual(self, file)

    log.__class__ = Counted
    append(path, line("b"))
    assert names(log) == ["b"]
    assert read == [path.stat().st_size - len(line("b"))]
