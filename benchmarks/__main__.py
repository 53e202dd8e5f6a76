"""`python -m benchmarks`: ratios measured side by side, each held against its goal."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import report
from benchmarks.asking import asking
from benchmarks.batches import batches_vs_monai
from benchmarks.deployed import deployed_memory, deployed_rounds, deployed_traffic
from benchmarks.first_look import import_and_check
from benchmarks.many_sites import many_sites
from benchmarks.measure import Outcome
from benchmarks.memory import memory
from benchmarks.methods import methods
from benchmarks.overheads import overheads
from benchmarks.reporting import reporting
from benchmarks.server_mean import server_mean
from benchmarks.serving import serving
from benchmarks.setup import FULL, QUICK, Setup
from benchmarks.training import fedavg_vs_plain, fedsm_vs_fedavg, processes_vs_inprocess
from benchmarks.watching import watching
from konsil.files import write_text

BENCHMARKS: dict[str, Callable[[Setup], Outcome]] = {
    "fedavg-vs-plain": fedavg_vs_plain,
    "fedsm-vs-fedavg": fedsm_vs_fedavg,
    "methods": methods,
    "processes-vs-inprocess": processes_vs_inprocess,
    "server-mean": server_mean,
    "memory": memory,
    "many-sites": many_sites,
    "overheads": overheads,
    "watching": watching,
    "asking": asking,
    "serving": serving,
    "reporting": reporting,
    "batches-vs-monai": batches_vs_monai,
    "import-and-check": import_and_check,
    "deployed-rounds": deployed_rounds,
    "deployed-traffic": deployed_traffic,
    "deployed-memory": deployed_memory,
}
console = Console()


def main(
    only: Annotated[
        list[str] | None, typer.Option(help=f"Only this one: {', '.join(BENCHMARKS)}.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny, in seconds: shows that it works, no more.")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all values.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the table as Markdown.")] = None,
) -> None:
    """Measure, print every figure with its goal, and write them where wanted."""
    names = only or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]}: one of {', '.join(BENCHMARKS)}", param_hint="only")
    facts = report.machine()
    if report.busy(facts):
        console.print(f"[red]the machine is busy (load {facts['load_before']}): no figure counts")
    outcomes = _measure(names, quick)
    missed = [f.what for o in outcomes.values() for f in o.figures if f.met is False]
    console.print(f"goals missed: {'; '.join(missed) or 'none'}", highlight=False)
    if json_file:
        write_text(json_file, json.dumps(report.plain(outcomes, facts), indent=1))
    if markdown:
        write_text(markdown, report.markdown(outcomes, facts, " --quick" if quick else ""))


def _measure(names: list[str], quick: bool) -> dict[str, Outcome]:
    """The benchmarks, one after the other, in a folder that is gone afterwards."""
    outcomes = {}
    with tempfile.TemporaryDirectory(prefix="konsil-benchmarks-") as folder:
        for name in names:
            console.print(f"[bold]{name}[/] {BENCHMARKS[name].__doc__}", highlight=False)
            with console.status(name) as status:

                def progress(news: str, name: str = name) -> None:
                    show = status.update if console.is_terminal else console.print
                    show(f"{name}: {news}")

                setup = Setup(QUICK if quick else FULL, Path(folder), progress)
                outcomes[name] = BENCHMARKS[name](setup)
            for text in report.lines(outcomes[name]):
                console.print(text, highlight=False)
    return outcomes


if __name__ == "__main__":
    typer.run(main)
