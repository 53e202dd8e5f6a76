"""Ask a super model about images."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from konsil.cli.experiments import PluginOption
from konsil.cli.terminal import console, problems, progress, say
from konsil.errors import DataError, RunError

if TYPE_CHECKING:
    from konsil.data.origin import FileSource
    from konsil.data.reading import ImageReading
    from konsil.evaluation.files import SiteScores
    from konsil.supermodel import SuperModel
    from konsil.supermodel.asking import Asked
    from konsil.tasks import Task

ModelArgument = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", help="A super model's folder, or a run's that holds exactly one."
    ),
]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1, ...")]


def predict(
    model: ModelArgument,
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUT...",
            help="Pictures, volumes (NIfTI, MetaImage, NRRD), DICOM series, folders of them.",
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Where the answers go.")],
    ask: Annotated[
        str, typer.Option("--ask", metavar="WHO", help="auto (the selector), global, or a site.")
    ] = "auto",
    compare: Annotated[bool, typer.Option("--compare", help="All answers side by side.")] = False,
    site: Annotated[
        str | None,
        typer.Option("--site", help="Read files as this site's were, where sites differ."),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(
            metavar="LOW,HIGH", help="Black and white, if not as in training; or LOW%,HIGH%; full."
        ),
    ] = None,
    view: Annotated[
        str | None, typer.Option(help="axial, coronal or sagittal, if not as in training.")
    ] = None,
    channel: Annotated[
        int | None, typer.Option(min=0, help="Which volume of a file of several.")
    ] = None,
    series: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="Which DICOM series of a folder of several."),
    ] = None,
    overlays: Annotated[
        bool, typer.Option("--overlays/--no-overlays", help="Pictures with the masks on them.")
    ] = True,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace answers that are there already.")
    ] = False,
    device: DeviceOption = "cpu",
    plugin: PluginOption = None,
) -> None:
    """Ask a super model about images: masks, pictures, and who answered how surely.

    Exit code 1: some files could not be answered; they are named at the end.
    """
    from konsil.supermodel.asking import TABLE, Wanted, ask_about

    if (out / TABLE).exists() and not overwrite:
        raise RunError(f"{out}: has answers already; choose another folder, or --overwrite")
    loaded = load_model(model, device, plugin)
    said = {"window": window, "view": view, "channel": channel, "series": series}
    reading = reading_of(loaded, site, {key: v for key, v in said.items() if v is not None})
    from konsil.prepare.inputs import find_inputs

    found = find_inputs(inputs)
    with progress() as report:
        asked = ask_about(loaded, found, out, Wanted(reading, ask, compare, overlays), report)
    _tell(asked, out / TABLE, ask)
    if asked.failed:
        raise typer.Exit(1)


def load_model(path: Path, device: str, plugins: list[Path] | None) -> SuperModel:
    """The super model of a folder, with a word that it takes a while."""
    with console.status("loading"):
        from konsil import api
        from konsil.registry import load_plugins

        load_plugins(plugins or [])
        return api.load(path, device)


def reading_of(model: SuperModel, site: str | None, said: dict[str, Any]) -> ImageReading:
    """How files are read: as in training but for what the command line says."""
    from konsil.supermodel.asking import reading_as

    try:
        model.reading(site)
    except DataError as error:  # the sites differ, unless it is said as whose
        raise DataError(f"{error}: --site NAME") from None
    try:
        return reading_as(model, site, said)
    except DataError as error:
        raise DataError(f"--{error}") from None


def _tell(asked: Asked, table: Path, ask: str) -> None:
    """Who answered, what to know, and last what went wrong."""
    rows = [row for row in asked.rows if row["ask"] == ask]
    who = Counter(row["asked"] for row in rows)
    counts = ", ".join(f"{name} {count}" for name, count in who.most_common())
    planes = "" if len(rows) == len(asked.answered) else f", {len(rows)} planes"
    files = "file" if len(asked.answered) == 1 else "files"
    if rows:
        say(f"{len(asked.answered)} {files}{planes}; asked: {counts}")
    foreign = sum(row["unfamiliar"] == "yes" for row in rows)
    if foreign:
        say(f"{foreign} of {len(rows)} are like no site's images: look at them before you trust")
    for note, names in asked.notes.items():
        say(f"note: {note}: {_some(names)}")
    say(f"answers: {table}")
    for name, why in asked.failed.items():
        problems.print(f"not answered: {name}: {why}", soft_wrap=True, markup=False)


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def evaluate(
    model: ModelArgument,
    data: Annotated[
        Path,
        typer.Option(
            "--data", metavar="PATH", help="A federation.yaml, or the folder that holds it."
        ),
    ],
    ask: Annotated[
        str, typer.Option("--ask", metavar="WHO", help="auto (the selector), global, or a site.")
    ] = "auto",
    split: Annotated[
        str | None,
        typer.Option(help="Only train, val or test, as the file's rules divide the images."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="Leave a report there.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a report that is there already.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
    device: DeviceOption = "cpu",
    plugin: PluginOption = None,
) -> None:
    """Measure a super model on labelled images, also of hospitals that took no part.

    Nothing that is printed or left names a file or a patient, and nothing is sent anywhere.
    """
    loaded = load_model(model, device, plugin)
    from konsil.evaluation.files import score_files
    from konsil.supermodel.asking import check_known

    check_known(loaded, ask)
    if split not in (None, "train", "val", "test"):
        raise RunError(f"--split {split}: train, val or test")
    source = labelled(data, loaded)
    compute_as_trained(loaded, device)
    from konsil.report import evaluation as told

    if out is not None:
        told.claim(out, overwrite)
    with progress() as report:
        scored = score_files(loaded, source, ask, report, split)
    task = make_task_of(loaded)
    if json_:
        print(json.dumps(told.as_json(loaded, scored, ask, task), indent=1, allow_nan=False))
    else:
        _print_scores(loaded, scored, ask, task)
    if out is not None:
        told.write_report(out, loaded, scored, ask, task)
        (problems.print if json_ else say)(f"report: {out / told.SUMMARY}")


def compute_as_trained(model: SuperModel, device: str) -> None:
    """This process computes with as many threads as the run did: so are the bits its own."""
    from konsil.config import ComputeConfig
    from konsil.federation.compute import prepare_process

    told = model.facts.provenance.get("compute", {})
    threads = told.get("threads", 1) if isinstance(told, dict) else 1
    prepare_process(ComputeConfig(device=device, threads=threads))


def make_task_of(model: SuperModel) -> Task:
    """What a model has learned, which knows its metrics."""
    from konsil.config import TaskConfig
    from konsil.tasks import make_task

    return make_task(TaskConfig(name=model.facts.task), model.facts.labels)


def _print_scores(model: SuperModel, scored: list[SiteScores], ask: str, task: Task) -> None:
    from konsil.report.evaluation import scores_table, words

    console.print(scores_table(scored, task, model.facts.network["image_size"]))
    for one in scored:
        for line in words(model, one, ask, task):
            say(line)
        say("")


def labelled(path: Path, model: SuperModel) -> FileSource:
    """A federation file, opened at the model's size."""
    from konsil.config import FederationConfig, TaskConfig
    from konsil.data.manifest import read_manifest
    from konsil.data.origin import FileSource, kind_of

    manifest, task = read_manifest(path), TaskConfig(name=model.facts.task)
    if manifest.task != kind_of(task):
        raise DataError(
            f"{manifest.path}: describes a {manifest.task}, and the model is for {task.name}"
        )
    network = model.facts.network
    size, channels = network["image_size"], network["in_channels"]
    config = FederationConfig(file=manifest.path, image_size=size, channels=channels)
    return FileSource(manifest, config, task)
