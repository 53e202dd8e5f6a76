"""Compare methods: whose answers are better, for which hospital, and how sure that is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from konsil.cli import experiments
from konsil.cli.terminal import console, progress, say
from konsil.errors import RunError

if TYPE_CHECKING:
    from konsil.evaluation.comparison import Comparison
    from konsil.evaluation.levels import Levels
    from konsil.redrawn import Draws
    from konsil.report.means import Means
    from konsil.report.runs import Runs
    from konsil.tasks import Task

AUC = "auc"


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
    paper: Annotated[
        bool, typer.Option("--paper", help="And the papers' numbers, if the task is theirs.")
    ] = False,
    set_: experiments.SetOption = None,
    overlay: experiments.OverlayOption = None,
    plugin: experiments.PluginOption = None,
    out: experiments.OutOption = None,
    resume: experiments.ResumeOption = False,
    split_seed: experiments.SplitSeedOption = None,
) -> None:
    """Hold methods against each other on the same test images, with intervals and tests."""
    folders = _trained(runs, set_, overlay, plugin, out, resume, split_seed)
    with console.status("reading"):
        from konsil.redrawn import draws_of
        from konsil.report import means

        draws = draws_of(folders)
        task = task_of(draws.folders[0], plugin)
    metric = metric or task.main_metric
    less = metric in task.lower_is_better
    if len(draws.by_seed) > 1 or means.tells_images(draws.folders):
        found = _compared(draws, metric, structure)
        _compare_images(draws, found, (metric, structure), less, against, site, json_)
        if paper and not json_:
            _show_papers(draws.folders, f"{metric}_{structure}" if structure else metric, found)
    else:
        told = means.means_of(draws.folders, metric, structure)
        _check_column(site, told.columns)
        say(means.as_json(told, against, less)) if json_ else _print_means(told, less, against)


def _compare_images(
    draws: Draws,
    found: Comparison,
    what: tuple[str, str | None],
    less: bool,
    against: str | None,
    site: str | None,
    json_: bool,
) -> None:
    """From single images' scores; of sites that let means out alone, what means can say."""
    from konsil.evaluation.results import CLIENT_AVERAGE
    from konsil.report import means
    from konsil.report.compare import as_json, print_comparison

    silent, why = None, ""
    _check_column(site, found.compared.columns)
    try:
        if len(draws.by_seed) == 1:
            silent = means.silent_means_of(draws.folders, *what, found.compared.sites)
    except RunError as error:  # means cannot say everything
        why = f"of sites that let means out alone: {error}"
    if json_:
        said = json.loads(as_json(found, against, less))
        if silent is not None:
            said["means_alone"] = json.loads(means.as_json(silent, against, less))
        say(json.dumps(said, indent=1))
        return
    print_comparison(console, found, what[0], less, against, site or CLIENT_AVERAGE)
    if silent is not None:
        _print_means(silent, less, against)
    elif why:
        console.print(why, highlight=False, soft_wrap=True)


def _show_papers(folders: list[Path], metric: str, found: Comparison) -> None:
    """Beside the papers' tables; of folds of `konsil unseen` beside those of unseen clients."""
    from konsil.federation.plan import Plan
    from konsil.federation.runner import read_plan
    from konsil.report.papers import means_of, papers_beside

    plans = [Plan.from_json(read_plan(folder), methods=False) for folder in folders]
    unseen = any(any(folder.glob("without-*")) for folder in folders)
    tables = list(papers_beside(plans, metric, means_of(found), unseen))
    for _, table in tables:
        console.print(table)
    if not tables:
        say(f"neither paper has a table of this task by {metric} with two of these methods")


def _check_column(site: str | None, columns: Sequence[str]) -> None:
    if site is not None and site not in columns:
        raise RunError(f"--site {site}: one of {', '.join(columns)}")


def _print_means(found: Means, less: bool, against: str | None) -> None:
    """What means alone can say, and why there is no more."""
    from konsil.report import means

    console.print(means.means_table(found, less))
    if len(found.candidates) > 1:
        console.print(means.gains_table(found, against))
    for line in means.notes(found):
        console.print(line, highlight=False, soft_wrap=True)


def _compared(draws: Draws, metric: str, structure: str | None) -> Comparison:
    """On the same images; or on those of several draws of the splits."""
    from konsil.evaluation.comparison import compare as compared
    from konsil.evaluation.comparison import compare_draws

    by_seed = {
        seed: compared(folders, metric, structure) for seed, folders in draws.by_seed.items()
    }
    if len(by_seed) == 1:
        return next(iter(by_seed.values()))
    return compare_draws(by_seed, draws.overlap)


def task_of(folder: Path, plugins: list[Path] | None) -> Task:
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
    overlay: list[Path] | None,
    plugin: list[Path] | None,
    out: Path | None,
    resume: bool,
    split_seed: list[int] | None,
) -> list[Path]:
    """The run folders; of an experiment file the one that it leaves."""
    if runs[0].suffix not in (".yaml", ".yml"):
        if set_ or overlay or out or resume or split_seed:
            raise RunError(
                "--set, --overlay, --out, --resume and --split-seed go with an experiment file"
            )
        return runs
    if len(runs) > 1:
        raise RunError(f"{runs[1]}: one experiment file, or any number of run folders")
    from konsil import api
    from konsil.config import read_experiment

    checked = read_experiment(runs[0], set_ or [], plugin or [], overlay or [])
    folder = api.run_folder(checked, out)
    experiments.run(runs[0], set_, plugin, folder, resume, split_seed=split_seed, overlay=overlay)
    return [folder]


def unseen(
    experiment: experiments.FileArgument,
    site: Annotated[
        list[str] | None,
        typer.Option("--site", help="Leave only this one out; as often as wanted."),
    ] = None,
    set_: experiments.SetOption = None,
    overlay: experiments.OverlayOption = None,
    plugin: experiments.PluginOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder. Default: runs/<name>-unseen.")
    ] = None,
    resume: experiments.ResumeOption = False,
) -> None:
    """Leave every hospital out in turn: what are the others' models worth there?"""
    from konsil.config import read_experiment

    checked = read_experiment(experiment, set_ or [], plugin or [], overlay or [])
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

    task = task_of(folder, plugin)
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


def personalise(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="A run's folder, or that of konsil unseen; or an experiment file, trained first.",
        ),
    ],
    epochs: Annotated[
        list[int] | None,
        typer.Option(
            "--epochs", min=0, help="Ask after so many; as often as wanted. Default: 1, 7 and 15."
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", metavar="LABEL", help="Only this one; as often as wanted."),
    ] = None,
    per_site: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Test images of each site in the global set. Default: as many as the smallest.",
        ),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="Default: the task's own; of two classes also auc.")
    ] = None,
    structure: Annotated[
        str | None, typer.Option(help="One structure instead of the mean of all.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="WHO", help="Whom to hold all others against. Default: FedAvg."),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="For machines: all numbers.")] = False,
    set_: experiments.SetOption = None,
    overlay: experiments.OverlayOption = None,
    plugin: experiments.PluginOption = None,
    out: experiments.OutOption = None,
    resume: experiments.ResumeOption = False,
) -> None:
    """Train models further at each hospital: what is gained at home, and lost elsewhere?"""
    (folder,) = _trained([run], set_, overlay, plugin, out, resume, None)
    with console.status("reading"):
        from konsil import personalise as protocol
        from konsil.evaluation.levels import levels
        from konsil.report.levels import as_json

        task = task_of(folder, plugin)
    wanted = sorted({0, *(protocol.PUBLISHED if epochs is None else epochs)})
    how = "the same command" if folder == run else "the same command with --resume"
    with experiments.resumable(folder, how), progress() as report:
        methods = protocol.personalise(folder, wanted, method or (), report)
    usual = [task.main_metric, *(name for name in task.metrics if name == AUC)]
    with console.status("comparing"):
        found = {
            name: levels(folder / protocol.FILE, name, structure, per_site, wanted, methods)
            for name in ([metric] if metric else usual)
        }
        text = as_json(found, against)
    if json_:
        say(text)
    else:
        _show_levels(folder, found, task, against)


def _show_levels(folder: Path, found: dict[str, Levels], task: Task, against: str | None) -> None:
    from konsil.federation.plan import Plan
    from konsil.federation.runner import read_plan
    from konsil.report.levels import draw_levels, notes, print_levels, reference_in
    from konsil.report.style import look, method_colours, write_figure

    plan = Plan.from_json(read_plan(folder), methods=False)
    colours = method_colours(plan.experiment.methods)
    for metric, own in found.items():
        less = metric in task.lower_is_better
        print_levels(console, own, metric, less, reference_in(own, against))
    for line in notes(next(iter(found.values()))):
        console.print(line, highlight=False, soft_wrap=True)
    for metric, own in found.items():
        with look():
            figure = draw_levels(own, metric, colours)
            say(f"picture: {write_figure(figure, folder / 'figures' / f'levels-{metric}.png')}")


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
