"""Hand a super model to others' programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from konsil.cli.experiments import PluginOption
from konsil.cli.predict import ModelArgument, labelled, load_model
from konsil.cli.terminal import progress, say


def export(
    model: ModelArgument,
    to: Annotated[
        str, typer.Option("--to", metavar="KIND", help="onnx, bundle (MONAI), or folder (Konsil).")
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="DIR", help="A folder that is new or empty.")
    ],
    half: Annotated[
        bool, typer.Option("--half", help="Models in 16 bit; what that costs is measured.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="PATH", help="A federation.yaml: labelled images to measure it on."
        ),
    ] = None,
    plugin: PluginOption = None,
) -> None:
    """Write a super model as ONNX, as a MONAI bundle, or as a folder in 16 bit."""
    loaded = load_model(model, "cpu", plugin)
    from konsil.export.writing import export as write

    source = labelled(data, loaded) if data else None
    with progress() as report:
        written = write(loaded, to, out, half=half, source=source, report=report)
    if written.loss is not None:
        say(f"16 bit: {written.loss}")
    if written.difference is not None:
        say(f"ONNX differs from torch by {written.difference:.1e} at most")
    say(f"{written.kind}: {out}")
