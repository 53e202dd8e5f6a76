"""Compare methods: whose answers are better, for which hospital, and how sure that is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from konsil.cli import experiments
from konsil.cli.terminal import console, say
from konsil.errors import RunError

if TYPE_CHECKING:
    from konsil.report.runs import Runs
    from konsil.tasks import Task


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Run folders; or one experiment file, which is trained first."
        ),
    ],
    metric: Annotated[
        str | None, typer.Option(help="dice, hd95, accuracy, auc, ... Default: the task's own.")
    ] = None,
    structure: Annotated[
        str | None, typer.Option(help="One structure instead of the mean of all.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="WHO", help='Whom to hold all others against, e.g. "fedavg global".'),
    ] = None,
    site: Annotated[
        str | None, typer.Option(help="One hospital, or global (all images), instead of the mean.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="For machines: all numbers.")] = False,
    set_: experiments.SetOption = None,
    plugin: experiments.PluginOption = None,
    out: experiments.OutOption = None,
    resume: experiments.ResumeOption = False,
) -> None:
    """Hold methods against each other on the same test images, with intervals and tests."""
    folders = _trained(runs, set_, plugin, out, resume)
    with console.status("reading"):
        from konsil.evaluation.comparison import compare as compared
        from konsil.evaluation.results import CLIENT_AVERAGE
        from konsil.report.compare import as_json, print_comparison

        task = _task(folders[0], plugin)
    metric = metric or task.main_metric
    found = compared(folders, metric, structure)
    column = site or CLIENT_AVERAGE
    if column not in found.compared.columns:
        raise RunError(f"--site {site}: one of {', '.join(found.compared.columns)}")
    less = metric in task.lower_is_better
    if json_:
        say(as_json(found, against, less))
    else:
        print_comparison(console, found, metric, less, against, column)


def _task(folder: Path, plugins: list[Path] | None) -> Task:
    """What a run has learned, which knows its metrics."""
    from konsil.federation.plan import Plan
    from konsil.federation.runner import read_plan
    from konsil.registry import load_plugins
    from konsil.tasks import make_task

    plan = Plan.from_json(read_plan(folder), methods=False)
    load_plugins(plugins or [])  # a task of one's own
    return make_task(plan.experiment.task, list(plan.labels))


def _trained(
    runs: list[Path],
    set_: list[str] | None,
    plugin: list[Path] | None,
    out: Path | None,
    resume: bool,
) -> list[Path]:
    """The run folders; of an experiment file the one that it leaves."""
    if runs[0].suffix not in (".yaml", ".yml"):
        if set_ or out or resume:
            raise RunError("--set, --out and --resume go with an experiment file")
        return runs
    if len(runs) > 1:
        raise RunError(f"{runs[1]}: one experiment file, or any number of run folders")
    from konsil import api
    from konsil.config import read_experiment

    folder = api.run_folder(read_experiment(runs[0], set_ or [], plugin or []), out)
    experiments.run(runs[0], set_, plugin, folder, resume)
    return [folder]


def unseen(
    experiment: experiments.FileArgument,
    site: Annotated[
        list[str] | None,
        typer.Option("--site", help="Leave only this one out; as often as wanted."),
    ] = None,
    set_: experiments.SetOption = None,
    plugin: experiments.PluginOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder. Default: runs/<name>-unseen.")
    ] = None,
    resume: experiments.ResumeOption = False,
) -> None:
    """Leave every hospital out in turn: what are the others' models worth there?"""
    from konsil.config import read_experiment

    checked = read_experiment(experiment, set_ or [], plugin or [])
    folder = out or Path("runs") / f"{checked.name}-unseen"
    with console.status("starting"):
        from konsil import unseen as protocol
    with experiments.resumable(folder):
        protocol.unseen(checked, folder, resume, console, site or ())
    _show_unseen(folder, plugin)


def _show_unseen(folder: Path, plugin: list[Path] | None) -> None:
    from konsil.evaluation.comparison import compare as compared
    from konsil.evaluation.results import CLIENT_AVERAGE
    from konsil.evaluation.scores import FILE
    from konsil.report.compare import print_comparison, reference_of
    from konsil.report.style import look, write_figure
    from konsil.report.unseen import asked_by_site, asked_table, draw_gamma

    task = _task(folder, plugin)
    metric = task.main_metric
    found = compared([folder], metric)
    against = found.candidates[reference_of(found)].name
    less = metric in task.lower_is_better
    say("\neach column: the test images of a hospital that the models have not seen\n")
    print_comparison(console, found, metric, less, against, CLIENT_AVERAGE)
    for method, by_site in asked_by_site(folder / FILE, metric).items():
        console.print(asked_table(method, by_site, metric))
        with look():
            figure = draw_gamma(method, by_site, metric)
            say(f"picture: {write_figure(figure, folder / 'figures' / f'gamma-{method}.png')}")


RunsArgument = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Run folders, and those of `unseen`.")
]
PageOption = Annotated[
    Path | None,
    typer.Option("-o", "--out", metavar="FILE", help="Default: report.html in the first run."),
]
UnseenOption = Annotated[
    list[Path] | None,
    typer.Option(metavar="FOLDER", help="What `konsil unseen` left; as often as wanted."),
]
FormatOption = Annotated[
    str, typer.Option("--format", help="html; or one table as markdown, latex or csv, printed.")
]
TableOption = Annotated[
    str | None,
    typer.Option(help="Which: scores, means, differences, or a metric. Default: the first."),
]
FiguresOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Write every figure of the page there, as PNG and SVG."),
]
ImagesOption = Annotated[
    bool, typer.Option("--images/--no-images", help="With pictures of patients' images.")
]


def report(
    runs: RunsArgument,
    out: PageOption = None,
    unseen: UnseenOption = None,
    format_: FormatOption = "html",
    table: TableOption = None,
    figures: FiguresOption = None,
    images: ImagesOption = True,
    plugin: experiments.PluginOption = None,
) -> None:
    """Answer "does joining help us?" on one page that needs nothing else to be read."""
    with console.status("reading"):
        from konsil.registry import load_plugins
        from konsil.report.page import write_figures, write_page
        from konsil.report.runs import open_runs
        from konsil.report.tables import FORMATS

        load_plugins(plugin or [])
        opened = open_runs(runs, unseen or [])
    if format_ not in ("html", *FORMATS):
        raise RunError(f"--format {format_}: html, {', '.join(FORMATS)}")
    if figures is not None:
        with console.status("drawing"):
            written = write_figures(opened, figures, images)
        say(f"figures: {figures} ({len(written)} files)")
    if format_ != "html":
        _print_table(opened, format_, table, out)
    elif table is not None:
        raise RunError(f"--table {table} goes with --format markdown, latex or csv")
    elif figures is None or out is not None:
        path = out or runs[0] / "report.html"
        with console.status("drawing"):
            write_page(opened, path, images)
        say(f"page: {path}")


def _print_table(runs: Runs, format_: str, table: str | None, out: Path | None) -> None:
    """One table of the page, in the form of papers and programs."""
    from konsil.files import write_text
    from konsil.report.page import Page
    from konsil.report.page_tables import chosen_table
    from konsil.report.tables import FORMATS

    text = FORMATS[format_](chosen_table(runs, Page(runs).found, table).table)
    if out is None:
        print(text, end="")
    else:
        write_text(out, text)
