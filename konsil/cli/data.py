"""Look at data before training: describe, check, preview, import."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from konsil.cli.terminal import console, problems

app = typer.Typer(
    help="Describe, check, preview and import the images of hospitals.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Report = Callable[[str, int, int], None]
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
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a federation.yaml that is there.")
    ] = False,
) -> None:
    """Write a first federation.yaml from what a folder holds."""
    from konsil.data.guess import write_first_file

    with progress() as report:
        first = write_first_file(folder, task, overwrite, report)
    console.print(first.in_words(), soft_wrap=True, highlight=False, markup=False)


@app.command()
def check(path: Source = Path(), site: Sites = None, json_: AsJson = False) -> None:
    """Open every file once and say what is wrong, odd, or double. Exit code 1: errors."""
    from konsil.data.check import check_federation
    from konsil.data.check.show import print_check

    with progress() as report:
        result = check_federation(path, site, report)
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
    from konsil.data.preview import write_preview

    with progress() as report:
        page = write_preview(path, out, sites=site, images=images, report=report)
    console.print(f"{page}: open it in a browser. It shows images of patients: keep it safe.")


@contextmanager
def progress() -> Iterator[Report]:
    """A bar for each site on the error stream, so that --json stays clean."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=problems,
        transient=True,
    )
    with bar:
        tasks: dict[str, int] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)  # type: ignore[arg-type]

        yield report
