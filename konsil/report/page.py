"""The page of a run: one HTML file that needs nothing from outside and runs no script.

What it says is found here and in gains.py, templates/report.html draws it with the style sheet of
`konsil data preview`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from konsil.colours import FIXED_COLOURS, FURTHER_COLOURS
from konsil.errors import RunError
from konsil.evaluation.comparison import Comparison, compare
from konsil.evaluation.results import CLIENT_AVERAGE, read_results
from konsil.evaluation.scores import FILE
from konsil.evaluation.statistics import Estimate
from konsil.federation.plan import Plan
from konsil.federation.runner import read_plan
from konsil.report.compare import (
    differences_table,
    means_table,
    notes,
    reference_of,
    scores_table,
)
from konsil.report.gains import Shown, answer, shown_in
from konsil.report.papers import papers_of
from konsil.report.plan import sites_table, traffic_table
from konsil.report.series import metric_name
from konsil.report.show import main_metrics, result_table, selector_lines, unfinished
from konsil.report.tables import Plain, plain
from konsil.tasks import Task, make_task

# Figures of a run, in their order, with a caption; those of patients' images can be left out.
CURVES = {
    "curves": "Validation scores, round by round",
    "lambdas": "How far sites keep to themselves",
}
OF_PATIENTS = {
    "routes": "Whom the super model asks, and images that go to the global model",
    "predictions": "A typical test image of every hospital, and what the models say",
}
MOST_BYTES = 5_000_000  # of the page
ROOM = 0.02  # of the scale, beyond the outermost interval


@dataclass(frozen=True)
class Bar:
    """A candidate's mark at one hospital, in per cent of the scale."""

    words: str
    colour: str
    place: float
    low: float
    width: float
    text: str


def write_page(runs: Sequence[Path], out: Path, images: bool = True) -> None:
    """The page of one run, or of several on the same test images."""
    from konsil.files import write_text

    text = page(runs, images)
    if len(text.encode()) > MOST_BYTES:
        raise RunError(
            f"{out}: the page would have {len(text) / 1e6:.0f} MB; leave pictures of images out: "
            "--no-images"
        )
    write_text(out, text)


def page(runs: Sequence[Path], images: bool = True) -> str:
    """The text of the page; without `images` no picture of a patient is on it."""
    plans = [Plan.from_json(read_plan(run)) for run in runs]
    task = make_task(plans[0].experiment.task, list(plans[0].labels))
    told = all((run / FILE).exists() for run in runs)
    found = compare(runs, task.main_metric) if told else None
    shown = shown_in(found) if found else []
    colours = _colours(shown)
    return (
        _environment()
        .get_template("report.html")
        .render(
            plans=plans,
            task=task,
            metric=metric_name(task.main_metric),
            found=found,
            answer=answer(found) if found else None,
            shown=shown,
            colours=colours,
            bars=_bars(found, shown, colours) if found else {},
            scale=_scale(found, shown) if found else (0.0, 1.0),
            tables=list(_tables(runs, plans, task, found)),
            lines=[
                line for run, plan in zip(runs, plans, strict=True) for line in _lines(run, plan)
            ],
            figures=[figure for run in runs for figure in _figures(run, images)],
            costs=[_costs(run, plan) for run, plan in zip(runs, plans, strict=True)],
            settings=[_settings(run, plan) for run, plan in zip(runs, plans, strict=True)],
            images=images,
        )
    )


def _environment() -> Environment:
    return Environment(
        loader=ChoiceLoader(
            [PackageLoader("konsil.report"), PackageLoader("konsil.prepare.preview")]
        ),
        autoescape=True,  # names of sites and methods are anybody's
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


# --- the first picture --------------------------------------------------------------------------


def _colours(shown: Sequence[Shown]) -> dict[str, str]:
    """Of each candidate; who pools images is drawn in ink, which is light on a dark screen."""
    further = iter(FURTHER_COLOURS)
    found: dict[str, str] = {}
    for one in shown:
        own = "var(--ink)" if one.method == "centralized" else FIXED_COLOURS.get(one.method)
        taken = own is None or own in found.values()
        found[one.words] = next(further) if taken or own is None else own
    return found


def _scale(found: Comparison, shown: Sequence[Shown]) -> tuple[float, float]:
    """From the lowest end of an interval to the highest, with a little room."""
    ends = [
        end
        for site in found.compared.sites
        for one in shown
        for end in _ends(found.compared.estimates(site)[one.place])
    ]
    low, high = min(ends), max(ends)
    room = max(ROOM * (high - low), 1e-3)
    return low - room, high + room


def _ends(estimate: Estimate) -> list[float]:
    return [end for end in estimate if end == end]


def _bars(
    found: Comparison, shown: Sequence[Shown], colours: Mapping[str, str]
) -> dict[str, list[Bar]]:
    """A hospital's marks, one a candidate; hospitals in the order of the federation."""
    low, high = _scale(found, shown)

    def on_scale(value: float) -> float:
        return 100 * (value - low) / (high - low)

    bars: dict[str, list[Bar]] = {}
    for site in found.compared.sites:
        estimates = found.compared.estimates(site)
        for one in shown:
            estimate = estimates[one.place]
            if ends := _ends(estimate):
                begin, end = on_scale(min(ends)), on_scale(max(ends))
                place, text = on_scale(estimate.value), _in_words(one.words, estimate)
                bar = Bar(one.words, colours[one.words], place, begin, end - begin, text)
                bars.setdefault(site, []).append(bar)
    return bars


def _in_words(who: str, estimate: Estimate) -> str:
    ends = f", 95 %: {estimate.low:.3f} to {estimate.high:.3f}" if len(_ends(estimate)) > 1 else ""
    return f"{who}: {estimate.value:.3f}{ends}"


# --- tables, figures, costs, settings -------------------------------------------------------------


def _tables(
    runs: Sequence[Path], plans: Sequence[Plan], task: Task, found: Comparison | None
) -> Iterator[tuple[Plain, list[str]]]:
    """Each with the lines below it."""
    if found is not None:
        yield plain(scores_table(found, task.main_metric, False)), []
        yield plain(means_table(found, task.main_metric, False)), []
        if len(found.candidates) > 1:
            reference = reference_of(found)
            gains = differences_table(found, task.main_metric, False, reference, CLIENT_AVERAGE)
            yield plain(gains), list(notes(found, CLIENT_AVERAGE))
    told = [path for run in runs if (path := run / "results.csv").exists()]
    rows = [row for path in told for row in read_results(path)]
    yield from ((beside, []) for _, beside in papers_of(rows, plans, task.metrics))
    for run, plan in zip(runs, plans, strict=True):
        path = run / "results.csv"
        rows = read_results(path) if path.exists() else []
        metrics = dict.fromkeys([*main_metrics(rows, "test"), *task.metrics, *task.further])
        for metric in metrics:
            if any((row.metric, row.split) == (metric, "test") for row in rows):
                less = metric in task.lower_is_better
                table = plain(result_table(rows, plan.sites, metric, less=less))
                title = f"{metric_name(metric)} of test images{', less is better' * less}"
                yield table._replace(title=title), []


def _lines(run: Path, plan: Plan) -> list[str]:
    """What is said of selectors, and which jobs are not done."""
    path = run / "results.csv"
    rows = read_results(path) if path.exists() else []
    return [*selector_lines(rows), *unfinished(plan, run, rows, plan.hash)]


def _figures(run: Path, images: bool) -> Iterator[tuple[str, str]]:
    """(caption, the picture as a data URL)."""
    for name, caption in (CURVES | (OF_PATIENTS if images else {})).items():
        for path in sorted((run / "figures").glob(f"{name}.png")):
            encoded = base64.b64encode(path.read_bytes()).decode()
            yield caption, f"data:image/png;base64,{encoded}"


def _costs(run: Path, plan: Plan) -> tuple[Plain, Plain]:
    """Bytes of a round by method, and seconds of each job."""
    first = plan.jobs[:: len(plan.experiment.seeds)]
    traffic = traffic_table(
        {j.method: plan.method(j) for j in first}, plan.experiment.server.coding
    )
    seconds = [[job, f"{value:,.0f}"] for job, value in _seconds(run).items()]
    return plain(traffic), Plain("Time on the clock", ["job", "seconds"], seconds, "")


def _seconds(run: Path) -> dict[str, float]:
    """Of every job that is done, all its parts together."""
    path, found = run / "events.jsonl", dict[str, float]()
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in lines:
        event = json.loads(line)
        if event.get("event") == "job_done":
            found[event["job"]] = found.get(event["job"], 0.0) + event["seconds"]
    return found


def _settings(run: Path, plan: Plan) -> tuple[str, Plain, str]:
    """What makes the numbers: facts, hospitals, and the experiment with every default."""
    facts: dict[str, Any] = read_plan(run)
    environment = facts.get("environment", {})
    said = {"plan": plan.hash, "images": plan.fingerprint, "konsil": plan.version} | environment
    words = ", ".join(f"{key} {value}" for key, value in said.items())
    experiment = yaml.safe_dump(facts["experiment"], sort_keys=False, allow_unicode=True)
    return words, plain(sites_table(plan)), experiment
