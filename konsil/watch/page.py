"""What is shown of a run: the parts of the page, and the same in a few lines for a terminal."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from konsil.watch.charts import HIGH, WIDE, charts
from konsil.watch.run import Watched
from konsil.watch.story import Job, Site, Story

PARTS = ("head", "sites", "curves", "jobs", "troubles")
SHOWN = 20  # troubles


@dataclass(frozen=True)
class Part:
    """A piece of the page; its mark says whether a browser has this very text already."""

    html: str
    mark: str


def parts(watched: Watched, now: float) -> dict[str, Part]:
    """Every part of the page, as it is now."""
    template = _environment().get_template("parts.html")
    facts = template.make_module(_facts(watched, now))
    texts = {name: str(getattr(facts, name)()) for name in PARTS}
    return {name: Part(text, f"{zlib.crc32(text.encode()):x}") for name, text in texts.items()}


def whole_page(shown: Mapping[str, Part], title: str, runs: Mapping[str, str], run: str) -> str:
    """The page with its parts in it: it can be read without a script, and then stands still."""
    template = _environment().get_template("page.html")
    return template.render(parts=shown, names=PARTS, title=title, runs=runs, run=run)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,  # names and reasons are anybody's
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"scores": scores_in_words, "clock": _clock, "words": _words}
    return made


def _facts(watched: Watched, now: float) -> dict[str, object]:
    story = watched.story
    drawn = list(charts(story.jobs.values()))
    return {
        "title": watched.title,
        "story": story,
        "headline": headline(watched),
        "notes": list(notes(watched, now)),
        "_sites": sites_of(story),
        "measures": measures_of(story),
        "charts": drawn,
        "legend": {line.words: line.colour for chart in drawn for line in chart.lines},
        "wide": WIDE,
        "high": HIGH,
        "_troubles": story.troubles[-SHOWN:][::-1],
        "many": len(story.troubles),
    }


# --- in words -------------------------------------------------------------------------------------


def headline(watched: Watched) -> str:
    """How the run stands, in a sentence."""
    story, jobs = watched.story, watched.story.jobs
    done = sum(not job.open for job in jobs.values())
    state = watched.outcome.get("state", "")
    if story.state == "finished":
        return f"Finished: {done} of {len(jobs)} jobs done"
    if state in ("waiting", "failed"):
        return f"{'Waiting for sites' if state == 'waiting' else 'Failed'}: {_standing(story)}"
    if story.state == "not begun":
        return "Not begun: there is no event yet"
    return f"{'Stopped' if story.state == 'stopped' else 'Running'}: {_standing(story)}"


def _standing(story: Story) -> str:
    job = story.current
    if job is None:
        return f"{sum(not job.open for job in story.jobs.values())} of {len(story.jobs)} jobs done"
    where = f"round {job.round} of {job.rounds}"
    if job.examined is not None:
        where = "evaluating its models"
    return f"job {story.number} of {len(story.jobs)}, {job.name}, {where}"


def notes(watched: Watched, now: float) -> Iterator[str]:
    """What else there is to say: time left, silence, and why it stopped."""
    story = watched.story
    if story.state == "running" and watched.outcome.get("state") not in ("waiting", "failed"):
        left = {"of this job": story.left_of_job(now), "of the run": story.left(now)}
        known = [f"{_words(value)} {what}" for what, value in left.items() if value is not None]
        if known:
            yield f"Left: {', '.join(known)}."
        if silent := story.silent(now):
            yield (
                f"Nothing new for {_words(silent).removeprefix('about ')}: if the run was "
                "stopped, the same command with --resume goes on."
            )
    reason = watched.outcome.get("reason") or story.reason
    if reason and story.state != "finished":
        yield reason


def sites_of(story: Story) -> dict[str, Site]:
    """The sites of the job that is at work, or was the last."""
    begun = [job for job in story.jobs.values() if job.sites]
    job = story.current if story.current is not None else (begun[-1] if begun else None)
    return dict(job.sites) if job and job.sites else {name: Site() for name in story.sites}


def measures_of(story: Story) -> list[str]:
    """What the sites' validation says, in the order of the first to say it."""
    told = [measure for site in sites_of(story).values() for measure in site.scores]
    return list(dict.fromkeys(told))


def scores_in_words(scores: Mapping[str, float]) -> str:
    """Role and score, one after the other."""
    return " · ".join(f"{role} {value:.3f}" for role, value in scores.items())


def _words(seconds: float) -> str:
    """A time as people say it; the last digits would be made up."""
    if seconds < 5:
        return "a few seconds"
    if seconds < 55:
        return f"about {5 * round(seconds / 5)} s"
    if seconds < 90 * 60:
        return f"about {max(1, round(seconds / 60))} min"
    return f"about {seconds / 3600:.1f} h"


def _clock(time: float | None) -> str:
    return "" if time is None else f"{datetime.fromtimestamp(time):%H:%M:%S}"


def lines(watched: Watched, now: float) -> Iterator[str]:
    """The page in a few lines, for a terminal."""
    yield f"{watched.title}: {headline(watched)}"
    yield from notes(watched, now)
    for name, site in sites_of(watched.story).items():
        if site.now in ("missing", "refused"):
            yield f"{name}: {site.now}: {site.reason}"
    for job in watched.story.jobs.values():
        yield f"  {job.name}: {_job_line(job)}"
    for trouble in watched.story.troubles[-SHOWN:]:
        if trouble.kind == "failed":
            yield f"{trouble.job}: failed: {trouble.reason}"


def _job_line(job: Job) -> str:
    said = [f"{job.state}, round {job.round} of {job.rounds}" if job.open else job.state]
    now = {measure: curve[max(curve)] for measure, curve in job.curves.items()}
    said += [f"validation {scores_in_words(job.score or now)}"] if now else []
    said += [f"test {scores_in_words(job.averages())}"] if job.averages() else []
    return "; ".join(said)
