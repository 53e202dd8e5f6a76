"""The deadline of a round counts through all sessions."""

import pytest

from konsil.deploy import deadline
from konsil.deploy.deadline import RoundClock
from konsil.federation.messages import Request, RoundRequest


def question(number: int) -> Request:
    body = RoundRequest(validation=True, after=0)
    return Request("round", "fedsm/seed0", "north", number, "plan", body)


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(deadline.time, "time", lambda: now[0])
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
    (tmp_path / deadline.FILE).write_text(cut)
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
