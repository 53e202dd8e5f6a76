"""Look at data before training: describe, check, preview, import."""

import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from konsil.cli.terminal import console, progress, say

app = typer.Typer(
    help="Describe, check, preview and import the images of hospitals.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Source = Annotated[
    Path, typer.Argument(metavar="PATH", help="A federation.yaml, or the folder that holds it.")
]
Sites = Annotated[
    list[str] | None, typer.Option("--site", help="Only this site; as often as wanted.")
]
AsJson = Annotated[bool, typer.Option("--json", help="For machines.")]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The images of all sites.")],
    task: Annotated[
        str | None, typer.Option(help="segmentation or classification. Default: what it looks like")
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(metavar="GLOB", help="Which files are images, e.g. '{site}/photos/*.jpg'."),
    ] = None,
    masks: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB",
            help="Their masks, e.g. '{site}/drawn/*_m.png'; disc=GLOB and cup=GLOB for one each.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a federation.yaml that is there.")
    ] = False,
) -> None:
    """Write a first federation.yaml from what a folder holds, or from what you say of it."""
    from konsil.prepare.guess import write_first_file

    with progress() as report:
        first = write_first_file(folder, task, overwrite, report, images, masks or [])
    say(first.in_words())


@app.command()
def check(
    path: Source = Path(),
    site: Sites = None,
    image_size: Annotated[
        int, typer.Option(min=16, help="Pixels a side that an experiment will give images.")
    ] = 64,
    json_: AsJson = False,
) -> None:
    """Open every file once and say what is wrong, odd, or double. Exit code 1: errors."""
    from konsil.prepare.check import check_federation
    from konsil.prepare.check.show import print_check

    with progress() as report:
        result = check_federation(path, site, report, image_size)
    if json_:
        print(json.dumps(result.to_json(), indent=1))
    else:
        print_check(console, result)
    if not result.ok:
        raise typer.Exit(1)


@app.command()
def preview(
    path: Source = Path(),
    out: Annotated[Path, typer.Option("--out", help="The page.")] = Path("preview.html"),
    site: Sites = None,
    images: Annotated[int, typer.Option(min=1, help="Pictures a site.")] = 24,
) -> None:
    """Write one HTML page: pictures with outlines, histograms, how far the sites are apart."""
    from konsil.prepare.preview import write_preview

    with progress() as report:
        page = write_preview(path, out, sites=site, images=images, report=report)
    say(f"{page}: open it in a browser. It shows images of patients: keep it safe.")


@app.command("import")
def import_(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A data set; without it, all are listed.")
    ] = None,
    source: Annotated[
        Path | None, typer.Argument(metavar="SRC", help="The folder that was downloaded.")
    ] = None,
    dest: Annotated[
        Path | None, typer.Argument(metavar="DEST", help="The federation; it may have sites.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace sites that are there already.")
    ] = False,
    splits: Annotated[
        str, typer.Option(help="drawn, or given: the data set's own, where it has them.")
    ] = "drawn",
    crop: Annotated[
        float | None, typer.Option(help="A square so many times the optic disc's diameter wide.")
    ] = None,
    release: Annotated[str | None, typer.Option(help="Of a set published several times.")] = None,
    images: Annotated[int | None, typer.Option(help="A random subset of this size.")] = None,
    seed: Annotated[int, typer.Option(help="Of the subset.")] = 0,
    link: Annotated[bool, typer.Option("--link", help="Hard links instead of copies.")] = False,
    centres: Annotated[
        bool, typer.Option("--centres", help="A site for each centre that can be told apart.")
    ] = False,
    plugin: Annotated[
        list[Path] | None,
        typer.Option("--plugin", metavar="FILE.py", help="An importer of your own."),
    ] = None,
    json_: AsJson = False,
) -> None:
    """Bring a public data set into the common form. Without SRC: what it is and where to get it."""
    from konsil.prepare.importers import Options, import_dataset
    from konsil.registry import load_plugins

    load_plugins(plugin or [])
    if source is None or name is None:
        _print_importers(name)
        return
    if dest is None:
        raise typer.BadParameter("missing: the folder of the federation", param_hint="DEST")
    if splits not in ("drawn", "given"):
        raise typer.BadParameter("drawn or given", param_hint="--splits")
    options = Options(overwrite, splits, crop, release, images, seed, link, centres)  # type: ignore[arg-type]
    with progress() as report:
        made = import_dataset(name, source, dest, options, report)
    if json_:
        print(json.dumps(made.to_json(), indent=1))
    else:
        say(made.text())


def _print_importers(name: str | None) -> None:
    """One data set in full, or all in a table."""
    from konsil.prepare.importers import IMPORTERS

    if name is not None:
        say(IMPORTERS.find(name, "konsil data import").describe())
        return
    table = Table("name", "data set", "sites")
    for one in IMPORTERS.all().values():
        table.add_row(one.name, one.title, ", ".join(one.sites))
    console.print(table)
    say("konsil data import NAME: its layout, its licence, where to get it")


@app.command()
def cache(
    remove_unused: Annotated[
        bool, typer.Option("--remove-unused", help="Remove what no run is using.")
    ] = False,
    json_: AsJson = False,
) -> None:
    """Show what decoded images take on the disk, and how much they may."""
    from konsil.config import usual_cache, usual_cache_limit
    from konsil.data.cache import entries, readable, remove

    folder = usual_cache()
    removed = remove(folder) if remove_unused else []
    there = entries(folder)
    if json_:
        plain = [{**asdict(entry), "folder": str(entry.folder)} for entry in there]
        print(json.dumps(plain, indent=1))
        return
    table = Table("entry", Column("size", justify="right"), "last use", "in use")
    for entry in there:
        used = datetime.fromtimestamp(entry.last_use).isoformat(" ", "minutes")
        state = "yes" if entry.in_use else "" if entry.whole else "left over"
        table.add_row(entry.name, readable(entry.bytes), used, state)
    console.print(table)
    if removed:
        say(f"removed: {len(removed)} entries, {readable(sum(e.bytes for e in removed))}")
    total = readable(sum(entry.bytes for entry in there))
    say(f"{folder}: {total} of at most {readable(usual_cache_limit())} (KONSIL_CACHE_LIMIT)")
