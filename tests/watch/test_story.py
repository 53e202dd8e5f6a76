"""What events tell, worked out by hand: two jobs of four rounds at two sites."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from konsil.observers import BY_PLAN
from konsil.watch.story import TROUBLES, Story

PLAN: dict[str, Any] = {
    "hash": "0" * 16,
    "sites": ["north", "<b>south</b>"],
    "experiment": {
        "name": "tiny & small",
        "methods": [{"name": "fedavg", "label": "fedavg"}, {"name": "fedsm", "label": "<i>"}],
        "seeds": [0],
        "rounds": 4,
    },
}
NORTH, SOUTH = PLAN["sites"]
FIRST, SECOND = "fedavg/seed0", "<i>/seed0"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
ZERO = BEGIN.timestamp()


def at(moment: float, event: str, /, **facts: Any) -> dict[str, Any]:
    return {"time": (BEGIN + timedelta(seconds=moment)).isoformat(), "event": event, **facts}


def told(*events: dict[str, Any]) -> Story:
    story = Story(PLAN)
    for event in events:
        story.tell(event)
    return story


def a_round(number: int, begin: float, end: float, job: str = FIRST, **scores: float) -> list[Any]:
    """A round in which both sites answer, and the last means are validated."""
    about = {"job": job, "round": number}
    means = scores or {"global": number / 10}
    by_site = {NORTH: {"images": 3, **means}, SOUTH: {"images": 5, **means}}
    return [
        at(begin, "round_started", **about),
        at(end, "site_done", **about, site=NORTH, down=8, up=4),
        at(end, "site_done", **about, site=SOUTH, down=8, up=4),
        at(end, "validated", job=job, round=number - 1, means=means, sites=by_site),
        at(end, "round_done", **about, sites=[NORTH, SOUTH]),
    ]


START = [at(0, "run_started", plan="0"), at(0, "job_started", job=FIRST, rounds=4, done=0)]
FOUR = [event for n in range(4) for event in a_round(n + 1, 10 * n, 10 * n + 10)]
TEST = {"global": {"dice": {NORTH: 0.2, SOUTH: 0.4, "client_average": 0.3}, "hd95": {NORTH: 9.0}}}
DONE = [
    at(40, "examining", job=FIRST, checkpoint="best"),
    at(43, "examining", job=FIRST, checkpoint="last"),
    at(46, "job_done", job=FIRST, seconds=46.0, score={"global": 0.5}, metric="dice", test=TEST),
]


def log_of(time: str) -> str:
    """A log with troubles in it, as text."""
    reason = "<script>alert(1)</script> & [brackets]"
    bad = [
        at(47, "job_started", job=SECOND, rounds=4, done=0),
        at(47, "round_started", job=SECOND, round=1),
        at(48, "site_missing", job=SECOND, round=1, site=SOUTH, reason=reason),
        at(49, "run_stopped", reason=reason),
    ]
    events = [e | {"time": time} for e in [*START, *FOUR, *DONE, *bad]]
    return "".join(json.dumps(event) + "\n" for event in events)


def test_before_the_first_event_there_is_the_plan():
    story = told()
    assert (story.state, list(story.jobs), story.number) == ("not begun", [FIRST, SECOND], 0)
    assert (story.left(ZERO), story.left_of_job(ZERO), story.silent(ZERO)) == (None, None, 0.0)
    assert [job.state for job in story.jobs.values()] == ["waiting", "waiting"]


def test_a_round_and_its_sites():
    story = told(*START, *a_round(1, 0, 10))
    job = story.jobs[FIRST]
    assert (job.state, job.round, job.rounds, story.number) == ("training", 1, 4, 1)
    assert job.curves == {"global": {0: 0.1}}
    assert [(s.now, s.last, s.missed, s.scores) for s in job.sites.values()] == [
        ("answered", 1, 0, {"global": 0.1})
    ] * 2
    story.tell(at(11, "round_started", job=FIRST, round=2))
    assert [s.now for s in job.sites.values()] == ["at work", "at work"]


def test_who_is_missing_and_why():
    story = told(
        *START,
        at(0, "round_started", job=FIRST, round=1),
        at(1, "site_done", job=FIRST, round=1, site=NORTH),
        at(2, "site_missing", job=FIRST, round=1, site=SOUTH, reason="exit code 9"),
        at(3, "round_done", job=FIRST, round=1, sites=[NORTH]),
    )
    south = story.jobs[FIRST].sites[SOUTH]
    assert (south.now, south.reason, south.last, south.missed) == ("missing", "exit code 9", 0, 1)
    (trouble,) = story.troubles
    assert (trouble.time - ZERO, trouble.kind, trouble.site, trouble.round) == (
        2,
        "missing",
        SOUTH,
        1,
    )
    story.tell(at(4, "round_started", job=FIRST, round=2))
    assert (south.now, south.reason) == ("at work", "")
    story.tell(at(5, "upload_refused", job=FIRST, round=2, site=SOUTH, reason="not finite"))
    story.tell(at(6, "round_done", job=FIRST, round=2, sites=[NORTH]))
    assert (south.now, south.missed, len(story.troubles)) == ("refused", 2, 2)


def test_who_is_not_asked_by_the_plan_is_no_trouble():
    missing = {"job": FIRST, "round": 1, "site": SOUTH, "reason": BY_PLAN}
    story = told(
        *START, at(0, "round_started", job=FIRST, round=1), at(0, "site_missing", **missing)
    )
    assert story.troubles == []
    assert story.jobs[FIRST].sites[SOUTH].now == "missing"


def test_pooled_training_is_at_one_place():
    story = told(
        *START,
        at(0, "round_started", job=FIRST, round=1),
        at(1, "site_done", job=FIRST, round=1, site="all-sites"),
        at(1, "round_done", job=FIRST, round=1, sites=["all-sites"]),
    )
    assert [(n, s.missed) for n, s in story.jobs[FIRST].sites.items()] == [("all-sites", 0)]


def test_a_job_that_is_done():
    story = told(*START, *FOUR, *DONE)
    job = story.jobs[FIRST]
    assert (job.state, job.seconds, job.score, job.open) == ("done", 46.0, {"global": 0.5}, False)
    assert job.averages() == {"global": 0.3}
    assert job.averages(NORTH) == {"global": 0.2}
    assert job.examining == 6  # from the first word of it to the end


def test_time_left_by_hand():
    """Three rounds of 10, 10 and 40 s: a round takes 10; one more began 4 s ago."""
    story = told(*START, *a_round(1, 0, 10), *a_round(2, 10, 20), *a_round(3, 20, 60))
    assert story.left_of_job(ZERO + 60) == 10
    assert story.left(ZERO + 60) == 10 + 4 * 10  # the other job is taken to be as fast
    story.tell(at(60, "round_started", job=FIRST, round=4))
    assert story.left_of_job(ZERO + 64) == 6
    assert story.left_of_job(ZERO + 200) == 0  # it takes longer than usual: not less than nothing


def test_time_left_with_evaluation():
    """The first job's rounds took 10 s and its evaluation 6; the second's rounds take 30."""
    second = at(46, "job_started", job=SECOND, rounds=4, done=0)
    story = told(*START, *FOUR, *DONE, second)
    assert story.left(ZERO + 46) == 4 * 10 + 6
    assert story.left_of_job(ZERO + 46) is None  # nothing is known of its own rounds
    for event in a_round(1, 46, 76, SECOND):
        story.tell(event)
    assert story.left(ZERO + 76) == story.left_of_job(ZERO + 76) == 3 * 30 + 6
    story.tell(at(80, "examining", job=SECOND, checkpoint="best"))
    assert story.left_of_job(ZERO + 82) == 4
    assert story.left(ZERO + 82) == 4


def test_time_left_takes_a_methods_other_seed_first():
    plan = PLAN | {"experiment": PLAN["experiment"] | {"seeds": [0, 1]}}
    story = Story(plan)
    second = at(46, "job_started", job="fedavg/seed1", rounds=4, done=0)
    for event in [*START, *FOUR, *DONE, second, *a_round(1, 50, 52, "fedavg/seed1")]:
        story.tell(event)
    # fedavg's seed 1 takes 2 s a round; of <i> nothing is known: the median of 10 and 2
    assert story.left_of_job(ZERO + 52) == 3 * 2 + 6
    assert story.left(ZERO + 52) == (3 * 2 + 6) + 2 * (4 * 6 + 6)


def test_a_job_to_come_is_as_fast_as_its_method_was_with_another_seed():
    """fedavg took 10 s a round and 6 to evaluate, <i> takes 1 s; its second seed is to come."""
    plan = PLAN | {"experiment": PLAN["experiment"] | {"seeds": [0, 1]}}
    story = Story(plan)
    for event in [*START, *FOUR, *DONE]:
        story.tell(event)
    story.tell(at(46, "job_started", job=SECOND, rounds=4, done=0))
    for event in a_round(4, 46, 47, SECOND):
        story.tell(event)
    assert story.left_of_job(ZERO + 47) == 6
    assert story.left(ZERO + 47) == 6 + (4 * 1 + 6)


def test_a_run_that_goes_on_counts_a_round_once():
    """Killed after the validation of round 1, before the record: both are told again."""
    story = told(*START, *a_round(1, 0, 10), *a_round(2, 10, 20)[:-1])
    assert story.jobs[FIRST].curves == {"global": {0: 0.1, 1: 0.2}}
    story.tell(at(100, "run_started", plan="0"))
    assert (story.current, story.jobs[FIRST].state) == (None, "waiting")
    story.tell(at(100, "job_started", job=FIRST, rounds=4, done=1))
    for event in a_round(2, 100, 110):
        story.tell(event)
    job = story.jobs[FIRST]
    assert (job.round, job.curves) == (2, {"global": {0: 0.1, 1: 0.2}})
    assert job.durations == [10, 10]  # and not the time in which nobody worked


def test_a_result_without_a_word_is_a_result():
    """Killed between a job's result and its event: what goes on passes over the job."""
    story = told(*START, *FOUR, at(50, "run_started"))
    story.tell(at(50, "job_started", job=SECOND, rounds=4, done=0))
    assert [job.state for job in story.jobs.values()] == ["done", "training"]
    assert story.left(ZERO + 50) == 40
    story.tell(at(60, "run_done"))
    assert story.state == "finished"
    assert not any(job.open for job in story.jobs.values())


def test_a_run_that_stops_says_why_and_goes_on():
    story = told(*START, *a_round(1, 0, 10), at(11, "run_stopped", reason="too few sites"))
    assert (story.state, story.reason, story.jobs[FIRST].state) == (
        "stopped",
        "too few sites",
        "stopped",
    )
    assert story.left(ZERO + 11) is None
    assert story.troubles[-1].kind == "stopped"
    story.tell(at(20, "run_started"))
    assert (story.state, story.reason) == ("running", "")


def test_a_job_that_failed_is_no_work_any_more():
    story = told(*START, *a_round(1, 0, 10), at(11, "job_failed", job=FIRST, reason="not finite"))
    assert story.jobs[FIRST].reason == "not finite"
    assert story.left(ZERO + 11) == 4 * 10


@pytest.mark.parametrize(("pace", "silent"), [(1, 61), (10, 101)])
def test_silence_is_noticed_when_it_is_longer_than_ten_rounds_and_a_minute(pace: int, silent: int):
    story = told(*START, *a_round(1, 0, pace))
    assert story.silent(ZERO + pace + silent - 1) == 0
    assert story.silent(ZERO + pace + silent) == silent
    story.tell(at(pace, "run_done"))
    assert story.silent(ZERO + 10**6) == 0


def test_troubles_do_not_grow_for_ever_and_the_newest_stay():
    story = told(*START)
    for number in range(TROUBLES + 5):
        facts = {"job": FIRST, "round": number, "site": NORTH, "reason": "away"}
        story.tell(at(number, "site_missing", **facts))
    assert [one.round for one in story.troubles] == list(range(5, TROUBLES + 5))


def test_events_it_does_not_know_and_jobs_the_plan_does_not_name():
    story = Story()
    story.tell(at(0, "new_in_version_9"))
    story.tell({"event": "round_started", "job": "x/seed0", "round": 1})  # without a time
    story.tell(
        at(5, "validated", job="x/seed0", round=0, means={"global": 0.5})
    )  # of an old version
    assert story.jobs["x/seed0"].curves == {"global": {0: 0.5}}
    assert story.last == ZERO + 5
