"""What `konsil show` prints of a run folder: the papers' table, and where the run stands.

The table has a line a method and role, a column a site, then the two means.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from konsil.errors import RunError
from konsil.evaluation.results import CLIENT_AVERAGE, GLOBAL, Row, read_results
from konsil.evaluation.routing import ERRORS
from konsil.federation.plan import Plan
from konsil.federation.runner import RESULT_FILES, read_plan
from konsil.federation.server import RECORD, Record
from konsil.report.series import YARDSTICK, Estimate, Estimates, estimates_of, metric_name
from konsil.supermodel.rules import from_json, in_words

MISSING = "–"
NARROWEST_NAME, NARROWEST_MEAN, NARROWEST_NUMBER = 16, 7, 5  # columns of a terminal
SITES_WITH_INTERVALS = 3  # with more of them, intervals in every cell exceed 120 columns
MEANS = {CLIENT_AVERAGE: "client average", GLOBAL: "global"}  # after the sites
SPLITS = {"test": "test", "val": "validation"}
CHECKPOINTS = {
    "best": "checkpoints chosen on validation images",
    "last": "the models after the last round",
}


def show_run(console: Console, folder: Path, split: str = "test", checkpoint: str = "best") -> None:
    """The table in the papers' layout, the selector, jobs that are not done, the pictures."""
    if split not in SPLITS:
        raise RunError(f"--split {split}: test or val")
    if checkpoint not in RESULT_FILES:
        raise RunError(f"--checkpoint {checkpoint}: best or last")
    facts = read_plan(folder)
    plan = Plan.from_json(facts, methods=False)  # a plugin may have moved on since
    path = folder / RESULT_FILES[checkpoint]
    rows = read_results(path) if path.exists() else []
    metrics = main_metrics(rows, split)
    for metric in metrics:
        console.print(result_table(rows, plan.sites, metric, split, checkpoint))
    if rows and not metrics:  # a search opens no test image
        console.print(f"no {SPLITS[split]} images were scored; --split val", highlight=False)
    lines = [*selector_lines(rows), *routing_lines(plan, folder, checkpoint)] if rows else []
    lines += unfinished(plan, folder, rows, facts["hash"])
    pictures = sorted(p.name for p in (folder / "figures").glob("*.png"))
    if pictures:
        lines.append(f"pictures: {folder / 'figures'} ({', '.join(pictures)})")
    for line in lines:
        console.print(line, highlight=False)


def main_metrics(rows: list[Row], split: str) -> list[str]:
    """What is printed: what rounds are judged by, but not of single structures (dice_cup).

    Test images have further metrics, which `konsil compare --metric` shows.
    """
    judged = {r.metric for r in rows if r.split == "val"} or {r.metric for r in rows}
    # of any role but the super model, which adds measures of its selector
    found = (r.metric for r in rows if r.split == split and r.role != "super")
    there = [metric for metric in dict.fromkeys(found) if metric in judged]
    return [m for m in there if not any(m.startswith(f"{other}_") for other in there)]


def result_table(
    rows: list[Row],
    sites: Sequence[str],
    metric: str,
    split: str = "test",
    checkpoint: str = "best",
    less: bool = False,
) -> Table:
    """The table for a terminal, best values bold; with six sites it fits into 80 columns.

    `less`: of this metric less is better.
    """
    wanted = [r for r in rows if (r.metric, r.split) == (metric, split)]
    if not wanted:
        known = ", ".join(sorted({f"{r.metric} on {r.split}" for r in rows})) or "none"
        raise RunError(f"results: no {metric} on {split}; there is {known}")
    caption = _caption(wanted, len(sites), checkpoint)
    table = Table(caption=caption, caption_justify="left", header_style="bold")
    table.box, table.padding, table.pad_edge = box.SIMPLE_HEAD, (0, 1, 0, 0), False
    table.add_column("method", no_wrap=True, min_width=NARROWEST_NAME)
    columns = (*sites, *MEANS)
    for column in columns:
        title = escape(MEANS.get(column, column))
        narrowest = NARROWEST_MEAN if column in MEANS else NARROWEST_NUMBER
        # long names are folded, numbers never
        table.add_column(title, justify="right", overflow="fold", min_width=narrowest)
    lines = estimates_of(wanted, metric, split, columns)
    best = {column: best_of(lines, column, less) for column in columns}
    intervals = columns if len(sites) <= SITES_WITH_INTERVALS else tuple(MEANS)
    for series, cells in lines.items():
        bold = {} if series.role == YARDSTICK else best
        numbers = (_cell(cells.get(c), c in intervals, bold.get(c)) for c in columns)
        table.add_row(escape(series.name), *numbers)
    return table


def best_of(lines: Estimates, column: str, less: bool = False) -> str | None:
    """How the best of a column reads, if it has a rival; who pools the images does not compete."""
    competing = [
        cells[column].short
        for series, cells in lines.items()
        if series.role != YARDSTICK and column in cells
    ]
    best = min if less else max
    return best(competing, key=float) if len(competing) > 1 else None


def _cell(estimate: Estimate | None, interval: bool, best: str | None) -> Text:
    """A number, its interval on a line of its own."""
    if estimate is None:
        return Text(MISSING)
    text = estimate.full.replace(" ± ", "\n±") if interval else estimate.short
    return Text(text, style="bold" if estimate.short == best else "")


def _caption(rows: Sequence[Row], sites: int, checkpoint: str) -> str:
    seeds = sorted({r.seed for r in rows})
    several = f"mean of {len(seeds)} seeds, ± is the half-width of the 95 % confidence interval"
    return (
        f"{metric_name(rows[0].metric)}, {max(r.n for r in rows)} {SPLITS[rows[0].split]} images "
        f"of {sites} sites; {several if len(seeds) > 1 else f'seed {seeds[0]}'}; "
        f"{CHECKPOINTS[checkpoint]}; "
        f"bold: best of its column ({YARDSTICK} apart: it pools the images)."
    )


def selector_lines(rows: list[Row]) -> list[str]:
    """For every super model, how often its selector is right and how often it is followed."""
    lines = []
    found = [r for r in rows if (r.role, r.split, r.site) == ("super", "test", GLOBAL)]
    for method in dict.fromkeys(r.method for r in found):
        right, asked, unlike, error, raw = (
            [100 * r.value for r in found if (r.method, r.metric) == (method, metric)]
            for metric in ("selector_accuracy", "asked_specialist", "unfamiliar", *ERRORS)
        )
        if right and asked:
            seeds = f" (mean of {len(right)} seeds)" if len(right) > 1 else ""
            line = f"the selector names the right site for {mean(right):.1f} % of the test images"
            line += f"; a specialist answers {mean(asked):.1f} %"
            line += f", {mean(unlike):.1f} % are like no site's" if unlike and any(unlike) else ""
            lines.append(f"{method}: {line}{seeds}")
        if error and raw and error != raw:
            lines.append(
                f"{method}: how sure the selector is misses how often it is right by "
                f"{mean(error):.1f} points, before its calibration by {mean(raw):.1f}"
            )
    return lines


def routing_lines(plan: Plan, folder: Path, checkpoint: str) -> Iterator[str]:
    """Whom every super model asks, which validation images have chosen."""
    for job in plan.jobs:
        path = folder / job.name / "result.json"
        if path.exists():
            result = json.loads(path.read_text(encoding="utf-8"))
            routing = result.get("routing", {}).get(checkpoint)
            if routing is not None:
                rule = in_words(from_json(routing["routing"], len(plan.sites)))
                yield f"{job.name}: asks {rule} (chosen on validation images)"


def unfinished(plan: Plan, folder: Path, rows: list[Row], hash: str) -> Iterator[str]:
    """A line for every job that has no result yet."""
    done = {(row.method, row.seed) for row in rows}
    for job in plan.jobs:
        if (job.method, job.seed) not in done:
            record = folder / job.name / "server" / RECORD
            reached = Record.load(record, hash).round if record.exists() else 0
            yield f"{job.name}: round {reached} of {plan.experiment.rounds}"
