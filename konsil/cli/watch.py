"""Follow a run, and hand it to trackers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from konsil.cli.serve import token_of
from konsil.cli.terminal import say
from konsil.errors import RunError

RunArgument = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="Folder of a run, of several, or of a deployment's server."),
]


def watch(
    run: RunArgument,
    host: Annotated[
        str, typer.Option(help="Where to listen; any but this machine itself needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8009,
    once: Annotated[
        bool, typer.Option("--once", help="Print how it stands, and end: no page.")
    ] = False,
) -> None:
    """Follow a run on a local page: rounds, sites, curves, time left. It only reads.

    Also a deployed run, where its server keeps it. Ctrl-C ends it, and not the run.
    """
    from konsil.watch.places import find_place

    place = find_place(run)
    if once:
        _print(place)
        return
    from konsil.serve.server import Address
    from konsil.watch.server import watch

    address = Address(host, port, token_of(None, host))
    if not address.loopback:
        say("note: the connection is not encrypted, and the page names sites and their scores")
    watch(place, address, lambda url: say(f"watching {place} on {url} (Ctrl-C ends)"))


def _print(place: Path) -> None:
    from konsil.watch.page import lines
    from konsil.watch.places import find_runs
    from konsil.watch.run import Watched

    runs = find_runs(place)
    if not runs:
        say(f"{place}: no run has begun yet")
    for folder in runs.values():
        watched = Watched(folder)
        watched.look()
        for line in lines(watched, time.time()):
            say(line)


def track(
    run: RunArgument,
    to: Annotated[
        list[str], typer.Option("--to", metavar="NAME", help="tensorboard, mlflow; or both.")
    ],
) -> None:
    """Hand a run to TensorBoard or MLflow: all that it has done, and what it does until its end.

    Nothing is written there twice. Ctrl-C ends it, and not the run.
    """
    from konsil.tracking import tracking
    from konsil.watch.places import find_place, find_runs

    runs = list(find_runs(find_place(run)).values())
    if not runs:
        raise RunError(f"{run}: no run has begun there yet")
    tracking.track(runs, to, say)
    for folder in runs:
        say(f"{folder}: told {' and '.join(to)}")
