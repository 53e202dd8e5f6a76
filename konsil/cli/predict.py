"""Ask a super model about images."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table

from konsil.cli.experiments import PluginOption
from konsil.cli.terminal import console, problems, progress, say
from konsil.errors import DataError, RunError

if TYPE_CHECKING:
    from konsil.data.origin import FileSource
    from konsil.data.reading import ImageReading
    from konsil.evaluation.files import SiteScores
    from konsil.supermodel import SuperModel
    from konsil.supermodel.asking import Asked

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
    json_: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
    device: DeviceOption = "cpu",
    plugin: PluginOption = None,
) -> None:
    """Measure a super model on labelled images, also of hospitals that took no part."""
    loaded = load_model(model, device, plugin)
    from konsil.evaluation.files import score_files
    from konsil.supermodel.asking import check_known

    check_known(loaded, ask)
    source = labelled(data, loaded)
    with progress() as report:
        scores = score_files(loaded, source, ask, report)
    if json_:
        print(json.dumps([vars(one) for one in scores], indent=1))
        return
    _print_scores(scores, loaded.facts.network["image_size"])


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


def _print_scores(scores: list[SiteScores], size: int) -> None:
    metrics = [name for name in scores[0].scores if not name.startswith("_")]
    head = [f"{name}, {size} px" for name in metrics] if scores[0].own_size else metrics
    own = [f"{name}, own size" for name in metrics if name in scores[0].own_size]
    right = [Column(name, justify="right") for name in ("images", *head, *own)]
    table = Table("site", *right, "asked")
    for one in scores:
        values = [f"{one.scores[name]:.3f}" if name in one.scores else "" for name in metrics]
        values += [f"{value:.3f}" for value in one.own_size.values()]
        asked = ", ".join(f"{who} {count}" for who, count in one.asked.items())
        foreign = f"; {one.unfamiliar} like no site's" if one.unfamiliar else ""
        table.add_row(one.site, str(one.images), *values, f"{asked}{foreign}")
    console.print(table)
