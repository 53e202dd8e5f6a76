import io
from typing import Any

from rich.console import Console

from konsil.observers.progress import ProgressBar


def seen(*events: dict[str, Any], terminal: bool = False) -> str:
    screen = io.StringIO()
    progress = ProgressBar(Console(file=screen, force_terminal=terminal, width=100))
    progress.start()
    for event in events:
        progress(event)
    progress.close()
    return screen.getvalue()


START = {"event": "job_started", "job": "fedsm/seed0", "rounds": 20, "done": 0}


def rounds(first: int, last: int) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for number in range(first, last + 1):
        means = {"global": 0.5, "personal": 0.75}
        events.append({"event": "round_started", "job": "fedsm/seed0", "round": number})
        events.append({"event": "site_done", "round": number, "site": "north"})
        events.append({"event": "validated", "round": number - 1, "means": means})
        events.append({"event": "round_done", "round": number, "sites": ["north"]})
    return events


def test_without_a_terminal_every_tenth_of_a_job_is_one_line():
    lines = seen(START, *rounds(1, 20)).splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("fedsm/seed0: round 2/20, about ")
    assert lines[0].endswith("s left; validation: global 0.500  personal 0.750")
    assert "round 20/20" in lines[-1]


def test_a_short_job_has_a_line_a_round():
    lines = seen(START | {"rounds": 3}, *rounds(1, 3)).splitlines()
    assert ["round 1/3" in lines[0], "round 2/3" in lines[1], "round 3/3" in lines[2]] == [True] * 3


def test_a_resumed_job_counts_from_where_it_stopped():
    lines = seen(START | {"done": 12}, *rounds(13, 16)).splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "fedsm/seed0: round 14/20",
        "fedsm/seed0: round 16/20",
    ]


def test_a_missing_site_and_a_refused_upload_are_named():
    text = seen(
        START,
        {"event": "site_missing", "round": 3, "site": "south", "reason": "exit code [9/10] gone"},
        {"event": "upload_refused", "round": 3, "site": "west", "reason": "site west: parts ['a']"},
    )
    assert "fedsm/seed0, round 3: south is missing: exit code [9/10] gone" in text
    assert "site west: parts ['a']" in text


def test_what_a_person_reads_is_printed_as_it_is():
    """Reasons hold whatever an error said: brackets in it are no markup."""
    reason = "[/nowhere] [red]parts ['selector'] in folder [a]"
    events = [
        {"event": "site_missing", "round": 1, "site": "south", "reason": reason},
        {"event": "upload_refused", "round": 1, "site": "south", "reason": reason},
    ]
    assert seen(START, *events).count(reason) == 2


def test_a_job_that_is_done_says_how_well():
    event = {"event": "job_done", "job": "fedsm/seed0", "seconds": 12.3, "score": {"super": 0.9}}
    assert "fedsm/seed0: done in 12 s; validation super 0.900" in seen(START, event)


def test_on_a_terminal_there_are_bars_and_no_lines():
    text = seen(START, *rounds(1, 20), {"event": "examining", "checkpoint": "best"}, terminal=True)
    assert "about" not in text
    assert "fedsm/seed0" in text
    assert "20/20" in text


def test_events_it_does_not_know_are_no_trouble():
    assert seen({"event": "run_started", "plan": "abc"}, {"event": "new_in_version_9"}) == ""
