"""Look deeper into finished runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from konsil.cli.experiments import PluginOption
from konsil.cli.terminal import console, progress, say
from konsil.errors import RunError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from konsil.federation.plan import Job, Plan
    from konsil.report.surfaces import Extent
    from konsil.report.terrain import Kept, Terrain

app = typer.Typer(help="Look deeper into a finished run.", no_args_is_help=True)
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")]
MethodOption = Annotated[
    str | None, typer.Option("--method", metavar="LABEL", help="Which method of the run.")
]

MethodsOption = Annotated[
    list[str] | None,
    typer.Option("--method", metavar="LABEL", help="Only this one; as often as wanted."),
]
AgainOption = Annotated[
    bool, typer.Option("--again", help="Compute what is known from earlier calls again.")
]

HardestOption = Annotated[
    str | None,
    typer.Option(
        "--site",
        metavar="SITE",
        help="On whose images; by default the site whose validation images are answered worst.",
    ),
]
PlaneOption = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,C",
        help='The plane through three models instead, as "fedavg global,fedsm personal,local".',
    ),
]
DirectionsOption = Annotated[int, typer.Option(min=1, help="How many random directions.")]
RadiusOption = Annotated[
    float, typer.Option(min=1e-6, help="How far along them; they have length 1.")
]
PointsOption = Annotated[
    int | None,
    typer.Option(min=3, help="On a direction, an odd number (41); of a plane's grid a side (21)."),
]
SeedOption = Annotated[
    int | None,
    typer.Option(help="Of the models (by default the first); directions are drawn from it."),
]
RecomputeOption = Annotated[
    bool,
    typer.Option(
        "--recompute", help="Batch norm's statistics anew at every place, by training images."
    ),
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
    method: MethodsOption = None,
    batches: Annotated[
        int, typer.Option(min=1, help="Single batches of a site whose eigenvalue is taken.")
    ] = 5,
    again: AgainOption = False,
    plugin: PluginOption = None,
) -> None:
    """How sharp the minima are: the top eigenvalue of the training loss's Hessian."""
    plan = _plan(run, plugin)
    from konsil.report import minima
    from konsil.report.analysis import jobs_of
    from konsil.report.terrain import Terrain

    terrain, kept = Terrain(run, plan), minima.kept_minima(run, again)
    with progress() as report:
        found = [
            one
            for label in method or _labels(plan)
            for one in minima.find_minima(terrain, jobs_of(plan, run, label), batches, kept, report)
        ]
    console.print(minima.minima_table(found))
    _say_kept(kept)
    everything = list(kept.rows.values())
    _draw(run / "figures" / "sharpness.png", lambda: minima.draw_minima(everything, plan))


@app.command()
def surface(
    run: RunArgument,
    method: MethodsOption = None,
    site: HardestOption = None,
    plane: PlaneOption = None,
    directions: DirectionsOption = 10,
    radius: RadiusOption = 20.0,
    points: PointsOption = None,
    seed: SeedOption = None,
    recompute: RecomputeOption = False,
    again: AgainOption = False,
    plugin: PluginOption = None,
) -> None:
    """The training loss around models: along random directions, or in the plane through three."""
    plan = _plan(run, plugin)
    from konsil.report.surfaces import Extent

    terrain = _terrain(run, plan, recompute)
    if plane is not None:
        _plane(terrain, plane, terrain.site(site), points or 21, recompute, again)
        return
    if recompute:
        raise RunError("--recompute: along random directions running statistics stay; add --plane")
    extent = Extent(directions, radius, points or 41)
    _surface(terrain, method or _labels(plan), terrain.site(site), extent, seed, again)


def _surface(
    terrain: Terrain, labels: list[str], site: str, extent: Extent, seed: int | None, again: bool
) -> None:
    from konsil.report import surfaces
    from konsil.report.terrain import file_name

    models = [one for label in labels for one in terrain.of_seed(label, seed)]
    kept = surfaces.kept_surface(terrain.folder, site, again)
    with progress() as report:
        found = surfaces.find_surfaces(terrain, models, site, extent, kept, report)
    console.print(surfaces.surface_table(found, site, extent))
    _say_kept(kept)
    _draw(
        terrain.folder / "figures" / f"{file_name('surface', site)}.png",
        lambda: surfaces.draw_surfaces(found, site, extent, terrain.plan),
    )


def _plane(
    terrain: Terrain, names: str, site: str, points: int, recompute: bool, again: bool
) -> None:
    from konsil.report import planes

    trio = replace(planes.Trio.of(terrain, names, site), recompute=recompute)
    kept = planes.kept_plane(terrain.folder, trio, again)
    with progress() as report:
        planes.find_plane(terrain, trio, points, kept, report)
    metric = terrain.task.main_metric
    console.print(planes.plane_table(trio, kept, metric))
    _say_kept(kept)
    _draw(
        terrain.folder / "figures" / f"{trio.file}.png",
        lambda: planes.draw_plane(trio, points, kept, metric),
    )


@app.command()
def interpolate(
    run: RunArgument,
    a: Annotated[str, typer.Argument(help='A model by its line in tables, as "fedavg global".')],
    b: Annotated[str, typer.Argument(help='Another one; "fedavg global@1" is of seed 1.')],
    site: Annotated[
        str | None, typer.Option(metavar="SITE", help="At one site instead of at all of them.")
    ] = None,
    points: Annotated[int, typer.Option(min=3, help="How many places on the line.")] = 21,
    recompute: RecomputeOption = False,
    again: AgainOption = False,
    plugin: PluginOption = None,
) -> None:
    """The loss on the straight line between two models, and the barrier between them."""
    plan = _plan(run, plugin)
    from konsil.report import interpolation

    terrain = _terrain(run, plan, recompute)
    line = replace(interpolation.Line.of(terrain, a, b, site, points), recompute=recompute)
    kept = interpolation.kept_line(run, line, again)
    with progress() as report:
        interpolation.find_line(terrain, line, kept, report)
    metric = terrain.task.main_metric
    console.print(interpolation.line_table(line, kept, metric))
    _say_kept(kept)
    _draw(run / "figures" / f"{line.file}.png", lambda: interpolation.draw_line(line, kept, metric))


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


def _terrain(run: Path, plan: Plan, recompute: bool) -> Terrain:
    """What a run has left; RunError if statistics are to be recomputed that nobody has."""
    from konsil.report.terrain import Terrain

    terrain = Terrain(run, plan)
    if recompute:
        terrain.check_recomputes()
    return terrain


def _labels(plan: Plan) -> list[str]:
    """All methods of a run."""
    return list(dict.fromkeys(job.method for job in plan.jobs))


def _say_kept(kept: Kept[Any]) -> None:
    """Where the numbers are, and that not all of them are new."""
    old = f" ({kept.old} numbers were known; --again computes them anew)" if kept.old else ""
    say(f"numbers: {kept.path}{old}")


def _draw(path: Path, figure: Callable[[], Figure]) -> None:
    from konsil.report.style import look, write_figure

    with look():
        say(f"picture: {write_figure(figure(), path)}")
