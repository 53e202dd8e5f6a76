"""The tables and pictures of docs/results.md, from runs that may lie in several folders.

    python -m benchmarks.results collect prostate runs/a runs/b   into results/prostate-*.csv
    python -m benchmarks.results page prostate [accuracy auc]     Markdown, and the picture

Seeds and methods of one recipe may run as processes of their own; what is collected is what
`konsil run` leaves in `results.csv` and `results-last.csv`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from konsil.colours import FIXED_COLOURS
from konsil.evaluation.results import CLIENT_AVERAGE, GLOBAL, Row, read_results, write_results
from konsil.federation.runner import RESULT_FILES
from konsil.report.series import YARDSTICK, Estimate, Estimates, Series, estimates_of
from konsil.report.show import best_of, selector_lines
from konsil.report.sites import difference, draw_sites
from konsil.report.style import look, write_figure

FOLDER = Path(__file__).with_name("results")
PICTURES = Path(__file__).parent.parent / "docs" / "images"
ORDER = ("centralized", "local", "fedavg", "fedsm", "fedsoup")
SUPER = ("fedsm", "super")


def collect(task: str, folders: Sequence[Path]) -> None:
    """Add runs to a task's files; the same number again replaces what was there."""
    FOLDER.mkdir(exist_ok=True)
    for checkpoint, name in RESULT_FILES.items():
        known = {row[:6]: row for row in read(task, checkpoint)}
        known |= {row[:6]: row for folder in folders for row in read_results(folder / name)}
        short = (known[key]._replace(value=round(known[key].value, 5)) for key in sorted(known))
        write_results(file_of(task, checkpoint), short)


def file_of(task: str, checkpoint: str) -> Path:
    """Where a task's numbers are kept."""
    return FOLDER / f"{task}-{checkpoint}.csv"


def read(task: str, checkpoint: str) -> list[Row]:
    """Every number that was collected, the methods in the order of the page."""
    path = file_of(task, checkpoint)
    rows = read_results(path) if path.exists() else []
    return sorted(rows, key=lambda row: (*ORDER, row.method).index(row.method))


def page(task: str, metrics: Sequence[str]) -> Iterator[str]:
    """Markdown: a table a metric, what the selectors do, and the gap to pooled training."""
    rows = read(task, "best")
    sites = sorted({row.site for row in rows} - {CLIENT_AVERAGE, GLOBAL})
    columns = (*sites, CLIENT_AVERAGE, GLOBAL)
    for metric in metrics:
        yield from _table(estimates_of(rows, metric, "test", columns), columns)
        for checkpoint in RESULT_FILES:
            of_it = estimates_of(read(task, checkpoint), metric, "test", columns)
            yield _gap(of_it, metric, checkpoint)
    yield from selector_lines(rows)
    lines = estimates_of(rows, metrics[0], "test", columns)
    with look():
        figure = draw_sites(lines, sites, metrics[0], FIXED_COLOURS)
        write_figure(figure, PICTURES / f"{task}-sites.png")


def _table(lines: Estimates, columns: Sequence[str]) -> Iterator[str]:
    means = {CLIENT_AVERAGE: "client average", GLOBAL: "global"}
    yield f"| method | {' | '.join(means.get(c, c) for c in columns)} |"
    yield "| --- |" + " --: |" * len(columns)
    best = {c: best_of(lines, c) for c in columns}
    for series, cells in lines.items():
        texts = [cells[c].full if c in means else cells[c].short for c in columns]
        bold = [series.role != YARDSTICK and cells[c].short == best[c] for c in columns]
        marked = (f"**{t}**" if b else t for t, b in zip(texts, bold, strict=True))
        yield f"| {series.name} | {' | '.join(marked)} |"
    yield ""


def _gap(lines: Estimates, metric: str, checkpoint: str) -> str:
    """The super model minus pooled training, seed by seed, in both means."""
    told = []
    for column in (CLIENT_AVERAGE, GLOBAL):
        pair = (lines.get(Series(*who), {}).get(column) for who in (SUPER, (YARDSTICK, YARDSTICK)))
        ours, pooled = pair
        if ours is None or pooled is None:
            return f"{metric}, {checkpoint}: no pair"
        gap: Estimate = difference(ours, pooled)
        seeds = ", ".join(f"{value:+.3f}" for value in gap.values)
        told.append(f"{column} {gap.full} ({seeds})")
    return f"{metric}, {checkpoint} round: super model minus pooled training: {'; '.join(told)}"


if __name__ == "__main__":
    command, task, *rest = sys.argv[1:]
    if command == "collect":
        collect(task, [Path(folder) for folder in rest])
    else:
        print("\n".join(page(task, rest or ["dice"])))
