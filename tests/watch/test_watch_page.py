"""What the page and the terminal say of runs that wait, go on, are stuck, over, or broken."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from konsil.watch import page
from konsil.watch.page import PARTS, lines, parts, whole_page
from konsil.watch.run import Watched
from tests.watch.test_story import BEGIN, DONE, FIRST, FOUR, NORTH, PLAN, SOUTH, START, ZERO

from tests.watch.test_story import a_round, at, log_of  # isort: skip


def write(folder: Path, *events: Mapping[str, Any]) -> Watched:
    folder.mkdir(exist_ok=True)
    (folder / "plan.yaml").write_text(yaml.safe_dump(PLAN))
    text = "".join(json.dumps(event) + "\n" for event in events)
    (folder / "events.jsonl").write_text(text)
    watched = Watched(folder)
    watched.look()
    return watched


def html(watched: Watched, now: float = ZERO + 60) -> str:
    return "\n".join(part.html for part in parts(watched, now).values())


def test_an_empty_folder_is_shown_and_what_comes_into_it(tmp_path: Path):
    watched = Watched(tmp_path)
    watched.look()
    assert "Not begun" in html(watched)
    (tmp_path / "plan.yaml").write_text("sites: [a")  # being copied
    watched.look()
    assert "Not begun" in html(watched)
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(PLAN))
    watched.look()
    assert "tiny &amp; small" in html(watched)
    assert FIRST in html(watched)
    (tmp_path / "events.jsonl").write_text(log_of(BEGIN.isoformat()))
    watched.look()
    assert "Stopped: job 2 of 2" in html(watched)


def test_what_is_going_on_is_said_in_a_sentence(tmp_path: Path):
    watched = write(tmp_path, *START, *a_round(1, 0, 10))
    said = list(lines(watched, ZERO + 10))
    assert said[0] == f"tiny & small: Running: job 1 of 2, {FIRST}, round 1 of 4"
    assert said[1] == "Left: about 30 s of this job, about 1 min of the run."
    assert said[2] == f"  {FIRST}: training, round 1 of 4; validation global 0.100"


def test_a_run_that_has_long_been_silent(tmp_path: Path):
    watched = write(tmp_path, *START, *a_round(1, 0, 10))
    assert "Nothing new for 10 min" in html(watched, ZERO + 610)
    assert "Nothing new" not in html(watched, ZERO + 100)


def test_names_and_reasons_are_no_markup(tmp_path: Path):
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(PLAN))
    (tmp_path / "events.jsonl").write_text(log_of(BEGIN.isoformat()))
    watched = Watched(tmp_path)
    watched.look()
    text = html(watched)
    assert "<script>" not in text
    assert "<b>" not in text
    assert "<i>" not in text
    assert "&lt;b&gt;south&lt;/b&gt; is missing:" in text
    shown = whole_page(parts(watched, ZERO), "<script>", {"<i>": "running", "b": "stopped"}, "<i>")
    assert "<i>" not in shown
    assert shown.count("<script") == 1  # our own


def test_a_finished_run_has_its_scores(tmp_path: Path):
    watched = write(tmp_path, *START, *FOUR, *DONE, at(47, "run_done"))
    assert "Finished: 2 of 2 jobs done" in html(watched)
    assert "global 0.500" in html(watched)
    assert "global 0.300" in html(watched)
    assert "test global 0.300" in "\n".join(lines(watched, ZERO + 50))
    assert f"{NORTH}</td>" in html(watched)


@pytest.mark.parametrize(
    ("state", "words"), [("waiting", "Waiting for sites: job 1"), ("failed", "Failed: job 1")]
)
def test_how_the_last_session_of_a_deployed_run_ended(tmp_path: Path, state: str, words: str):
    watched = write(tmp_path, *START, *a_round(1, 0, 10))
    outcome = {"state": state, "reason": "these sites did not agree:\n  south: <no>"}
    (tmp_path / "outcome.json").write_text(json.dumps(outcome))
    watched.look()
    assert words in html(watched)
    assert "  south: &lt;no&gt;" in html(watched)
    assert "Left" not in html(watched)
    (tmp_path / "outcome.json").unlink()  # another session is at work
    watched.look()
    assert "Running: job 1" in html(watched)


def test_another_run_in_the_same_folder_is_noticed(tmp_path: Path):
    watched = write(tmp_path, *START, *FOUR, *DONE)
    other = PLAN | {"experiment": PLAN["experiment"] | {"name": "other", "rounds": 9}}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(other))
    (tmp_path / "events.jsonl").write_text(json.dumps(at(100, "run_started")) + "\n")
    watched.look()
    assert watched.title == "other"
    assert {job.rounds for job in watched.story.jobs.values()} == {9}
    assert watched.story.jobs[FIRST].curves == {}


def test_only_what_has_changed_has_another_mark(tmp_path: Path):
    watched = write(tmp_path, *START, *a_round(1, 0, 10))
    before = parts(watched, ZERO + 10)
    assert tuple(before) == PARTS
    assert before == parts(watched, ZERO + 10)
    with open(tmp_path / "events.jsonl", "a") as log:
        missing = {"job": FIRST, "round": 2, "site": SOUTH, "reason": "gone"}
        log.write(json.dumps(at(11, "site_missing", **missing)) + "\n")
    watched.look()
    after = parts(watched, ZERO + 11)
    changed = {name for name in PARTS if before[name].mark != after[name].mark}
    assert {"sites", "troubles"} <= changed
    assert not {"curves", "jobs"} & changed


def test_nothing_is_written_and_no_lock_is_taken(tmp_path: Path):
    watched = write(tmp_path, *START, *FOUR)
    names = sorted(os.listdir(tmp_path))
    html(watched)
    assert sorted(os.listdir(tmp_path)) == names == ["events.jsonl", "plan.yaml"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (3, "a few seconds"), (7, "about 5 s"), (54, "about 55 s"), (55, "about 1 min"),
        (150, "about 2 min"), (5399, "about 90 min"), (5400, "about 1.5 h"),
    ],
)  # fmt: skip
def test_times_in_words(seconds: float, words: str):
    assert page._words(seconds) == words
