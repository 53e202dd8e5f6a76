"""`python -m benchmarks.peers`: Konsil against its peers, in turns, as ratios with goals."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import report
from benchmarks.measure import Outcome
from benchmarks.peers import environments
from benchmarks.peers.compare import BASE, PLAIN, ROOT, TUNED, WAYS, compare
from benchmarks.peers.federation import FULL, QUICK, write_work
from benchmarks.peers.meter import supported
from konsil.files import write_text

console = Console()


def main(
    only: Annotated[
        list[str] | None,
        typer.Option(help=f"Only this side, beside Konsil and the loop: {'; '.join(WAYS)}."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny, in minutes: shows that it works, no more.")
    ] = False,
    folder: Annotated[
        Path, typer.Option("--environments", help="Where the peers' environments are made.")
    ] = ROOT / ".peers",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all values.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the table as Markdown.")] = None,
) -> None:
    """Make the environments, run all sides in turns, print every ratio with its goal."""
    if not supported():
        raise SystemExit("benchmarks.peers measures with /proc: it needs Linux, 4.14 or newer")
    names = _names(only)
    for peer in dict.fromkeys(WAYS[name].environment for name in names if WAYS[name].environment):
        console.print(f"environment of {peer}:", environments.PEERS[peer], markup=False)
        environments.make(folder, peer)
    facts = report.machine()
    if report.busy(facts):
        console.print(f"[red]the machine is busy (load {facts['load_before']}): no figure counts")
    outcomes = {"peers": _measure(names, quick, folder)}
    for text in report.lines(outcomes["peers"]):
        console.print(text, highlight=False, soft_wrap=True)
    if json_file:
        write_text(json_file, json.dumps(report.plain(outcomes, facts), indent=1))
    if markdown:
        scale = ".peers --quick" if quick else ".peers"
        write_text(markdown, report.markdown(outcomes, facts, scale))


def _names(only: list[str] | None) -> list[str]:
    unknown = [name for name in only or [] if name not in WAYS]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]}: one of {'; '.join(WAYS)}", param_hint="only")
    return [name for name in WAYS if not only or name in (BASE, TUNED, PLAIN, *only)]


def _measure(names: list[str], quick: bool, folder: Path) -> Outcome:
    """Everything in a folder that is gone afterwards."""
    size = QUICK if quick else FULL
    with (
        tempfile.TemporaryDirectory(prefix="konsil-peers-") as work,
        console.status("federation") as status,
    ):
        images, found = write_work(size, Path(work))
        progress = status.update if console.is_terminal else console.print
        outcome = compare(size, Path(work), folder, names, progress)
    outcome.notes.append(f"performance: auto found {found}")
    outcome.notes.append(
        f"{len(size.images)} sites, {images} training images, {size.pixels} x {size.pixels}; "
        f"a round is what {size.many} rounds took more than {size.few}, divided"
    )
    return outcome


if __name__ == "__main__":
    typer.run(main)
