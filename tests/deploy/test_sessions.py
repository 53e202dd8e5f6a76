"""What a session leaves, when one begins, and what follows it: decisions, without FLARE."""

from __future__ import annotations

import pytest

from konsil.deploy import sessions
from konsil.deploy.sessions import (
    ABANDONED,
    ABORTED,
    PATIENCE,
    PAUSE,
    STARTED,
    STRIKES,
    Note,
    Outcome,
    RoundClock,
    after,
    ended_for,
    may_begin,
    time_to_start,
)
from konsil.federation.messages import Request, RoundRequest

ROSTER = ["north", "south"]
DIED = "FINISHED:EXECUTION_EXCEPTION"
DONE = "FINISHED:COMPLETED"


def begin(connected, note=Note(), enrolled=True, waited=0.0):
    """At 1000 + `waited`, for a session that was submitted at 1000."""
    return may_begin(ROSTER, connected, note, 1000.0, enrolled, 1000.0 + waited)


def test_a_session_begins_with_everybody_or_after_some_patience():
    both, one = {"north": 1.0, "south": 2.0}, {"north": 1.0, "other": 1.0}
    assert begin(both)
    assert not begin(one)
    assert begin(one, waited=PATIENCE + 1)
    assert not begin({}, waited=PATIENCE + 1)
    assert not begin({"other": 1.0}, waited=PATIENCE + 1)
    assert not begin(one, enrolled=False, waited=10**6)  # the first one needs all of them


def test_a_pause_is_cut_short_by_a_site_that_comes_back():
    note = Note(not_before=1600.0)
    assert not begin({"north": 1.0, "south": 2.0}, note, waited=599)
    assert begin({"north": 1.0, "south": 2.0}, note, waited=601)
    assert begin({"north": 1.0, "south": 1003.0}, note, waited=4)


def follow(status, note=Note(), outcome=Outcome(), events=0):
    return after(status, note, outcome, events, now=1000.0)


@pytest.mark.parametrize("status", [DONE, DIED, ABORTED, ABANDONED])
def test_a_run_that_finished_or_failed_is_over_however_its_session_ended(status):
    assert follow(status, outcome=Outcome("finished")).state == "finished"
    failed = follow(status, outcome=Outcome("failed", "no such method"))
    assert (failed.state, failed.reason) == ("failed", "no such method")


def test_what_a_person_aborted_is_stopped_and_what_the_supervisor_ended_goes_on():
    assert follow(ABORTED).state == "stopped"
    next_one = follow(ABORTED, Note(session=3, ended="south is back"))
    assert (next_one.state, next_one.session, next_one.reason) == ("waiting", 4, "south is back")
    assert next_one.ended == ""  # the next one can be stopped by a person again
    assert next_one.not_before == 0.0


def test_a_site_that_cannot_take_part_holds_up_the_others_less_and_less():
    note, times = Note(), []
    for _ in range(9):
        times.append(time_to_start(note))
        note = follow(ABORTED, ended_for("south", False, note))
        assert note.state == "waiting"
        assert "south is connected and did not start" in note.reason
    assert times[:3] == [STARTED[0], 2 * STARTED[0], 4 * STARTED[0]]
    assert times[-1] == STARTED[1]
    back = follow(ABORTED, ended_for("south", True, note))  # it was started again
    assert time_to_start(back) == STARTED[0]


def test_a_server_that_was_killed_goes_on_at_once():
    note = Note(session=1, strikes=3)
    for session in range(2, 40):
        note = follow(ABANDONED, note)
        assert (note.state, note.session, note.not_before) == ("waiting", session, 0.0)


def test_sites_that_are_missing_are_asked_again_later_and_later():
    note, pauses = Note(), []
    for _ in range(12):
        note = follow(DONE, note, Outcome("waiting", "2 of 3 sites answered"))
        assert (note.state, note.reason) == ("waiting", "2 of 3 sites answered")
        pauses.append(note.not_before - 1000.0)
    assert pauses[:3] == [PAUSE[0], 2 * PAUSE[0], 4 * PAUSE[0]]
    assert pauses[-1] == PAUSE[1]


def test_sessions_that_keep_dying_are_given_up_unless_they_get_somewhere():
    note = Note(events=10)
    for strike in range(1, STRIKES):
        note = follow(DIED, note, events=10)
        assert (note.state, note.strikes) == ("waiting", strike)
    assert follow(DIED, note, events=10).state == "failed"
    assert "see the server's log" in follow(DIED, note, events=10).reason
    further = follow(DIED, note, events=11)
    assert (further.state, further.strikes, further.events) == ("waiting", 1, 11)


def test_a_note_survives_in_a_jobs_meta_data():
    note = Note("running", "because", 7, 1.5, 2, 3, 4, "south is back")
    assert Note.of({"name": "x", **note.as_meta()}) == note
    assert Note.of({"name": "x"}) == Note()


def test_an_outcome_is_forgotten_when_a_session_begins(tmp_path):
    assert Outcome.read(tmp_path) == Outcome()
    Outcome("waiting", "why").write(tmp_path)
    assert Outcome.read(tmp_path) == Outcome("waiting", "why")
    Outcome.forget(tmp_path)
    Outcome.forget(tmp_path)
    assert Outcome.read(tmp_path).state == ""


# --- the deadline of a round counts through all sessions -----------------------------------------


def question(number: int) -> Request:
    body = RoundRequest(validation=True, after=0)
    return Request("round", "fedsm/seed0", "north", number, "plan", body)


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(sessions.time, "time", lambda: now[0])
    return now


def test_it_counts_from_the_first_time_a_round_is_asked_for(tmp_path, clock):
    assert RoundClock(tmp_path).left(question(1), 60.0) == 60.0
    clock[0] += 10
    assert RoundClock(tmp_path).left(question(1), 60.0) == 50.0  # another session
    assert RoundClock(tmp_path).left(question(2), 60.0) == 60.0


def test_a_session_has_half_of_it_at_least(tmp_path, clock):
    """Answers that are ready must be sent again, and nobody could while the server was away."""
    RoundClock(tmp_path).left(question(1), 60.0)
    clock[0] += 3600
    assert RoundClock(tmp_path).left(question(1), 60.0) == 30.0


def test_session_after_session_the_round_goes_on_some_day(tmp_path, clock):
    """A site that is there and cannot take part ends every session: it must not hold up all."""
    left = []
    for _ in range(4):
        left.append(RoundClock(tmp_path).left(question(1), 3600.0))
        clock[0] += 2000
    assert left == [3600.0, 1800.0, 60.0, 60.0]


@pytest.mark.parametrize("cut", ["", "{", "[]", '{"question": 1}'])
def test_a_note_that_cannot_be_read_is_none(tmp_path, clock, cut):
    (tmp_path / RoundClock.FILE).write_text(cut)
    assert RoundClock(tmp_path).left(question(1), 60.0) == 60.0


def test_a_clock_that_was_set_back_gives_no_more_than_the_deadline(tmp_path, clock):
    RoundClock(tmp_path).left(question(1), 60.0)
    clock[0] -= 3600
    assert RoundClock(tmp_path).left(question(1), 60.0) == 60.0


def test_a_question_that_was_given_up_begins_anew(tmp_path, clock):
    round_clock = RoundClock(tmp_path)
    round_clock.left(question(1), 60.0)
    clock[0] += 40
    round_clock.forget()
    assert round_clock.left(question(1), 60.0) == 60.0


def test_no_deadline_is_no_deadline(tmp_path):
    assert RoundClock(tmp_path).left(question(1), None) is None
    assert not any(tmp_path.iterdir())
