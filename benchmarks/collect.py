"""One page of several measurements: `python -m benchmarks.collect FILE.json... > PAGE.md`.

A benchmark takes minutes and wants an idle machine, so they may be measured one by one
(`python -m benchmarks --only NAME --json FILE.json`). Of one that was measured twice the later
file counts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report import VERDICT

NOT_OF_THE_MACHINE = ("load_before", "busy")


def page(measurements: Sequence[dict[str, Any]]) -> str:
    """The figures of all measurements as Markdown, with the machines they were taken on."""
    found = {name: (m["machine"], b) for m in measurements for name, b in m["benchmarks"].items()}
    machines = {_words(machine): None for machine, _ in found.values()}
    lines = [
        "# Benchmark results",
        "",
        "Made by `python -m benchmarks.collect` from what `python -m benchmarks --json` and "
        "`python -m benchmarks.peers --json` measured; [benchmarks](benchmarks.md) says what is "
        f"compared, and how. Measured on: {'; '.join(machines)}. Every row is the median of its "
        "interleaved repeats, with their range. Load is that of the minute before, most of it the "
        "benchmark's before.",
        "",
        "| benchmark | ratio | median (min to max) | goal | |",
        "|---|---|--:|--:|---|",
    ]
    lines += [row for name, (_, b) in found.items() for row in _rows(name, b)]
    lines += ["", *(f"- {name}: {note}" for name, (_, b) in found.items() for note in b["notes"])]
    loads = ", ".join(f"{name} {machine['load_before']:g}" for name, (machine, _) in found.items())
    return "\n".join([*lines, "", f"Load before the start: {loads}.", ""])


def _words(machine: dict[str, Any]) -> str:
    facts = {key: value for key, value in machine.items() if key not in NOT_OF_THE_MACHINE}
    return ", ".join(f"{key} {value}" for key, value in facts.items())


def _rows(name: str, benchmark: dict[str, Any]) -> list[str]:
    rows = []
    for figure in benchmark["figures"]:
        values = figure["values"]
        spread = f"{median(values):.3f} ({min(values):.3f} to {max(values):.3f})"
        cells = (name, figure["what"], spread, figure["goal"] or "-", VERDICT[figure["met"]])
        rows.append(f"| {' | '.join(cells)} |")
    return rows


if __name__ == "__main__":
    files = [json.loads(Path(file).read_text(encoding="utf-8")) for file in sys.argv[1:]]
    sys.stdout.write(page(files))
