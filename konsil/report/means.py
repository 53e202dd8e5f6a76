"""What can be said of hospitals that let means out alone: from results.csv, without intervals.

`konsil compare` has these tables in the place of those that need single images' scores, or beside
them where only some of the hospitals told theirs.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from konsil.errors import RunError
from konsil.evaluation.comparison import VOLUME, place_of
from konsil.evaluation.results import CLIENT_AVERAGE, GLOBAL, Row, Series, read_results
from konsil.evaluation.scores import FILE
from konsil.report.compare import MEANS, SPREAD, WORST, reference_of
from konsil.report.series import Estimates, estimates_of, metric_name
from konsil.report.show import MISSING, NARROWEST_NUMBER
from konsil.report.tables import new_table

RESULTS = "results.csv"
WHY = (
    "no single image's scores are there: these hospitals' policies let only means out "
    "(scores: means), or an older version made the run. So there are neither intervals over "
    "patients nor tests: nobody can say whether a difference is more than luck. Nor are there "
    "other structures together, volumes of slices, or gamma afterwards."
)


@dataclass(frozen=True)
class Means:
    """What results.csv says of one metric: everybody's means over seeds, by site."""

    metric: str
    sites: Sequence[str]
    lines: Estimates
    images: int

    @property
    def candidates(self) -> list[Series]:
        """Whose means they are."""
        return list(self.lines)

    @property
    def columns(self) -> list[str]:
        """The sites, and both ways to a mean where results.csv has them of these very sites."""
        known = {column for cells in self.lines.values() for column in cells}
        return [*self.sites, *(mean for mean in MEANS if mean in known)]

    def value(self, who: Series, column: str) -> float | None:
        """The mean over seeds; None: nobody has said."""
        estimate = self.lines[who].get(column)
        return None if estimate is None else estimate.mean

    def reference(self, name: str | None) -> Series:
        """Whom the others are held against: this one, or training alone, or a model for all."""
        place = place_of(self.candidates, name) if name else reference_of(self)
        return self.candidates[place]

    def extremes(self, who: Series, less: bool) -> tuple[str, float, float]:
        """The site that is served worst, its score, and the best site's minus the worst's."""
        known = {s: v for s in self.sites if (v := self.value(who, s)) is not None}
        if not known:
            return "", float("nan"), float("nan")
        worst = (max if less else min)(known, key=known.__getitem__)
        return worst, known[worst], max(known.values()) - min(known.values())


def tells_images(folders: Sequence[Path]) -> bool:
    """Whether all of these runs have single images' scores."""
    return all((folder / FILE).exists() for folder in folders)


def means_of(folders: Sequence[Path], metric: str, structure: str | None = None) -> Means:
    """What results.csv of these runs says of a metric; RunError if it says nothing."""
    rows = _rows(folders)
    return _means(folders, rows, _sites(rows), metric, structure, (CLIENT_AVERAGE, GLOBAL))


def silent_means_of(
    folders: Sequence[Path], metric: str, structure: str | None, told: Collection[str]
) -> Means | None:
    """The same of the sites that have not told single images' scores; None if all have."""
    if not all((folder / RESULTS).exists() for folder in folders):
        return None  # not of an ordinary run
    rows = _rows(folders)
    silent = [site for site in _sites(rows) if site not in told]
    return _means(folders, rows, silent, metric, structure, ()) if silent else None


def _means(
    folders: Sequence[Path],
    rows: Sequence[Row],
    sites: Sequence[str],
    metric: str,
    structure: str | None,
    further: Sequence[str],
) -> Means:
    column = metric if structure is None else f"{metric}_{structure}"
    wanted = [row for row in rows if row.metric == column]
    if not wanted:
        known = ", ".join(dict.fromkeys(row.metric for row in rows if row.role != "super"))
        why = "; slices are put together where single images' scores are known"
        raise RunError(
            f"{folders[0] / RESULTS}: no {column}; there is {known or 'nothing yet'}"
            f"{why if metric == VOLUME else ''}"
        )
    lines = estimates_of(wanted, column, "test", [*sites, *further])
    images = sum({row.site: row.n for row in wanted if row.site in sites}.values())
    return Means(column, sites, lines, images)


def _rows(folders: Sequence[Path]) -> list[Row]:
    for path in (folder / RESULTS for folder in folders):
        if not path.exists():
            raise RunError(f"{path}: not there; a run leaves it when its first job is done")
    rows = (row for folder in folders for row in read_results(folder / RESULTS))
    return [row for row in rows if row.split == "test"]


def _sites(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row.site for row in rows if row.site not in MEANS))


# --- as tables ----------------------------------------------------------------------------------


def means_table(found: Means, less: bool) -> Table:
    """A line a candidate: every site, the means, who is served worst, the spread."""
    words = ", less is better" if less else ""
    table = new_table(f"{metric_name(found.metric)} of test images{words}: means alone", "method")
    for column in (*found.columns, WORST, SPREAD):
        title = escape(MEANS.get(column, column))
        table.add_column(title, justify="right", overflow="fold", min_width=NARROWEST_NUMBER)
    for one in found.candidates:
        worst, score, spread = found.extremes(one, less)
        numbers = (_number(found.value(one, column)) for column in found.columns)
        ends = (f"{score:.3f} {escape(worst)}", f"{spread:.3f}") if worst else (MISSING, MISSING)
        table.add_row(escape(one.name), *numbers, *ends)
    return table


def gains_table(found: Means, against: str | None) -> Table:
    """Everybody minus the reference, without a word on how sure that is."""
    reference = found.reference(against)
    title = f"{metric_name(found.metric)} minus that of {reference.name}: how sure is not known"
    table = new_table(title, "")
    for column in found.columns:
        table.add_column(escape(MEANS.get(column, column)), justify="right", overflow="fold")
    for one in found.candidates:
        if one != reference:
            gains = (_gain(found, one, reference, column) for column in found.columns)
            table.add_row(escape(one.name), *("" if g is None else f"{g:+.3f}" for g in gains))
    return table


def notes(found: Means) -> Iterator[str]:
    """Of what the numbers are, and why there is no more to say."""
    seeds = {len(e.by_seed) for cells in found.lines.values() for e in cells.values()}
    words = " or ".join(map(str, sorted(seeds)))
    yield (
        f"{found.images} test images of {len(found.sites)} sites, mean over {words} "
        f"seed{'s' * (seeds != {1})}. Of {', '.join(found.sites)} {WHY}"
    )


def as_json(found: Means, against: str | None, less: bool) -> str:
    """Every number, in the form of a comparison with intervals, which are null."""
    reference = found.reference(against)
    lines = []
    for one in found.candidates:
        _, score, spread = found.extremes(one, less)
        scores = {column: found.value(one, column) for column in found.columns}
        gains = {column: _gain(found, one, reference, column) for column in found.columns}
        lines.append({
            "method": one.method,
            "role": one.role,
            "seeds": sorted({s for e in found.lines[one].values() for s in e.by_seed}),
            "scores": {c: _plain(v) for c, v in (scores | {WORST: score, SPREAD: spread}).items()},
            "gains": {} if one == reference else {
                column: _plain(v) | dict.fromkeys(("p", "holm", "wilcoxon_holm"))
                for column, v in gains.items()
            },
        })  # fmt: skip
    facts = {"images": found.images, "patients": None, "against": reference.name}
    return json.dumps(facts | {"compared": lines, "why_no_intervals": WHY}, indent=1)


def _plain(value: float | None) -> dict[str, Any]:
    return {"value": None if value is None or value != value else value, "low": None, "high": None}


def _gain(found: Means, one: Series, reference: Series, column: str) -> float | None:
    own, other = found.value(one, column), found.value(reference, column)
    return None if own is None or other is None else own - other


def _number(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3f}"
