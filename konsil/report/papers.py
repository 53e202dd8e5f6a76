"""The papers' printed numbers, and a run's own beside them where the task is the same.

Nothing is shown where that is not sure. What the papers print is in papers.yaml.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import isnan, nan
from pathlib import Path
from typing import Any

import yaml
from rich.markup import escape
from rich.table import Table

from konsil.config import MethodConfig
from konsil.evaluation.comparison import Comparison
from konsil.evaluation.results import Row, Series
from konsil.evaluation.tuning import COUNTING
from konsil.federation.plan import Plan
from konsil.report.compare import MEANS
from konsil.report.series import estimates_of, metric_name
from konsil.report.show import NARROWEST_NUMBER
from konsil.report.tables import Plain, new_table, plain

PRINTED = Path(__file__).with_name("papers.yaml")
NARROWEST_NAME = 12  # columns of the terminal
FEWEST = 2  # methods that a table must share with a run: of one alone there is no order

# What the classes of a task may be called, and the sites of the one public set of such patches.
HEALTHY = {"normal", "healthy", "non-glaucoma", "no glaucoma", "no tumour", "no tumor"}
GLAUCOMA = {"glaucoma"}
TUMOUR = {"tumour", "tumor"}
CAMELYON17 = {f"hospital_{number}" for number in range(5)}

Means = Mapping[Series, Mapping[str, float]]  # a series' client average, and over all images


@dataclass(frozen=True)
class Line:
    """A row of a paper's table."""

    method: str  # as the paper calls it
    means: Sequence[float]
    here: str = ""  # Konsil's name of the method; empty: it has none
    clients: Sequence[float] = ()
    settings: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # and what they may be

    def is_of(self, method: MethodConfig) -> bool:
        """Whether a method of an experiment is this one."""
        said = {key: _name(method.settings.get(key)) for key in self.settings}
        return method.name == self.here and all(said[k] in may for k, may in self.settings.items())


@dataclass(frozen=True)
class PaperTable:
    """A table of a paper, by one metric."""

    title: str
    kind: str  # of task
    protocol: str  # data, size, rounds, runs
    metric: str
    columns: Mapping[str, str | None]  # the paper's word for a mean: the column of a run, if any
    rows: Sequence[Line]
    unseen: bool = False  # every site was left out in turn
    notes: Sequence[str] = ()
    misprints: Mapping[str, str] = field(default_factory=dict)  # by the paper's method


@cache
def paper_tables() -> Mapping[str, PaperTable]:
    """All tables of numbers that both papers print."""
    printed = yaml.safe_load(PRINTED.read_text(encoding="utf-8"))
    return {
        name: PaperTable(**(table | {"rows": [Line(**row) for row in table["rows"]]}))
        for name, table in printed.items()
    }


def kind_of(plan: Plan) -> str | None:
    """Which of the papers' tasks a run is about; None: none of them, or it is not sure."""
    labels = {label.casefold().replace("_", " ").removeprefix("optic ") for label in plan.labels}
    if plan.experiment.task.name == "segmentation":
        return {("cup", "disc"): "disc and cup", ("prostate",): "prostate"}.get(
            tuple(sorted(labels))
        )
    if plan.experiment.task.name != "classification" or len(labels) != 2 or not labels & HEALTHY:
        return None
    if labels & GLAUCOMA:
        return "glaucoma"
    painted = plan.experiment.federation.synthetic == "pathology"
    if labels & TUMOUR and (painted or set(plan.sites) <= CAMELYON17):
        return "tumour in pathology"
    return None


def papers_beside(
    plans: Sequence[Plan], metric: str, means: Means, unseen: bool = False
) -> Iterator[tuple[str, Table]]:
    """The papers' tables by this metric that have methods of these runs, each with its name."""
    kinds = {kind_of(plan) for plan in plans}
    methods = {m.title: m for plan in plans for m in plan.experiment.methods}
    for name, table in paper_tables().items():
        if kinds == {table.kind} and (table.metric, table.unseen) == (metric, unseen):
            pairs = list(_pairs(table, methods, means))
            if len(pairs) >= FEWEST:
                yield name, _beside(table, pairs, means, plans[0])


def papers_of(
    rows: Sequence[Row], plans: Sequence[Plan], metrics: Sequence[str]
) -> Iterator[tuple[str, Plain]]:
    """What the page of runs with these rows says of the papers, each table with its name."""
    for metric in metrics:
        for name, table in papers_beside(plans, metric, means_of_rows(rows, metric)):
            yield name, plain(table)


def means_of_rows(rows: Iterable[Row], metric: str) -> Means:
    """Of test images, the mean over seeds, from results.csv."""
    found = estimates_of(rows, metric, "test", list(MEANS))
    return {one: {column: e.mean for column, e in of.items()} for one, of in found.items()}


def means_of(found: Comparison) -> Means:
    """The same of a comparison."""
    columns = {column: found.compared.estimates(column) for column in MEANS}
    return {
        one: {column: of[place].value for column, of in columns.items()}
        for place, one in enumerate(found.candidates)
    }


def _pairs(
    table: PaperTable, methods: Mapping[str, MethodConfig], means: Means
) -> Iterator[tuple[Line, Series]]:
    """Rows of the paper with the first method here that is the same, in the role that counts."""
    told = [one for one, of in means.items() if not any(isnan(of.get(key, nan)) for key in MEANS)]
    for line in table.rows:
        title = next((title for title, method in methods.items() if line.is_of(method)), None)
        roles = [one.role for one in told if one.method == title]
        role = next((role for role in (*COUNTING, *roles) if role in roles), None)
        if title is not None and role is not None:
            yield line, Series(title, role)


def _beside(
    table: PaperTable, pairs: Sequence[tuple[Line, Series]], means: Means, plan: Plan
) -> Table:
    """A line a method: what the paper prints and its place there, what it is here and its place."""
    made = new_table(f"{metric_name(table.metric)} beside {table.title}", "paper")
    shared = [column for column in table.columns.values() if column is not None]
    for title in (*table.columns, "place"):
        made.add_column(title, justify="right", overflow="fold", min_width=NARROWEST_NUMBER)
    made.add_column("here", overflow="fold", min_width=NARROWEST_NAME)
    for title in (*(MEANS[column] for column in shared), "place"):
        made.add_column(title, justify="right", overflow="fold", min_width=NARROWEST_NUMBER)
    first = next(place for place, column in enumerate(table.columns.values()) if column in shared)
    there = _places([line.means[first] for line, _ in pairs])
    ours = _places([means[one][shared[0]] for _, one in pairs])
    for (line, one), place, own in zip(pairs, there, ours, strict=True):
        printed = [f"{value:.4f}" for value in line.means]
        measured = [f"{means[one][column]:.3f}" for column in shared]
        made.add_row(line.method, *printed, place, escape(one.name), *measured, own)
    made.caption = escape(_caption(table, [line for line, _ in pairs], plan))
    return made


def _places(values: Sequence[float]) -> list[str]:
    """1 for the highest; equals share a place."""
    return [str(1 + sum(other > value for other in values)) for value in values]


def _caption(table: PaperTable, lines: Sequence[Line], plan: Plan) -> str:
    e, images = plan.experiment, sum(plan.images(site, "train") for site in plan.sites)
    painted = "painted " if e.federation.synthetic else ""
    size = e.federation.image_size
    wrong = [line.method for line in lines if line.method in table.misprints]
    words = [
        "Other images, splits, sizes and rounds: compare the order of methods, not numbers.",
        f"The paper: {table.protocol}.",
        f"Here: {images:,} {painted}training images of {len(plan.sites)} sites, {size} x {size}, "
        f"{e.rounds:,} rounds, {len(e.seeds)} seed{'s' if len(e.seeds) > 1 else ''}.",
        *table.notes,
        *(f"The paper's {method}, {table.misprints[method]}." for method in wrong),
    ]
    return " ".join(words)


def _name(setting: Any) -> Any:
    """Something chosen by name may have settings of its own."""
    return setting.get("name") if isinstance(setting, dict) else setting
