"""The page in a real browser, beside a real run: what happens there is seen without a reload."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from konsil.watch.page import headline
from konsil.watch.run import Watched
from tests.serve.chromium import CHROMIUM, Browser, wait_for

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
ROUNDS = 30
HEADLINE = "document.querySelector('.state')?.textContent ?? ''"
PATIENCE = 240.0


@contextmanager
def started(*words: object) -> Iterator[subprocess.Popen[str]]:
    """A command of konsil's, as a process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "konsil", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        # as from a terminal: what a shell starts in the background would not hear of Ctrl-C
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)  # a test may have failed while it was stopped
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)


@contextmanager
def watching(folder: Path, *options: object) -> Iterator[str]:
    """`konsil watch` on a port that is free; the page's address."""
    with started("watch", folder, "--port", 0, *options) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if found := re.search(r"watching .* on (\S+) \(", line):
                yield found[1]
                return
        pytest.fail("".join(said))


@pytest.fixture
def file(tmp_path: Path, shades: Path) -> Path:
    """An experiment of two methods, long enough to be watched."""
    path = tmp_path / "tiny.yaml"
    facts = {
        "name": "tiny",
        "federation": {"folder": str(shades), "image_size": 32},
        "task": {"name": "classification"},
        "network": {"name": "small"},
        "training": {"batch_size": 3, "augment": "none"},
        "methods": ["fedavg", "fedsm"],
        "rounds": ROUNDS,
    }
    path.write_text(yaml.safe_dump(facts))
    return path


def paused(training: subprocess.Popen[str], run: Path, rounds: int) -> str:
    """Stop a run when its log has so many rounds; what the page must say of it now."""
    log = run / "events.jsonl"
    wait_for(
        lambda: log.exists() and log.read_text().count("round_done") >= rounds, "rounds", PATIENCE
    )
    training.send_signal(signal.SIGSTOP)
    watched = Watched(run)
    watched.look()
    return headline(watched)


def test_the_page_follows_a_run_from_before_its_first_event_to_its_end(file, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "plan.yaml").write_text("cut: [")  # there, and not to be read yet
    with watching(run) as url, Browser(tmp_path / "browser") as tab:
        tab.size(375, 800)
        tab.open(url)
        assert "Not begun" in tab.js(HEADLINE)
        (run / "plan.yaml").unlink()
        tab.js("window.never = 'loaded anew'")
        seen = []
        with started("run", file, "--out", run) as training:
            for rounds in (2, 2 + ROUNDS // 2, ROUNDS + 3):
                seen.append(paused(training, run, rounds))
                tab.until(f"{HEADLINE} == {seen[-1]!r}", PATIENCE)
                # parts come one after the other
                tab.until("document.querySelectorAll('#part-sites tbody tr').length == 2")
                tab.until("document.querySelectorAll('#part-curves polyline').length > 0")
                training.send_signal(signal.SIGCONT)
            assert len(set(seen)) == 3
            assert seen[-1].startswith("Running: job 2 of 2, fedsm/seed0")
            tab.until(f"{HEADLINE} == 'Finished: 2 of 2 jobs done'", PATIENCE)
            training.wait(PATIENCE)
        assert tab.js("window.never") == "loaded anew"
        assert tab.text("#part-jobs tbody tr:nth-child(2)").count("super 0.") == 2
        assert "Nothing unplanned: no site was missing" in tab.text("#part-troubles")
        assert tab.js("document.documentElement.scrollWidth") <= 375
        assert tab.complaints() == []
        assert [u for u in tab.fetched() if not u.startswith((url, "about:"))] == []


def test_by_keyboard_and_in_the_dark(tmp_path):
    """Links and wide tables are reached in their order; a table scrolls inside itself."""
    run = write_log(tmp_path / "run")
    with watching(run) as url, Browser(tmp_path / "browser") as tab:
        tab.size(375, 800)
        tab.open(url)
        reached = []
        for _ in range(6):
            tab.press("Tab")
            reached.append(tab.js("document.activeElement.hash || document.activeElement.id"))
        assert reached == ["#sites", "#curves", "#jobs", "#troubles", "wide-sites", "wide-jobs"]
        light = tab.js("getComputedStyle(document.body).backgroundColor")
        media = [{"name": "prefers-color-scheme", "value": "dark"}]
        tab.do("Emulation.setEmulatedMedia", features=media)
        assert tab.js("getComputedStyle(document.body).backgroundColor") != light
        assert tab.complaints() == []


def test_a_watcher_that_ends_is_missed_and_the_page_stays(tmp_path):
    run = write_log(tmp_path / "run")
    with Browser(tmp_path / "browser") as tab:
        with watching(run) as url:
            tab.open(url)
            headline = tab.js(HEADLINE)
        tab.until("!document.querySelector('#connection').hidden")
        assert "has ended" in tab.text("#connection")
        assert tab.js(HEADLINE) == headline


def test_a_second_run_of_a_folder_is_followed_when_it_begins(tmp_path):
    write_log(tmp_path / "unseen" / "without-a", "2026-01-01T00:00:00+00:00")
    with watching(tmp_path / "unseen") as url, Browser(tmp_path / "browser") as tab:
        tab.open(url)
        assert tab.js("document.querySelectorAll('#runs a').length") == 0
        write_log(tmp_path / "unseen" / "without-b", "2026-01-02T00:00:00+00:00")
        tab.until("document.querySelector('#runs a[aria-current]')?.hash !== undefined")
        assert tab.text("#runs a[aria-current]").startswith("without-b")
        tab.click("#runs a:first-child")
        wait_for(lambda: tab.js("location.search") == "?run=without-a", "the other run")
        tab.until("document.querySelector('#runs a[aria-current]') !== null")
        assert tab.text("#runs a[aria-current]").startswith("without-a")


def write_log(folder: Path, time: str = "2026-01-01T00:00:00+00:00") -> Path:
    """A run that has ended badly, with names that are no markup."""
    from tests.watch.test_story import PLAN, log_of

    folder.mkdir(parents=True)
    (folder / "plan.yaml").write_text(yaml.safe_dump(PLAN))
    (folder / "events.jsonl").write_text(log_of(time))
    return folder
