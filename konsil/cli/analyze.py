"""Look deeper into finished runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from konsil.cli.experiments import PluginOption
from konsil.cli.terminal import console, progress, say
from konsil.errors import RunError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from konsil.federation.plan import Job, Plan

app = typer.Typer(help="Look deeper into a finished run.", no_args_is_help=True)
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")]
MethodOption = Annotated[
    str | None, typer.Option("--method", metavar="LABEL", help="Which method of the run.")
]


@app.command()
def cross(run: RunArgument, method: MethodOption = None, plugin: PluginOption = None) -> None:
    """Every site's model on every site's test images: who could borrow whose?"""
    plan = _plan(run, plugin)
    from konsil.report.analysis import cross_scores, cross_table, draw_cross, jobs_of

    label = method or _first(plan, lambda job: bool(plan.method(job).private_roles), "own models")
    jobs = jobs_of(plan, run, label)
    matrix = cross_scores(run, plan, jobs)
    metric = plan.method(jobs[0]).context.task.main_metric
    console.print(cross_table(matrix, label, metric))
    _draw(run / "figures" / f"cross-{label}.png", lambda: draw_cross(matrix, label, metric))


@app.command()
def selector(run: RunArgument, method: MethodOption = None, plugin: PluginOption = None) -> None:
    """Which hospital's images are taken for which, how sure against how right, and a map."""
    plan = _plan(run, plugin)
    from konsil.report import analysis

    label = method or _first(plan, lambda job: plan.method(job).super_model, "a selector")
    jobs = analysis.jobs_of(plan, run, label)
    said = analysis.telling(run, label, list(plan.sites))
    console.print(analysis.selector_table(said, label))
    points = own = None
    if plan.data_folder.is_dir():
        with console.status("looking at test images"):
            features, own = analysis.features_of(run, plan, jobs[0])
            points = analysis.flattened(features)
    else:
        say("no map: the images are not here")
    _draw(
        run / "figures" / f"selector-{label}.png",
        lambda: analysis.draw_selector(said, points, own, label),
    )


@app.command()
def sharpness(
    run: RunArgument,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", metavar="LABEL", help="Only this one; as often as wanted."),
    ] = None,
    batches: Annotated[
        int, typer.Option(min=1, help="Single batches of a site whose eigenvalue is taken.")
    ] = 5,
    plugin: PluginOption = None,
) -> None:
    """How sharp the minima are: the top eigenvalue of the training loss's Hessian."""
    plan = _plan(run, plugin)
    from konsil.report.analysis import Minima, jobs_of, minima_of, minima_table

    labels = method or list(dict.fromkeys(job.method for job in plan.jobs))
    found: Minima = {}
    with progress() as report:
        for label in labels:
            jobs = jobs_of(plan, run, label)
            found |= minima_of(run, plan, jobs, batches, report)
    console.print(minima_table(found))


def _plan(run: Path, plugins: list[Path] | None) -> Plan:
    """The plan of a run, with its plugins."""
    with console.status("reading"):
        from konsil.federation.plan import Plan
        from konsil.federation.runner import read_plan
        from konsil.registry import load_plugins

        load_plugins(plugins or [])
        return Plan.from_json(read_plan(run))


def _first(plan: Plan, holds: Callable[[Job], bool], what: str) -> str:
    """The first method of a run that has what is asked for."""
    found = next((job.method for job in plan.jobs if holds(job)), None)
    if found is None:
        raise RunError(f"no method of this run has {what}")
    return found


def _draw(path: Path, figure: Callable[[], Figure]) -> None:
    from konsil.report.style import look, write_figure

    with look():
        say(f"picture: {write_figure(figure(), path)}")
