"""Try what joining a federation late would bring."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from konsil.cli import experiments
from konsil.cli.predict import DeviceOption, ModelArgument, load_model
from konsil.cli.terminal import console, problems, progress, say
from konsil.errors import ConfigError

if TYPE_CHECKING:
    from konsil.joining import Joining


def join(
    model: ModelArgument,
    data: Annotated[
        Path,
        typer.Option("--data", metavar="PATH", help="The hospital's federation.yaml, or folder."),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Folder of the trial.")],
    site: Annotated[
        str | None, typer.Option("--site", help="Which one, where the file has several.")
    ] = None,
    epochs: Annotated[
        int, typer.Option(min=1, help="Of fine-tuning, at most: validation images stop it.")
    ] = 15,
    alone: Annotated[
        int | None,
        typer.Option(
            "--alone", min=1, help="Epochs from scratch. Default: as the run's hospitals."
        ),
    ] = None,
    pull: Annotated[
        str,
        typer.Option(
            "--lambda", help="Of SoftPull to the others' mean: auto (by validation), none, 0 to 1."
        ),
    ] = "auto",
    seed: Annotated[
        list[int] | None, typer.Option("--seed", help="As often as wanted. Default: 0.")
    ] = None,
    set_: experiments.SetOption = None,
    resume: experiments.ResumeOption = False,
    json_: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
    device: DeviceOption = "cpu",
    plugin: experiments.PluginOption = None,
) -> None:
    """What would joining late bring us? A specialist from the super model, against going alone.

    Trains here, on this hospital's images; nothing is sent anywhere.
    """
    loaded = load_model(model, device, plugin)
    with console.status("reading"):
        from konsil import api, joining
        from konsil.federation.compute import prepare_process

        seeds = tuple(dict.fromkeys(seed or [0]))
        wanted = joining.Wanted(epochs, alone, lambda_of(pull), seeds)
        e = joining.experiment_of(loaded, data, site, wanted, set_ or [], device)
        prepare_process(e.compute)
        federation = api.open_federation(e.federation, e.task, quiet=True)
    with progress() as report:
        trial = joining.Joining(loaded, e, federation, wanted, report)
        trial.claim(out, resume)
        with experiments.resumable(out):
            _try(trial, out, json_)


def _try(trial: Joining, out: Path, json_: bool) -> None:
    from konsil.evaluation.comparison import compare
    from konsil.report import joining as told

    choices = trial.go(out)
    joined = told.Joined(choices, compare([out], trial.task.main_metric), trial.task)
    told.write_report(joined, out)
    if json_:
        print(json.dumps(told.as_json(joined), indent=1, allow_nan=False))
        problems.print(f"report: {out / told.SUMMARY}", soft_wrap=True)
        return
    for line in (*told.words(joined), ""):
        say(line)
    console.print(told.table(joined))
    for line in told.notes(joined):
        say(line)
    say(f"report: {out / told.SUMMARY}; its own model: {out / 'model'}")


def lambda_of(text: str) -> str | float:
    """auto, none, or a number from 0 to 1."""
    if text in ("auto", "none"):
        return text
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise ConfigError(f"--lambda {text}: auto, none, or a number from 0 to 1")
    return number
