"""What was measured, as Markdown and as JSON."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from benchmarks.measure import Figure, Outcome
from konsil.federation.runner import environment

VERDICT = {True: "met", False: "MISSED", None: "-"}
BUSY = 0.5  # load a core, above which a machine is not quiet


def machine() -> dict[str, Any]:
    """On what the figures were taken, and how busy it was before they were."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    kind = {"processor": _processor(), "cores": os.cpu_count(), "load_before": round(load, 2)}
    return environment() | kind


def _processor() -> str:
    """Its name as the system says it, and whether it computes bf16."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    named = next((line for line in text.splitlines() if line.startswith("model name")), "")
    name = named.partition(":")[2].strip() or platform.machine()
    return f"{name}{' with bf16' if 'avx512_bf16' in text or 'amx_bf16' in text else ''}"


def busy(facts: dict[str, Any]) -> bool:
    """Whether others were computing, so that the figures are not to be trusted."""
    return bool(facts["load_before"] > BUSY * (facts["cores"] or 1))


def lines(outcome: Outcome) -> list[str]:
    """An outcome for a terminal, in rich's markup: every figure, then the notes."""
    goals = [f"; goal {f.goal}: {VERDICT[f.met]}" if f.goal else "" for f in outcome.figures]
    figures = zip(outcome.figures, goals, strict=True)
    return [f"  {f.what}: {f.ratio}{goal}" for f, goal in figures] + [
        f"  [dim]{note}" for note in outcome.notes
    ]


def markdown(outcomes: dict[str, Outcome], facts: dict[str, Any], scale: str) -> str:
    """A page with every figure in one table, the notes below it."""
    page = [
        "# Benchmark results",
        "",
        f"Written by `python -m benchmarks{scale}`; docs/benchmarks.md says what is compared. "
        + ", ".join(f"{key} {value}" for key, value in facts.items())
        + ("; the machine was busy: not to be trusted." if busy(facts) else "."),
        "",
        "| benchmark | ratio | median (min to max) | goal | |",
        "|---|---|---|---|---|",
    ]
    for name, outcome in outcomes.items():
        page += [f"| {name} | {' | '.join(_cells(figure))} |" for figure in outcome.figures]
    page += [""] + [f"- {name}: {note}" for name, o in outcomes.items() for note in o.notes]
    return "\n".join(page) + "\n"


def plain(outcomes: dict[str, Outcome], facts: dict[str, Any]) -> dict[str, Any]:
    """Everything as plain data, every single ratio included."""
    return {
        "machine": facts | {"busy": busy(facts)},
        "benchmarks": {
            name: {"figures": [_plain(f) for f in outcome.figures], "notes": outcome.notes}
            for name, outcome in outcomes.items()
        },
    }


def _cells(figure: Figure) -> tuple[str, str, str, str]:
    return figure.what, str(figure.ratio), str(figure.goal or "-"), VERDICT[figure.met]


def _plain(figure: Figure) -> dict[str, Any]:
    return {
        "what": figure.what,
        "median": figure.ratio.median,
        "values": list(figure.ratio.values),
        "goal": str(figure.goal) if figure.goal else None,
        "met": figure.met,
    }
