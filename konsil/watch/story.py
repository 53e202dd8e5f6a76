"""What the events of a run tell: jobs, rounds, sites, scores, troubles, and the time left.

No file and no clock here: events come in, in their order, and questions about time name the moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Any, Literal

from konsil.observers import BY_PLAN

RECENT = 10  # rounds by which the next ones are judged
TROUBLES = 100  # that are kept, the newest
QUIET = 60.0  # seconds without an event that are nothing yet
LONG = 10  # times as long as a round usually takes: then somebody should look

JobState = Literal["waiting", "training", "evaluated", "done", "failed", "stopped"]
RunState = Literal["not begun", "running", "stopped", "finished"]
SiteState = Literal["", "at work", "answered", "missing", "refused"]
Event = Mapping[str, Any]


@dataclass
class Site:
    """A site in a job."""

    now: SiteState = ""  # in the round that is going on, or was the last
    reason: str = ""  # why it is missing
    last: int = 0  # the round that it answered last
    missed: int = 0  # rounds without it
    scores: dict[str, float] = field(default_factory=dict)  # on its validation images


@dataclass
class Job:
    """A method with a seed."""

    name: str
    rounds: int = 0
    state: JobState = "waiting"
    round: int = 0  # the last that is complete
    began: float | None = None  # when the round that is going on began
    examined: float | None = None  # since when its models are evaluated
    durations: list[float] = field(default_factory=list)  # of rounds
    examining: float | None = None  # seconds of its evaluation, when it is over
    seconds: float = 0.0  # of the session that brought it to its end
    curves: dict[str, dict[int, float]] = field(default_factory=dict)  # measure -> round -> mean
    sites: dict[str, Site] = field(default_factory=dict)
    score: dict[str, float] = field(default_factory=dict)  # role -> client average, validation
    metric: str = ""
    test: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    reason: str = ""  # why it failed

    @property
    def method(self) -> str:
        """The label of its method."""
        return self.name.rpartition("/")[0]

    @property
    def open(self) -> bool:
        """Whether there is anything left to do."""
        return self.state not in ("done", "failed")

    @property
    def pace(self) -> float | None:
        """Seconds a round, as the latest took; a single slow one moves it little."""
        return median(self.durations[-RECENT:]) if self.durations else None

    def averages(self, site: str = "client_average") -> dict[str, float]:
        """Role -> score of test images: the average of the sites, or another column."""
        found = {role: metrics.get(self.metric, {}) for role, metrics in self.test.items()}
        return {role: scores[site] for role, scores in found.items() if site in scores}


@dataclass(frozen=True)
class Trouble:
    """Something that a person may want to look at."""

    time: float
    job: str
    round: int
    kind: str  # missing, refused, failed, stopped
    site: str
    reason: str


class Story:
    """A run as its events tell it. `plan`: what plan.yaml holds, once it is there."""

    def __init__(self, plan: Mapping[str, Any] | None = None) -> None:
        self.state: RunState = "not begun"
        self.reason = ""
        self.jobs: dict[str, Job] = {}
        self.current: Job | None = None
        self.troubles: list[Trouble] = []
        self.began: float | None = None  # this session
        self.last: float | None = None  # the latest event
        self.sites: list[str] = []
        if plan is not None:
            self._read_plan(plan)

    def _read_plan(self, plan: Mapping[str, Any]) -> None:
        experiment = plan["experiment"]
        self.sites = list(plan["sites"])
        for method in experiment["methods"]:
            for seed in experiment["seeds"]:
                name = f"{method.get('label') or method['name']}/seed{seed}"
                self.jobs[name] = Job(name, experiment["rounds"])

    # --- events -----------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        """The next event; one that is not known only says that the run lives."""
        self.last = _seconds(event.get("time")) or self.last
        hear = getattr(self, f"_{event['event']}", None)
        if hear is not None:
            hear(event)

    def _run_started(self, event: Event) -> None:
        self.state, self.reason, self.began = "running", "", self.last
        self._leave_job("waiting")

    def _run_stopped(self, event: Event) -> None:
        self.state, self.reason = "stopped", event["reason"]
        self._trouble(event, "stopped")
        self._leave_job("stopped")

    def _run_done(self, event: Event) -> None:
        self.state, self.current = "finished", None
        self._done_without_a_word(list(self.jobs.values()))

    def _done_without_a_word(self, jobs: Sequence[Job]) -> None:
        """A kill between a job's result and its event: what goes on passes over such a job."""
        for job in jobs:
            job.state = "done" if job.open else job.state

    def _leave_job(self, state: JobState) -> None:
        """The session ended in the middle of a job."""
        if self.current is not None and self.current.open:
            self.current.state = state
            self.current.began = self.current.examined = None
        self.current = None if state == "waiting" else self.current

    def _job_started(self, event: Event) -> None:
        job = self.current = self._job(event)
        job.rounds, job.round, job.state = event["rounds"], event["done"], "training"
        self._done_without_a_word(list(self.jobs.values())[: self.number - 1])

    def _job_failed(self, event: Event) -> None:
        job = self._job(event)
        job.state, job.reason = "failed", event["reason"]
        self._trouble(event, "failed")

    def _job_done(self, event: Event) -> None:
        job = self._job(event)
        if job.examined is not None and self.last is not None:
            job.examining = self.last - job.examined
        job.state, job.began, job.examined = "done", None, None
        job.round, job.seconds = job.rounds, event["seconds"]
        job.score, job.metric = event["score"], event.get("metric", "")
        job.test = event.get("test", {})

    def _examining(self, event: Event) -> None:
        job = self._job(event)
        job.state, job.began = "evaluated", None
        job.examined = self.last if job.examined is None else job.examined

    def _round_started(self, event: Event) -> None:
        job = self._job(event)
        job.began = self.last
        for name in self.sites if not job.sites else ():
            job.sites[name] = Site()
        for site in job.sites.values():
            site.now, site.reason = "at work", ""

    def _round_done(self, event: Event) -> None:
        job = self._job(event)
        if job.began is not None and self.last is not None:
            job.durations.append(self.last - job.began)
        job.round, job.began = event["round"], None
        for name, site in job.sites.items():
            if name in event["sites"]:
                site.last = event["round"]
            else:
                site.missed += 1

    def _site_done(self, event: Event) -> None:
        job = self._job(event)
        if event["site"] not in self.sites:  # pooled training: one that holds everybody's images
            job.sites = {n: s for n, s in job.sites.items() if n not in self.sites}
        job.sites.setdefault(event["site"], Site()).now = "answered"

    def _site_missing(self, event: Event) -> None:
        self._absent(event, "missing")

    def _upload_refused(self, event: Event) -> None:
        self._absent(event, "refused")

    def _absent(self, event: Event, kind: SiteState) -> None:
        site = self._job(event).sites.setdefault(event["site"], Site())
        site.now, site.reason = kind, event["reason"]
        if site.reason != BY_PLAN:
            self._trouble(event, kind)

    def _validated(self, event: Event) -> None:
        job = self._job(event)
        for measure, value in event["means"].items():
            job.curves.setdefault(measure, {})[event["round"]] = value
        for name, values in event.get("sites", {}).items():
            told = {measure: value for measure, value in values.items() if measure != "images"}
            job.sites.setdefault(name, Site()).scores = told

    def _job(self, event: Event) -> Job:
        return self.jobs.setdefault(event["job"], Job(event["job"]))

    def _trouble(self, event: Event, kind: str) -> None:
        about = event.get("job", ""), event.get("round", 0), kind, event.get("site", "")
        self.troubles.append(Trouble(self.last or 0.0, *about, event["reason"]))
        del self.troubles[:-TROUBLES]

    # --- time -------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """Which of the jobs is at work, counted from 1 in the plan's order; 0: none."""
        names = list(self.jobs)
        return names.index(self.current.name) + 1 if self.current is not None else 0

    def left_of_job(self, now: float) -> float | None:
        """Seconds until the current job is done; None where nothing says how long it takes."""
        job = self.current
        if job is None or self.state != "running":
            return None
        examining = self._usual_examining()
        if job.examined is not None:
            return None if examining is None else max(0.0, examining - (now - job.examined))
        return self._of_rounds(job, now, job.pace, examining)

    def left(self, now: float) -> float | None:
        """Seconds until the run is done.

        A job that has not begun is taken to be as fast as its method was with other seeds, else as
        the other jobs were.
        """
        if self.state != "running":
            return None
        total, usual = 0.0, self._usual_pace()
        for job in self.jobs.values():
            if not job.open:
                continue
            own = self.left_of_job(now) if job is self.current else None
            if own is None:
                pace = job.pace or self._usual_pace(job.method) or usual
                own = self._of_rounds(job, now, pace, self._usual_examining())
            if own is None:
                return None
            total += own
        return total

    def _of_rounds(
        self, job: Job, now: float, pace: float | None, examining: float | None
    ) -> float | None:
        if job.examined is not None:
            return 0.0  # nothing says how long that takes, and most of the work is done
        if pace is None:
            return None
        gone = 0.0 if job.began is None else min(now - job.began, pace)
        return max(0.0, pace * (job.rounds - job.round) - gone) + (examining or 0.0)

    def _usual_pace(self, method: str = "") -> float | None:
        found = [j.pace for j in self.jobs.values() if j.pace and method in ("", j.method)]
        return median(found) if found else None

    def _usual_examining(self) -> float | None:
        found = [j.examining for j in self.jobs.values() if j.examining is not None]
        return median(found) if found else None

    def silent(self, now: float) -> float:
        """Seconds without an event, if that is longer than a living run is silent; else 0."""
        if self.state != "running" or self.last is None:
            return 0.0
        usual = (self.current and self.current.pace) or self._usual_pace() or 0.0
        patience = max(QUIET, LONG * usual, LONG * (self._usual_examining() or 0.0))
        return now - self.last if now - self.last > patience else 0.0


def _seconds(stamp: object) -> float | None:
    """A time of day as seconds; None if it is none."""
    try:
        return datetime.fromisoformat(str(stamp)).timestamp()
    except ValueError:
        return None
