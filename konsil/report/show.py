"""What `konsil show` prints of a run folder."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from konsil.errors import RunError
from konsil.evaluation.results import Row, read_results
from konsil.federation.plan import Plan
from konsil.federation.runner import RESULT_FILES, read_plan
from konsil.federation.server import RECORD, Record
from konsil.report.tables import result_table, selector_lines


def show_run(console: Console, folder: Path, split: str = "test", checkpoint: str = "best") -> None:
    """The table in the papers' layout, the selector, jobs that are not done, the pictures."""
    if split not in ("test", "val"):
        raise RunError(f"--split {split}: test or val")
    if checkpoint not in RESULT_FILES:
        raise RunError(f"--checkpoint {checkpoint}: best or last")
    facts = read_plan(folder)
    plan = Plan.from_json(facts, methods=False)  # a plugin may have moved on since
    path = folder / RESULT_FILES[checkpoint]
    rows = read_results(path) if path.exists() else []
    if rows:
        for metric in main_metrics(rows, split):
            console.print(result_table(rows, plan.sites, metric, split, checkpoint))
        for line in (*selector_lines(rows), *gamma_lines(plan, folder, checkpoint)):
            console.print(line, highlight=False)
    for line in unfinished(plan, folder, rows, facts["hash"]):
        console.print(line, highlight=False)
    pictures = sorted(p.name for p in (folder / "figures").glob("*.png"))
    if pictures:
        console.print(f"pictures: {folder / 'figures'} ({', '.join(pictures)})", highlight=False)


def main_metrics(rows: list[Row], split: str) -> list[str]:
    """What is printed: the task's metrics, but not those of single structures (dice_cup)."""
    # of any role but the super model, which adds measures of its selector
    there = dict.fromkeys(r.metric for r in rows if r.split == split and r.role != "super")
    return [m for m in there if not any(m.startswith(f"{other}_") for other in there)]


def unfinished(plan: Plan, folder: Path, rows: list[Row], hash: str) -> list[str]:
    """A line for every job that has no result yet."""
    done = {(row.method, row.seed) for row in rows}
    lines = []
    for job in plan.jobs:
        if (job.method, job.seed) in done:
            continue
        record = folder / job.name / "server" / RECORD
        reached = Record.load(record, hash).round if record.exists() else 0
        lines.append(f"{job.name}: round {reached} of {plan.experiment.rounds}")
    return lines


def gamma_lines(plan: Plan, folder: Path, checkpoint: str) -> list[str]:
    """The threshold of every super model, which validation images have chosen."""
    lines = []
    for job in plan.jobs:
        path = folder / job.name / "result.json"
        if path.exists():
            gamma = json.loads(path.read_text(encoding="utf-8"))["gamma"].get(checkpoint)
            if gamma is not None:
                lines.append(f"{job.name}: gamma {gamma:g}, chosen on validation images")
    return lines
