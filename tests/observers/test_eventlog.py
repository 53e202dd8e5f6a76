import json
from datetime import datetime
from pathlib import Path

import pytest

from konsil.observers.eventlog import EventLog


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_event_is_there_at_once_with_its_time(tmp_path: Path):
    path = tmp_path / "run" / "events.jsonl"
    log = EventLog(path)
    log({"event": "round_done", "round": 1, "sites": ["Süd"]})
    (found,) = lines(path)  # before it is closed: a kill loses nothing
    assert datetime.fromisoformat(str(found.pop("time"))).tzinfo is not None
    assert found == {"event": "round_done", "round": 1, "sites": ["Süd"]}
    log.close()


@pytest.mark.parametrize("cut", ['{"event": "rou', "\x00", "{}"])
def test_a_line_cut_short_is_dropped_and_the_log_goes_on(tmp_path: Path, cut: str):
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "a"}\n{"event": "b"}\n' + cut)
    log = EventLog(path)
    log({"event": "c"})
    log.close()
    assert [line["event"] for line in lines(path)] == ["a", "b", "c"]


def test_a_whole_log_is_left_as_it_is(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "a"}\n')
    EventLog(path).close()
    assert path.read_text() == '{"event": "a"}\n'
    path.write_text("half")
    EventLog(path).close()
    assert path.read_text() == ""
