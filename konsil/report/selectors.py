"""What a page says of selectors: whose images are taken for whose, how sure, and whom they ask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from konsil.evaluation.scores import ASKED
from konsil.report.analysis import Telling, draw_reliability, super_rows, telling_of
from konsil.report.charts import Chart
from konsil.report.style import look
from konsil.report.tables import Plain

MOST = 3  # of those who are asked


@dataclass(frozen=True)
class Selected:
    """One super model's routing, all seeds together."""

    method: str
    asked: Plain
    said: Telling | None  # None: its selector names no sites
    reliability: Chart | None


def selected_in(scores: Sequence[Path], sites: Sequence[str]) -> Iterator[Selected]:
    """Of every super model whose single images' scores are there."""
    for method, rows in super_rows(scores).items():
        said = telling_of(rows, sites)
        yield Selected(method, asked_table(method, rows), said, _reliability(method, said))


def _reliability(method: str, said: Telling | None) -> Chart | None:
    if said is None:
        return None
    caption = (
        f"{method}: how sure its selector is against how often it is right, in ten bins of "
        "confidence; a dot is as large as its share of the images, and on the line the selector "
        "knows how sure it may be."
    )
    with look():
        return Chart(f"reliability-{method}", draw_reliability(said), caption)


def asked_table(method: str, rows: Sequence[dict[str, Any]]) -> Plain:
    """A line a hospital: who answers its images, how often its selector is right."""
    lines = []
    for site in dict.fromkeys(row["site"] for row in rows):
        own = [row for row in rows if row["site"] == site]
        right, unlike = (_share(own, name) for name in ("selector_accuracy", "unfamiliar"))
        lines.append([site, _who(own), right, unlike])
    head = ["images of", "are answered by", "selector is right", "like no site"]
    caption = (
        f"{len(rows)} answers to test images, all seeds; + : both answer, and their mean counts"
    )
    return Plain(f"{method}: whom it asks", head, lines, caption)


def _share(rows: Sequence[dict[str, Any]], name: str) -> str:
    known = [row[name] for row in rows if row.get(name) is not None]
    return f"{mean(known):.0%}" if known else "–"


def _who(rows: Sequence[dict[str, Any]]) -> str:
    counted = Counter(row[ASKED] for row in rows).most_common()
    said = [f"{who} {number / len(rows):.0%}" for who, number in counted[:MOST]]
    return ", ".join(said) + (", ..." if len(counted) > MOST else "")
