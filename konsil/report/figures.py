"""The figures of a run folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from konsil.data import test_images
from konsil.evaluation.results import CLIENT_AVERAGE, GLOBAL, read_results
from konsil.federation.plan import Job, Plan
from konsil.report.answers import Panel, ask_all, at_quantiles, median_scores, score_of
from konsil.report.curves import curves_of, draw_curves
from konsil.report.lambdas import draw_lambdas, lambdas_of
from konsil.report.predictions import PictureRow, draw_predictions, picture_rows
from konsil.report.series import estimates_of
from konsil.report.sites import draw_sites
from konsil.report.style import look, method_colours, write_figure
from konsil.tasks import Task, make_task

TYPICAL = 0.5
SPREAD = (0.10, 0.35, 0.65, 0.90)
Say = Callable[[str], None]


def draw_figures(run_folder: Path, plan: Plan, say: Say | None = None) -> list[Path]:
    """Write `figures/*.png` of the jobs that are done: curves, scores by site, predictions."""
    say = say or (lambda _: None)
    done = [job for job in plan.jobs if _result_path(run_folder, job).exists()]
    for job in plan.jobs:
        if job not in done:
            say(f"{job.name}: not finished, left out of the figures")
    if not done:
        return []
    task = make_task(plan.experiment.task, list(plan.labels))
    written = []
    with look():
        for name, figure in _figures(run_folder, plan, task, done):
            written.append(write_figure(figure, run_folder / "figures" / f"{name}.png"))
            say(f"figures/{name}.png")
    return written


def _result_path(run_folder: Path, job: Job) -> Path:
    return run_folder / job.name / "result.json"


def _result(run_folder: Path, job: Job) -> dict[str, Any]:
    return dict(json.loads(_result_path(run_folder, job).read_text(encoding="utf-8")))


def _figures(
    run_folder: Path, plan: Plan, task: Task, done: list[Job]
) -> Iterator[tuple[str, Figure]]:
    colours = method_colours(plan)
    results = [_result(run_folder, job) for job in done]
    yield "curves", draw_curves(curves_of(results), task.main_metric, colours)
    lambdas = lambdas_of(results)
    if lambdas:
        yield "lambdas", draw_lambdas(lambdas, plan.sites)
    columns = (*plan.sites, CLIENT_AVERAGE, GLOBAL)
    rows = read_results(run_folder / "results.csv")
    lines = estimates_of(rows, task.main_metric, "test", columns)
    yield "sites", draw_sites(lines, plan.sites, task.main_metric, colours)
    if plan.data_folder.is_dir():  # a run between hospitals has no images to show
        yield from _prediction_figures(run_folder, plan, task, done)


def _prediction_figures(
    run_folder: Path, plan: Plan, task: Task, done: list[Job]
) -> Iterator[tuple[str, Figure]]:
    """One image a site of the first seed, and four of each site."""
    seed = done[0].seed
    panels = [Panel(run_folder, plan, job) for job in done if job.seed == seed]
    typical: list[PictureRow] = []
    for site in plan.sites:
        middle, spread = _rows_of_site(panels, plan, site, task)
        typical += middle
        caption = (
            f"Site {site}, seed {seed}: test images at the quantiles of the models' median score."
        )
        yield f"predictions-{site}", draw_predictions(spread, task, caption)
    caption = (
        f"Seed {seed}. Of every site the test image with the median score, neither its best nor "
        "its worst."
    )
    yield "predictions", draw_predictions(typical, task, caption)


def _rows_of_site(
    panels: list[Panel], plan: Plan, site: str, task: Task
) -> tuple[list[PictureRow], list[PictureRow]]:
    """The site's typical image, and those that show its spread from hard to easy."""
    images = test_images(plan.data_folder, site)
    scores = median_scores(panels, site, images, score_of(task))
    chosen = []
    for labels, quantiles in (([site], [TYPICAL]), ([f"{q:.0%}" for q in SPREAD], SPREAD)):
        index = at_quantiles(scores, quantiles)
        answered = ask_all(panels, site, images, index)
        chosen.append(picture_rows(labels[: len(index)], images, index, answered))
    return chosen[0], chosen[1]
