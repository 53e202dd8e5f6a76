"""Search settings on validation images, and test what was chosen."""

from pathlib import Path
from typing import Annotated

import typer

from konsil.cli import compare, experiments
from konsil.cli.terminal import console, say


def sweep(
    experiment: experiments.FileArgument,
    try_: Annotated[
        list[str],
        typer.Option(
            "--try",
            metavar="KEY=VALUES",
            help="Values of a key, as --set takes it: training.lr=1e-4,1e-3, or with --trials also "
            "a range, 1e-4..1e-2; as often as wanted.",
        ),
    ],
    trials: Annotated[
        int | None,
        typer.Option(
            "--trials",
            min=1,
            help="So many trials a method, proposed by Optuna, instead of all combinations.",
        ),
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option("--seed", help="Of the search; as often as wanted. Default: the file's."),
    ] = None,
    set_: experiments.SetOption = None,
    overlay: experiments.OverlayOption = None,
    plugin: experiments.PluginOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the search. Default: runs/<name>-sweep.")
    ] = None,
    resume: experiments.ResumeOption = False,
) -> None:
    """Choose any settings of every method on validation images; test the choice once."""
    from konsil.config import read_experiment

    checked = read_experiment(experiment, set_ or [], plugin or [], overlay or [])
    with console.status("starting"):
        from konsil import sweep as search
        from konsil.evaluation.comparison import compare as compared
        from konsil.evaluation.results import CLIENT_AVERAGE
        from konsil.report.compare import print_comparison

    folder = out or Path("runs") / f"{checked.name}-sweep"
    wanted = search.Sweep.of(checked, try_, trials, seed or ())
    with experiments.resumable(folder):
        runs = search.sweep(wanted, folder, resume, console)
    say("\nwhat was chosen, on test images\n")
    task = compare.task_of(runs[0], plugin)
    found = compared(runs, task.main_metric)
    less = task.main_metric in task.lower_is_better
    print_comparison(console, found, task.main_metric, less, None, CLIENT_AVERAGE)
    say(f"the page: konsil report {' '.join(map(str, runs))}")
