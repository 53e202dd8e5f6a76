"""What `konsil join` says: what joining late would bring, in words, a table and a picture."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import isnan
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.markup import escape
from rich.table import Table

from konsil.colours import FURTHER_COLOURS
from konsil.evaluation.comparison import Comparison
from konsil.evaluation.statistics import Difference, Estimate
from konsil.files import write_text
from konsil.report.compare import SAME, verdict, with_interval
from konsil.report.series import metric_name
from konsil.report.style import FAINT, look, new_figure, write_figure
from konsil.report.tables import as_markdown, new_table, plain
from konsil.tasks import Task

# Who is held against whom.
AS_IS, START = "super model", "its best model"
TUNED, PULLED = "specialist", "specialist, pulled"
ALONE, SHORT = "alone", "alone, as short"
REPORT, SUMMARY, PICTURE = "report.json", "summary.md", "figures/joining.png"


@dataclass(frozen=True)
class Choices:
    """What validation images have chosen at the hospital that joins."""

    site: str
    start: str  # the model that fine-tuning begins with
    starts: Mapping[str, float]  # what each model scores on validation images
    epochs: int  # of fine-tuning, at most
    alone: int  # epochs from scratch
    images: Mapping[str, int]  # of each split
    seeds: Mapping[str, Mapping[str, Any]]  # seed -> validation scores, and what they chose

    @property
    def final(self) -> str:
        """Which specialist validation images chose, by most of the seeds."""
        pulled = sum(said["chosen"] != 1 for said in self.seeds.values())
        return PULLED if 2 * pulled > len(self.seeds) else TUNED

    @property
    def tuned_for(self) -> list[int]:
        """After how many epochs validation images stopped fine-tuning, seed by seed."""
        scores = [said[TUNED]["scores"] for said in self.seeds.values()]
        return [own.index(max(own)) for own in scores]


@dataclass(frozen=True)
class Joined:
    """The choices, and what came out on test images."""

    choices: Choices
    found: Comparison
    task: Task

    def estimate(self, name: str) -> Estimate | None:
        """A candidate's score; None: there is none of that name."""
        place = self._place(name)
        return None if place is None else self.found.compared.estimates(self.choices.site)[place]

    def gain(self, name: str) -> Difference | None:
        """A candidate minus training alone."""
        place, reference = self._place(name), self.found.place(ALONE)
        if place is None:
            return None
        return self.found.compared.differences(self.choices.site, reference)[place]

    def _place(self, name: str) -> int | None:
        names = [one.name for one in self.found.candidates]
        return names.index(name) if name in names else None


# --- words ----------------------------------------------------------------------------------------


def words(joined: Joined) -> Iterator[str]:
    """What joining late would bring, on one screen."""
    c, name = joined.choices, metric_name(joined.task.main_metric)
    number = joined.found.patients
    patients = f" of {number} patient{'s' * (number > 1)}" if number else ""
    yield (
        f"{c.site}: {c.images['train']} training, {c.images['val']} validation and "
        f"{c.images['test']} test images{patients}; {name} of test images, which chose nothing:"
    )
    yield f"Alone, from scratch, {c.alone} epochs: {_of(joined, ALONE)}."
    yield f"The super model as it is, which has never seen it: {_of(joined, AS_IS)}."
    yield f"A specialist of its own, {_how(joined)}: {_of(joined, c.final)}."
    yield _answer(joined)
    yield (
        f"Trained alone for no longer than the specialist ({c.epochs} epochs): "
        f"{_of(joined, SHORT)}. The super model's best model for it, {c.start}, without any "
        f"training: {_of(joined, START)}."
    )
    yield (
        f"The selector does not know {c.site}: to answer its images without being told whose they "
        "are, the super model needs another round with it. Until then: --ask, or its own model."
    )


def _how(joined: Joined) -> str:
    c = joined.choices
    epochs = " or ".join(dict.fromkeys(map(str, c.tuned_for)))
    pulls = dict.fromkeys(f"{said['chosen']:g}" for said in c.seeds.values())
    pull = f", then pulled to the others' mean (lambda {' or '.join(pulls)})"
    how = f"from {c.start}, fine-tuned for {epochs} of at most {c.epochs} epochs"
    return f"{how}{pull if c.final == PULLED else ''}"


def _answer(joined: Joined) -> str:
    """Whether it pays, against training alone."""
    told = []
    for words_, name in (("the specialist", joined.choices.final), ("the super model", AS_IS)):
        gain = joined.gain(name)
        assert gain is not None
        found = verdict(gain, joined.task.main_metric in joined.task.lower_is_better)
        told.append(f"{words_} {_change(gain.estimate)}: {found}")
    return f"Against training alone, {'; '.join(told)}."


def _of(joined: Joined, name: str) -> str:
    one = joined.estimate(name)
    assert one is not None
    ends = "" if isnan(one.low) else f" (95 %: {one.low:.3f} to {one.high:.3f})"
    return f"{one.value:.3f}{ends}"


def _change(one: Estimate) -> str:
    ends = "" if isnan(one.low) else f" (95 %: {one.low:+.3f} to {one.high:+.3f})"
    return f"{one.value:+.3f}{ends}"


# --- table, picture, folder -----------------------------------------------------------------------


def table(joined: Joined) -> Table:
    """A line a candidate: its score, and against training alone."""
    less = joined.task.main_metric in joined.task.lower_is_better
    title = f"{metric_name(joined.task.main_metric)} of {joined.choices.site}'s test images"
    made = new_table(title, "")
    for head in ("score (95 %)", "minus alone (95 %)"):
        made.add_column(head, justify="right", no_wrap=True)
    made.add_column("")  # folded, in 80 columns
    for one in joined.found.candidates:
        score, gain = joined.estimate(one.name), joined.gain(one.name)
        assert score is not None
        cells = [with_interval(score)]
        if gain is not None:
            change = _change(gain.estimate).replace("95 %: ", "")
            cells += [change, verdict(gain, less)]
        made.add_row(escape(one.name), *cells)
    return made


def notes(joined: Joined) -> Iterator[str]:
    """What the numbers are about."""
    number = len(joined.choices.seeds)
    yield (
        f"Validation images chose the start, epochs and lambda; {number} seed{'s' * (number > 1)}; "
        "intervals: 95 %, bootstrap over patients, of the same draws on both sides of a "
        f"difference; p: flipped signs, Holm for all lines; {SAME}: which is not that they are "
        "equal."
    )


def write_report(joined: Joined, out: Path) -> None:
    """Words, table and picture; the numbers last, so that a folder with them is whole."""
    with look():
        write_figure(draw(joined), out / PICTURE)
    question = f"# What would joining late bring {joined.choices.site}?\n\n"
    said = "\n".join(f"- {line}" for line in words(joined))
    picture = f"![Test scores of {joined.choices.site}]({PICTURE})"
    below = "\n".join(notes(joined))
    text = f"{question}{said}\n\n{as_markdown(plain(table(joined)))}\n{below}\n\n{picture}\n"
    write_text(out / SUMMARY, text)
    write_text(out / REPORT, json.dumps(as_json(joined), indent=1, allow_nan=False) + "\n")


def as_json(joined: Joined) -> dict[str, Any]:
    """Every number; what does not exist is null."""
    lines = []
    for one in joined.found.candidates:
        score, gain = joined.estimate(one.name), joined.gain(one.name)
        assert score is not None
        against = None
        if gain is not None:
            against = _numbers(gain.estimate) | {"p": gain.p, "holm": gain.corrected}
        lines.append({"who": one.name, "score": _numbers(score), "minus_alone": against})
    facts = {"metric": joined.task.main_metric, "patients": joined.found.patients or None}
    said = {"final": joined.choices.final, "words": list(words(joined))}
    return facts | {"choices": asdict(joined.choices), "compared": lines} | said


def _numbers(one: Estimate) -> dict[str, float | None]:
    return {key: None if isnan(value) else value for key, value in one._asdict().items()}


def draw(joined: Joined) -> Figure:
    """A mark with its interval for each candidate; training alone is the dotted line."""
    names = [one.name for one in joined.found.candidates]
    figure = new_figure(1.4 + 0.32 * len(names), 7.0)
    axes = figure.subplots()
    axes.grid(axis="x")
    for place, name in enumerate(names):
        one = joined.estimate(name)
        assert one is not None
        colour = FAINT if name in (ALONE, SHORT) else FURTHER_COLOURS[0]
        axes.plot([one.low, one.high], [place, place], color=colour, linewidth=2)
        axes.plot([one.value], [place], "o", color=colour, markersize=6)
        if name == ALONE:
            axes.axvline(one.value, color=FAINT, linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel("bars: 95 % over patients; dotted: training alone")
    title = f"{metric_name(joined.task.main_metric)} of {joined.choices.site}'s test images"
    axes.set_title(title)
    return figure
