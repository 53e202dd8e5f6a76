"""The tables of a page, each by a name that `konsil report --table` takes, too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from konsil.errors import RunError
from konsil.evaluation.comparison import Comparison
from konsil.evaluation.results import CLIENT_AVERAGE, Row
from konsil.report.compare import (
    differences_table,
    means_table,
    notes,
    reference_of,
    scores_table,
)
from konsil.report.papers import papers_of
from konsil.report.runs import Runs
from konsil.report.series import metric_name
from konsil.report.show import main_metrics, result_table
from konsil.report.tables import Plain, plain

SCORES, MEANS, DIFFERENCES = "scores", "means", "differences"


@dataclass(frozen=True)
class Named:
    """A table, what it is asked for by, and the lines below it."""

    name: str
    table: Plain
    below: Sequence[str] = ()
    is_further: bool = False  # folded away on the page


def main_tables(runs: Runs, found: Comparison | None) -> Iterator[Named]:
    """Those with intervals over patients, where images' scores are known; then every metric."""
    main = runs.task.main_metric
    if found is not None:
        yield from compared_tables(found, main)
    plans = [run.plan for run in runs.every]
    for name, beside in papers_of(runs.rows, plans, runs.task.metrics):
        yield Named(name, beside)
    for one in metric_tables(runs):
        # the first table has the main metric's numbers already, with intervals over patients
        is_first = one.name == main and found is None
        yield replace(one, is_further=not is_first)


def compared_tables(found: Comparison, metric: str) -> Iterator[Named]:
    """Scores, means with worst site and spread, and differences to training alone."""
    yield Named(SCORES, plain(scores_table(found, metric, False)))
    yield Named(MEANS, plain(means_table(found, metric, False)))
    if len(found.candidates) > 1:
        gains = differences_table(found, metric, False, reference_of(found), CLIENT_AVERAGE)
        yield Named(DIFFERENCES, plain(gains), list(notes(found, CLIENT_AVERAGE)))


def metric_tables(runs: Runs) -> Iterator[Named]:
    """A table a metric with intervals over seeds, all runs' rows together."""
    rows, task = runs.rows, runs.task
    by_metric: dict[str, list[Row]] = {}
    for row in rows:
        if row.split == "test":
            by_metric.setdefault(row.metric, []).append(row)
    for metric in dict.fromkeys([*main_metrics(rows, "test"), *task.metrics, *task.further]):
        if metric in by_metric:
            less = metric in task.lower_is_better
            table = plain(result_table(by_metric[metric], runs.plan.sites, metric, less=less))
            title = f"{metric_name(metric)} of test images{', less is better' * less}"
            title += ", intervals over seeds" * (len({row.seed for row in by_metric[metric]}) > 1)
            yield Named(metric, table._replace(title=title))


def chosen_table(runs: Runs, found: Comparison | None, name: str | None) -> Named:
    """The one of that name, or the first; RunError with the names that there are."""
    tables = list(main_tables(runs, found))
    if not tables:
        raise RunError(f"{runs.every[0].folder}: no job is done, so there is no table")
    chosen = next((one for one in tables if name in (None, one.name)), None)
    if chosen is None:
        why = ""
        if found is None and name in (SCORES, MEANS, DIFFERENCES):
            why = "; that one needs single images' scores (scores.parquet), which are not here"
        known = ", ".join(one.name for one in tables)
        raise RunError(f"--table {name}: one of {known}{why}")
    return chosen
