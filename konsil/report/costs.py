"""What a page says of costs: bytes of a round, and seconds of every job."""

from __future__ import annotations

from collections.abc import Iterator

from konsil.federation.compression import Coding
from konsil.federation.plan import Job
from konsil.ingredients.method import Method
from konsil.report.plan import traffic_table
from konsil.report.runs import Runs
from konsil.report.tables import Plain, plain


def cost_tables(runs: Runs) -> Iterator[Plain]:
    """Every method once; runs whose uploads are coded otherwise have a table of their own."""
    by_coding: dict[Coding | None, dict[str, Method]] = {}
    for method, run in runs.methods():
        experiment = run.plan.experiment
        made = run.plan.method(Job(method.title, experiment.seeds[0]))
        by_coding.setdefault(experiment.server.coding, {})[method.title] = made
    for coding, methods in by_coding.items():
        yield plain(traffic_table(methods, coding))
    if (seconds := _seconds(runs)) is not None:
        yield seconds


def _seconds(runs: Runs) -> Plain | None:
    """A line a method, a column a seed."""
    found = {job: value for run in runs.runs for job, value in run.seconds().items()}
    seeds = sorted({job.seed for job in found})
    lines = [
        [method, *(_number(found.get(Job(method, seed))) for seed in seeds)]
        for method in dict.fromkeys(job.method for job in found)
    ]
    caption = "of the whole job, evaluation included, on the machine and with whatever else it did"
    head = ["method", *(f"seed {seed}" for seed in seeds)]
    return Plain("Seconds on the clock", head, lines, caption) if lines else None


def _number(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:,.0f}"
