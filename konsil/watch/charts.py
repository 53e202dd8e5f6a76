"""Curves as SVG: a small picture a job, and all on one scale, so that jobs can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from konsil.watch.story import Job

SELECTOR, LAMBDA = "selector_accuracy", "lambda_prime"
SHARES = {SELECTOR: "the selector is right", LAMBDA: "lambda', mean of the sites"}
COLOURS = {
    "global": "#0072B2", "personal": "#D55E00", "local": "#8C8C8C", "centralized": "var(--ink)",
    SELECTOR: "#009E73", LAMBDA: "#CC79A7",
}  # fmt: skip
OTHERS = ("#56B4E9", "#E69F00", "#6A51A3")  # of measures that a method brings
WIDE, HIGH = 320.0, 130.0
MOST_POINTS = 300  # of a line: more cannot be seen
SETTLED = 6  # the first sixth of the rounds would hide the rest
Scale = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A measure's curve in a chart."""

    words: str
    colour: str
    points: str  # of a polyline
    end: tuple[float, float]  # where it is now
    value: float


@dataclass(frozen=True)
class Chart:
    """What a job's picture shows."""

    title: str
    lines: list[Line]
    scale: Scale
    rounds: int

    @property
    def in_words(self) -> str:
        """For who cannot see it: where every line is now."""
        ends = ", ".join(f"{line.words} {line.value:.3f}" for line in self.lines)
        return f"{self.title}: {ends}"


def charts(jobs: Iterable[Job]) -> Iterator[Chart]:
    """Scores of every job that has any, on one scale; then what is a share, from 0 to 1."""
    begun = [job for job in jobs if job.curves]
    scale, measures = common_scale(begun), [m for job in begun for m in job.curves]
    for job in begun:
        scores = {m: c for m, c in job.curves.items() if m not in SHARES}
        shares = {m: c for m, c in job.curves.items() if m in SHARES}
        if scores:
            yield _chart(job, scores, scale, measures)
        if shares:
            yield _chart(job, shares, (0.0, 1.0), measures)


def common_scale(jobs: Sequence[Job]) -> Scale:
    """From the lowest to the highest score, the first rounds aside, with a little room."""
    curves = [c for job in jobs for measure, c in job.curves.items() if measure not in SHARES]
    settled = [
        value
        for curve, first in ((curve, max(curve) / SETTLED) for curve in curves)
        for number, value in curve.items()
        if number >= first
    ]
    low, high = min(settled, default=0.0), max(settled, default=1.0)
    room = max(0.01, 0.06 * (high - low))
    return low - room, high + room


def colour_of(measure: str, measures: Sequence[str]) -> str:
    """The colour of a measure, the same in every chart of a run that has these."""
    further = [m for m in dict.fromkeys(measures) if m not in COLOURS]
    return COLOURS.get(measure) or OTHERS[further.index(measure) % len(OTHERS)]


def _chart(
    job: Job, curves: Mapping[str, Mapping[int, float]], scale: Scale, measures: Sequence[str]
) -> Chart:
    drawn = [
        _line(measure, colour_of(measure, measures), curve, job.rounds, scale)
        for measure, curve in curves.items()
    ]
    return Chart(job.name, drawn, scale, job.rounds)


def _line(measure: str, colour: str, curve: Mapping[int, float], rounds: int, scale: Scale) -> Line:
    low, high = scale
    across, up = WIDE / max(rounds, 1), HIGH / (high - low)
    places = [
        (across * number, min(max(up * (high - curve[number]), 0.0), HIGH))
        for number in thinned(sorted(curve))
    ]
    text = " ".join([f"{x:.1f},{y:.1f}" for x, y in places])
    return Line(SHARES.get(measure, measure), colour, text, places[-1], curve[max(curve)])


def thinned(rounds: Sequence[int]) -> list[int]:
    """So many that a line still looks the same; the first and the last always."""
    step = -(-len(rounds) // MOST_POINTS)
    return [*rounds[:-1:step], rounds[-1]] if step > 1 else list(rounds)
