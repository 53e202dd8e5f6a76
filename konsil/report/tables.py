"""The papers' table: a line a method and role, a column a site, then the two means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from konsil.errors import RunError
from konsil.evaluation.results import CLIENT_AVERAGE, GLOBAL, Row
from konsil.report.series import YARDSTICK, Estimates, Series, estimates_of, metric_name

MISSING = "–"
NARROWEST_NAME, NARROWEST_MEAN, NARROWEST_NUMBER = 16, 7, 5  # columns of a terminal
SITES_WITH_INTERVALS = 3  # with more of them, intervals in every cell exceed 120 columns
CHECKPOINT_NAMES = {
    "best": "checkpoints chosen on validation images",
    "last": "the models after the last round",
}
SPLIT_NAMES = {"val": "validation", "test": "test"}


@dataclass(frozen=True)
class Layout:
    """A table's numbers, before rich or markdown dresses them."""

    lines: Estimates
    columns: tuple[str, ...]  # sites, client_average, global
    caption: str

    @classmethod
    def of(
        cls,
        rows: Sequence[Row],
        sites: Sequence[str],
        metric: str,
        split: str,
        checkpoint: str = "best",
    ) -> Layout:
        """The lines in the order of the rows, the columns in the order of the roster."""
        wanted = [r for r in rows if (r.metric, r.split) == (metric, split)]
        if not wanted:
            known = ", ".join(sorted({f"{r.metric} on {r.split}" for r in rows})) or "none"
            raise RunError(f"results: no {metric} on {split}; there is {known}")
        columns = (*sites, CLIENT_AVERAGE, GLOBAL)
        lines = estimates_of(rows, metric, split, columns)
        return cls(lines, columns, _caption(wanted, sites, metric, split, checkpoint))

    @property
    def titles(self) -> tuple[str, ...]:
        """The columns as people read them."""
        return tuple(c.replace("_", " ") if c == CLIENT_AVERAGE else c for c in self.columns)

    def cells(self, series: Series) -> list[tuple[str, bool]]:
        """A line: each cell's text, and whether it is the best of its column."""
        return [(self.text(series, c), self.is_best(series, c)) for c in self.columns]

    def text(self, series: Series, column: str) -> str:
        """One cell; intervals stand in the means, and in the sites where there is room."""
        estimate = self.lines[series].get(column)
        if estimate is None:
            return MISSING
        roomy = len(self.columns) - 2 <= SITES_WITH_INTERVALS
        return estimate.full if roomy or column in (CLIENT_AVERAGE, GLOBAL) else estimate.short

    def is_best(self, series: Series, column: str) -> bool:
        """Whether no hospital's own or federated answer reads better in this column."""
        competing = [
            estimates[column].short
            for other, estimates in self.lines.items()
            if other.role != YARDSTICK and column in estimates
        ]
        if series.role == YARDSTICK or column not in self.lines[series] or len(competing) < 2:
            return False
        return self.lines[series][column].short == max(competing, key=float)


def result_table(
    rows: list[Row],
    sites: Sequence[str],
    metric: str,
    split: str = "test",
    checkpoint: str = "best",
) -> Table:
    """The table for a terminal, best values bold; with six sites it fits into 80 columns."""
    layout = Layout.of(rows, sites, metric, split, checkpoint)
    table = Table(caption=layout.caption, caption_justify="left", header_style="bold")
    table.box, table.padding, table.pad_edge = box.SIMPLE_HEAD, (0, 1, 0, 0), False
    table.add_column("method", no_wrap=True, min_width=NARROWEST_NAME)
    for column, title in zip(layout.columns, layout.titles, strict=True):
        narrowest = NARROWEST_MEAN if column in (CLIENT_AVERAGE, GLOBAL) else NARROWEST_NUMBER
        # long names are folded, numbers never
        table.add_column(escape(title), justify="right", overflow="fold", min_width=narrowest)
    for series in layout.lines:
        cells = [_cell(text, best) for text, best in layout.cells(series)]
        table.add_row(escape(series.name), *cells)
    return table


def _cell(text: str, best: bool) -> Text:
    """A number, its interval on a line of its own."""
    return Text(text.replace(" ± ", "\n±"), style="bold" if best else "")


def markdown_table(rows: list[Row], sites: Sequence[str], metric: str, split: str = "test") -> str:
    """The same table as GitHub markdown, with the caption below it."""
    layout = Layout.of(rows, sites, metric, split)
    lines = [["method", "role", *layout.titles], ["---", "---", *["--:"] * len(layout.titles)]]
    for series in layout.lines:
        cells = [f"**{text}**" if best else text for text, best in layout.cells(series)]
        lines.append([series.method, series.role, *cells])
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"{text}\n\n{layout.caption}\n"


def selector_lines(rows: list[Row]) -> list[str]:
    """For every super model, how often its selector is right and how often it is followed."""
    lines = []
    found = [r for r in rows if (r.role, r.split, r.site) == ("super", "test", GLOBAL)]
    for method in dict.fromkeys(r.method for r in found):
        right = [r for r in found if (r.method, r.metric) == (method, "selector_accuracy")]
        asked = [r for r in found if (r.method, r.metric) == (method, "asked_specialist")]
        if right and asked:
            seeds = f" (mean of {len(right)} seeds)" if len(right) > 1 else ""
            lines.append(
                f"{method}: the selector names the right site for {_percent(right)} of the test "
                f"images; a specialist answers {_percent(asked)}{seeds}"
            )
    return lines


def _caption(
    rows: Sequence[Row], sites: Sequence[str], metric: str, split: str, checkpoint: str
) -> str:
    seeds = sorted({r.seed for r in rows})
    images = max(r.n for r in rows)
    what = f"{metric_name(metric)}, {images} {SPLIT_NAMES.get(split, split)} images"
    several = f"mean of {len(seeds)} seeds, ± is the half-width of the 95 % confidence interval"
    parts = (
        f"{what} of {len(sites)} sites",
        several if len(seeds) > 1 else f"seed {seeds[0]}",
        CHECKPOINT_NAMES[checkpoint],
        f"bold: best of its column ({YARDSTICK} apart: it pools the images)",
    )
    return "; ".join(parts) + "."


def _percent(rows: Sequence[Row]) -> str:
    return f"{100 * sum(r.value for r in rows) / len(rows):.1f} %"
