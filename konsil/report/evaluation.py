"""What `konsil evaluate` says and leaves: words, a table, a picture, numbers. No file is named."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from math import isnan, nan
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.markup import escape
from rich.table import Table

from konsil.colours import FURTHER_COLOURS
from konsil.errors import RunError
from konsil.evaluation.files import OWN, SiteScores
from konsil.evaluation.foreign import SUPER
from konsil.evaluation.routing import SCORE_OF
from konsil.evaluation.scores import FILE, Scored, write_scores
from konsil.evaluation.standing import ALIKE, BETTER, UNKNOWN, WORSE, Standing, standing
from konsil.evaluation.statistics import Estimate
from konsil.files import write_text
from konsil.report.series import metric_name
from konsil.report.show import MISSING
from konsil.report.style import FAINT, INK, look, new_figure, write_figure
from konsil.report.tables import as_markdown, new_table, plain
from konsil.supermodel import SuperModel
from konsil.supermodel.predict import AUTO
from konsil.tasks import Task

REPORT, SUMMARY, PICTURE = "report.json", "summary.md", "figures/evaluation.png"
VERDICTS = {
    BETTER: "It serves these images better than those of its own hospitals.",
    WORSE: "It serves these images worse than those of its own hospitals.",
    ALIKE: "No difference to its own hospitals was found, which is not to say that there is none.",
    UNKNOWN: "How sure that is nobody can say: intervals are missing, here or in the model.",
}


# --- words ----------------------------------------------------------------------------------------


def estimate_of(one: SiteScores, metric: str, own: bool = False) -> Estimate:
    """A score with the ends of its interval; nan where there are none."""
    values = one.own_size if own else one.scores
    low, high = one.intervals.get(f"{OWN if own else ''}{metric}", (nan, nan))
    return Estimate(values.get(metric, nan), low, high)


def standing_of(model: SuperModel, one: SiteScores, ask: str, task: Task) -> Standing | None:
    """A site beside the model's own hospitals, by the task's main metric."""
    here = estimate_of(one, task.main_metric)
    return standing(model.facts, ask, task.main_metric, here)


def words(model: SuperModel, one: SiteScores, ask: str, task: Task) -> Iterator[str]:
    """Does it serve this site as well as its own hospitals? One screen at most."""
    name = metric_name(task.main_metric)
    images = f"{one.images} labelled images of {one.patients} patients"
    yield f"{one.site}: {name} {_ends(estimate_of(one, task.main_metric))}, {images}."
    found = standing_of(model, one, ask, task)
    if found is None:
        yield "The model's folder does not tell what it scores at its own hospitals."
    else:
        yield from _beside(found, name)
    if one.own_size:
        own = estimate_of(one, task.main_metric, own=True)
        yield f"On the masks as they are: {_ends(own)}."
    yield from _of_routing(model, one, task)
    yield from (f"Note: {note}." for note in one.notes)


def _beside(found: Standing, name: str) -> Iterator[str]:
    hospitals, worst, best = found.hospitals, found.worst, found.best
    yield (
        f"Its own hospitals' test images: {_ends(found.mean)} in the mean of {len(hospitals)}, "
        f"from {hospitals[worst].value:.3f} ({worst}) to {hospitals[best].value:.3f} ({best})."
    )
    change = found.difference
    ends = "" if isnan(change.low) else f" (95 %: {change.low:+.3f} to {change.high:+.3f})"
    yield f"Difference: {change.value:+.3f}{ends}. {VERDICTS[found.verdict]}"
    if found.here.value < hospitals[worst].value:
        yield f"Every hospital that took part has a higher {name}."


def _of_routing(model: SuperModel, one: SiteScores, task: Task) -> Iterator[str]:
    who = ", ".join(f"{name} {count}" for name, count in one.asked.items())
    share = one.unfamiliar / one.images
    foreign = f" {one.unfamiliar} ({share:.0%}) are like no site's." if one.unfamiliar else ""
    yield f"Asked: {who}.{foreign}"
    alone = alone_scores(one)
    best = max(alone, key=alone.__getitem__, default="")
    if len(alone) > 1 and [*one.asked] != [best]:
        yield (
            f"Alone, of its models {best} would have {alone[best]:.3f} here, the most of all; "
            "that is seen on these very images, and would have to be confirmed on others."
        )


def alone_scores(one: SiteScores) -> dict[str, float]:
    """What each model would score if it answered everything, by its name."""
    found = {n: v for n, v in one.columns.items() if n.startswith(SCORE_OF)}
    return {n.removeprefix(SCORE_OF): sum(v) / len(v) for n, v in found.items()}


def _ends(one: Estimate) -> str:
    ends = "" if isnan(one.low) else f" (95 %: {one.low:.3f} to {one.high:.3f})"
    return f"{one.value:.3f}{ends}"


# --- tables ---------------------------------------------------------------------------------------


def scores_table(scored: Sequence[SiteScores], task: Task, size: int) -> Table:
    """A line a metric, a column a site: at the network's size, then on the masks as they are."""
    table = new_table(f"the super model on labelled images, at {size} px", "")
    for one in scored:
        table.add_column(escape(one.site), justify="right")
    for metric in dict.fromkeys(name for one in scored for name in one.scores):
        less = ", less is better" if metric in task.lower_is_better else ""
        numbers = [estimate_of(one, metric) for one in scored]
        table.add_row(f"{metric_name(metric)}{less}", *map(_cell, numbers))
    for metric in dict.fromkeys(name for one in scored for name in one.own_size):
        numbers = [estimate_of(one, metric, own=True) for one in scored]
        table.add_row(f"{metric_name(metric)}, own size", *map(_cell, numbers))
    table.add_row("images", *(str(one.images) for one in scored))
    table.add_row("patients", *(str(one.patients) for one in scored))
    table.add_row("like no site's", *(f"{one.unfamiliar / one.images:.0%}" for one in scored))
    return table


def _cell(one: Estimate) -> str:
    if isnan(one.value):
        return MISSING
    ends = "" if isnan(one.low) else f" ({one.low:.3f} to {one.high:.3f})"
    return f"{one.value:.3f}{ends}"


# --- the folder -----------------------------------------------------------------------------------


def claim(out: Path, overwrite: bool) -> None:
    """Refuse a folder that has a report already."""
    if (out / REPORT).exists() and not overwrite:
        raise RunError(f"{out}: has a report already; choose another folder, or --overwrite")


def write_report(
    out: Path, model: SuperModel, scored: Sequence[SiteScores], ask: str, task: Task
) -> None:
    """All of it; the numbers last, so that a folder with `report.json` is whole."""
    out.mkdir(parents=True, exist_ok=True)
    (out / REPORT).unlink(missing_ok=True)
    told = model.facts.provenance
    role = SUPER if ask == AUTO else ask
    columns = {one.site: one.columns for one in scored}
    sites = model.facts.sites
    rows = Scored(told.get("method", "model"), told.get("seed", 0), role, sites, columns)
    write_scores(out / FILE, rows.rows(task, {one.site: one.numbers for one in scored}))
    with look():
        write_figure(draw(model, scored, ask, task), out / PICTURE)
    write_text(out / SUMMARY, _summary(model, scored, ask, task))
    text = json.dumps(as_json(model, scored, ask, task), indent=1, allow_nan=False)
    write_text(out / REPORT, text + "\n")


def _summary(model: SuperModel, scored: Sequence[SiteScores], ask: str, task: Task) -> str:
    size = model.facts.network["image_size"]
    said = "\n\n".join("\n".join(f"- {t}" for t in words(model, o, ask, task)) for o in scored)
    table = as_markdown(plain(scores_table(scored, task, size)))
    question = "Does the super model serve these images as well as its own hospitals'?"
    picture = f"![Scores here and at the model's own hospitals]({PICTURE})"
    note = (
        "Intervals: 95 %, bootstrap over patients (of the model's own hospitals as its folder "
        "tells them); they say nothing of other hospitals."
    )
    return f"# {question}\n\n{said}\n\n{table}\n{note}\n\n{picture}\n"


def as_json(
    model: SuperModel, scored: Sequence[SiteScores], ask: str, task: Task
) -> dict[str, Any]:
    """Every number of the report; what does not exist is null."""
    facts = model.facts
    return {
        "model": {"plan": facts.plan, "sites": facts.sites, "labels": facts.labels,
                  **{k: facts.provenance.get(k) for k in ("konsil", "method", "seed")}},
        "ask": ask,
        "image_size": facts.network["image_size"],
        "sites": [_site_as_json(model, one, ask, task) for one in scored],
    }  # fmt: skip


def _site_as_json(model: SuperModel, one: SiteScores, ask: str, task: Task) -> dict[str, Any]:
    said = {key: value for key, value in vars(one).items() if key not in ("columns", "numbers")}
    found = standing_of(model, one, ask, task)
    beside = None
    if found is not None:
        beside = {
            "metric": task.main_metric,
            "hospitals": {site: _numbers(score) for site, score in found.hospitals.items()},
            "mean": _numbers(found.mean),
            "difference": _numbers(found.difference),
            "verdict": found.verdict,
        }
    said["unfamiliar_share"] = one.unfamiliar / one.images
    said["alone"] = alone_scores(one)
    return said | {"beside_its_own": beside, "words": list(words(model, one, ask, task))}


def _numbers(one: Estimate) -> dict[str, float | None]:
    return {key: None if isnan(value) else value for key, value in one._asdict().items()}


# --- the picture ----------------------------------------------------------------------------------


def draw(model: SuperModel, scored: Sequence[SiteScores], ask: str, task: Task) -> Figure:
    """The score here beside those of the model's own hospitals, and who was asked."""
    beside = standing_of(model, scored[0], ask, task)
    hospitals = {} if beside is None else dict(beside.hospitals)
    figure = new_figure(1.5 + 0.3 * (len(hospitals) + len(scored)))
    marks, asked = figure.subplots(1, 2, width_ratios=(3, 2))
    here = {one.site: estimate_of(one, task.main_metric) for one in scored}
    _draw_marks(marks, hospitals, here)
    if beside is not None:
        marks.axvline(beside.mean.value, color=FAINT, linewidth=0.8, linestyle=":")
        marks.set_xlabel("dotted: mean of the model's own hospitals; bars: 95 % over patients")
    marks.set_title(f"{metric_name(task.main_metric)}: here, and at the model's own hospitals")
    _draw_asked(asked, scored)
    return figure


def _draw_marks(axes: Axes, hospitals: dict[str, Estimate], here: dict[str, Estimate]) -> None:
    rows = [*((s, e, FAINT, "o") for s, e in hospitals.items()),
            *((f"{s} (here)", e, FURTHER_COLOURS[0], "D") for s, e in here.items())]  # fmt: skip
    axes.grid(axis="x")
    for place, (_, estimate, colour, marker) in enumerate(rows):
        axes.plot([estimate.low, estimate.high], [place, place], color=colour, linewidth=2)
        axes.plot([estimate.value], [place], marker, color=colour, markersize=6)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)


def _draw_asked(axes: Axes, scored: Sequence[SiteScores]) -> None:
    """Shares of the images by who answered, a bar a site."""
    names = list(dict.fromkeys(name for one in scored for name in one.asked))
    colours = {n: FURTHER_COLOURS[k % len(FURTHER_COLOURS)] for k, n in enumerate(names)}
    for place, one in enumerate(scored):
        left = 0.0
        for name, count in one.asked.items():
            share = count / one.images
            first = name not in axes.get_legend_handles_labels()[1]
            label = name if first else None
            axes.barh(place, share, left=left, color=colours[name], height=0.6, label=label)
            left += share
        axes.text(1.02, place, f"{one.unfamiliar / one.images:.0%}", va="center", color=INK)
    axes.set_yticks(range(len(scored)), [one.site for one in scored])
    axes.set_ylim(len(scored) - 0.5, -0.5)
    axes.set_xlim(0, 1.15)
    axes.set_xlabel("share of the images; on the right: like no site's")
    axes.set_title("Who was asked")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.35), ncols=3, fontsize=8)
