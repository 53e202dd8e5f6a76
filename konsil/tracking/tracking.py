"""The thread that hands a run's events to trackers, while the run goes on or afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from konsil.errors import RunError
from konsil.observers.following import EVENTS, Following
from konsil.tracking.scalars import Scalar, Scalars
from konsil.tracking.tracker import Tracker, check_names, make_tracker

LOOK_EVERY = 0.5  # seconds
PATIENCE = 30.0  # seconds that a run which is over waits for its trackers
OVER = ("run_done", "run_stopped")
Say = Callable[[str], None]


class Handed:
    """What one tracker has of a run; it is left alone when it fails."""

    def __init__(self, name: str, tracker: Tracker, run: Path, say: Say) -> None:
        self.name, self.tracker, self.run, self.say = name, tracker, run, say
        self._known: dict[str, set[tuple[str, int]]] = {}
        self.failed = False

    def take(self, job: str, scalars: Sequence[Scalar], plan: dict[str, Any], done: bool) -> None:
        """Of these what it does not have yet."""
        self._unless_failed(lambda: self._take(job, scalars, plan, done))

    def close(self) -> None:
        """The session is over."""
        self._unless_failed(self.tracker.close)

    def _take(self, job: str, scalars: Sequence[Scalar], plan: dict[str, Any], done: bool) -> None:
        if job not in self._known:
            self._known[job] = self.tracker.begin(job, plan)
        known = self._known[job]
        new = {(s.name, s.step): s for s in scalars if (s.name, s.step) not in known}
        if new:
            self.tracker.write(job, list(new.values()))
            known.update(new)
        if done:
            self.tracker.end(job)

    def _unless_failed(self, work: Callable[[], None]) -> None:
        """A server that is away and a full disk are no reason to stop a training."""
        if self.failed:
            return
        try:
            work()
        except Exception as error:
            self.failed = True
            self.say(failure(self.name, self.run, error))


def failure(name: str, run: Path, error: Exception) -> str:
    """What is said, once, of a tracker that failed."""
    reason = " ".join(str(error).split())[:300]
    return (
        f"{name} failed and is told nothing more ({type(error).__name__}: {reason}); the run goes "
        f"on. What is missing there: konsil track {run} --to {name}"
    )


class Tracking:
    """Reads a run's log, again and again, and hands on what is new."""

    def __init__(self, run: Path, names: Sequence[str], say: Say) -> None:
        """Trackers are imported here: not while somebody trains, which takes a second or two."""
        check_names(names)
        self.run, self.over = run, False
        self._log, self._scalars = Following(run / EVENTS), Scalars()
        self._plan: dict[str, Any] | None = None
        self._handed = []
        for name in dict.fromkeys(names):
            try:
                self._handed.append(Handed(name, make_tracker(name, run), run, say))
            except Exception as error:  # whatever a library raises
                say(failure(name, run, error))

    @property
    def alive(self) -> bool:
        """Whether any tracker still listens."""
        return not all(handed.failed for handed in self._handed)

    def look(self) -> None:
        """Hand on what has been logged since the last look."""
        waiting: dict[str, list[Scalar]] = {}
        for event in self._log.new():
            self.over = event["event"] in OVER
            found = self._scalars.of(event)
            if found:
                waiting.setdefault(event["job"], []).extend(found)
            if event["event"] == "job_done":
                self._hand_on(event["job"], waiting.pop(event["job"], []), done=True)
        for job, scalars in waiting.items():
            self._hand_on(job, scalars)

    def close(self) -> None:
        """Let go of files and servers."""
        for handed in self._handed:
            handed.close()

    def _hand_on(self, job: str, scalars: Sequence[Scalar], done: bool = False) -> None:
        if self._plan is None:  # before there are events there is a plan
            self._plan = yaml.safe_load((self.run / "plan.yaml").read_text(encoding="utf-8"))
        for handed in self._handed:
            handed.take(job, scalars, self._plan, done)


@contextmanager
def tracked(run: Path, names: Sequence[str], say: Say) -> Iterator[None]:
    """Track a run in a thread as long as this lasts; then wait a little for what is left."""
    if not names:
        yield
        return
    tracking, ended = Tracking(run, names, say), threading.Event()
    thread = threading.Thread(target=_follow, args=(tracking, ended), name="tracking", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(PATIENCE)
        if thread.is_alive():
            say(f"{', '.join(names)}: slow, and left behind; konsil track {run} writes the rest")


def _follow(tracking: Tracking, ended: threading.Event) -> None:
    while not ended.wait(LOOK_EVERY):
        tracking.look()
    tracking.look()
    tracking.close()


def track(runs: Sequence[Path], names: Sequence[str], say: Say) -> None:
    """Hand these runs to trackers: what there is, and what comes until all of them are over."""
    all_ = [Tracking(run, names, say) for run in runs]
    pause = threading.Event()
    try:
        while True:
            for tracking in all_:
                tracking.look()
            if all(tracking.over or not tracking.alive for tracking in all_):
                break
            pause.wait(LOOK_EVERY)
    finally:
        for tracking in all_:
            tracking.close()
    if not all(tracking.alive for tracking in all_):
        raise RunError("not everything was written; what failed is said above")
