"""The figures of a run folder."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from konsil.data import test_images
from konsil.evaluation.results import CLIENT_AVERAGE, GLOBAL, read_results
from konsil.federation.plan import Job, Plan
from konsil.report.answers import Panel, at_quantiles, median_scores
from konsil.report.curves import curves_of, draw_curves, draw_lambdas, lambdas_of
from konsil.report.predictions import PictureRow, draw_predictions, picture_rows
from konsil.report.routes import draw_routes, routes_of
from konsil.report.series import estimates_of
from konsil.report.sites import draw_sites
from konsil.report.style import look, method_colours, write_figure
from konsil.tasks import Task, make_task

TYPICAL = 0.5
SPREAD = (0.10, 0.35, 0.65, 0.90)


def draw_figures(run_folder: Path, plan: Plan) -> list[Path]:
    """Write `figures/*.png` of the jobs that are done: curves, scores by site, answers, routes."""
    paths = {job: run_folder / job.name / "result.json" for job in plan.jobs}
    results = {
        job: json.loads(path.read_text(encoding="utf-8"))
        for job, path in paths.items()
        if path.exists()
    }
    with look():
        return [
            write_figure(figure, run_folder / "figures" / f"{name}.png")
            for name, figure in (_figures(run_folder, plan, results) if results else ())
        ]


def _figures(run_folder: Path, plan: Plan, results: dict[Job, Any]) -> Iterator[tuple[str, Figure]]:
    task = make_task(plan.experiment.task, list(plan.labels))
    colours, found = method_colours(plan.experiment.methods), list(results.values())
    yield "curves", draw_curves(curves_of(found), task.main_metric, colours)
    lambdas = lambdas_of(found)
    if lambdas:
        yield "lambdas", draw_lambdas(lambdas, plan.sites)
    columns = (*plan.sites, CLIENT_AVERAGE, GLOBAL)
    rows = read_results(run_folder / "results.csv")
    lines = estimates_of(rows, task.main_metric, "test", columns)
    yield "sites", draw_sites(lines, plan.sites, task.main_metric, colours)
    if plan.data_folder.is_dir():  # a run between hospitals has no images to show
        yield from _prediction_figures(run_folder, plan, task, list(results))
        yield from _route_figures(run_folder, plan, list(results))


def _route_figures(run_folder: Path, plan: Plan, done: list[Job]) -> Iterator[tuple[str, Figure]]:
    """Whom each super model of the first seed asks."""
    first = [job for job in done if job.seed == done[0].seed and plan.method(job).super_model]
    for job in first:
        routes = routes_of(run_folder, plan, job)
        title = f"{job.method}, seed {job.seed}: who answers the test images of each site"
        name = "routes" if len(first) == 1 else f"routes-{job.method}"
        yield name, draw_routes(routes, tuple(plan.sites), title)


def _prediction_figures(
    run_folder: Path, plan: Plan, task: Task, done: list[Job]
) -> Iterator[tuple[str, Figure]]:
    """One image a site of the first seed, and four of each site."""
    seed = done[0].seed
    panels = [Panel(run_folder, plan, job) for job in done if job.seed == seed]
    typical: list[PictureRow] = []
    for site in plan.sites:
        images = test_images(plan.data_folder, site)
        scores = median_scores(panels, site, images, task)
        typical += picture_rows(panels, site, images, at_quantiles(scores, [TYPICAL]), [site])
        labels = [f"{q:.0%}" for q in SPREAD]
        spread = picture_rows(panels, site, images, at_quantiles(scores, SPREAD), labels)
        caption = (
            f"Site {site}, seed {seed}: test images at the quantiles of the models' median score."
        )
        yield f"predictions-{site}", draw_predictions(spread, task, caption)
    caption = (
        f"Seed {seed}. Of every site the test image with the median score, neither its best nor "
        "its worst."
    )
    yield "predictions", draw_predictions(typical, task, caption)
