"""Example images of a page: of every hospital the best, a typical and the worst answer.

FedSM's Fig. 7 and 8. Best and worst by whoever a hospital that joins is answered by.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from statistics import mean
from typing import Any

from konsil.data import test_images
from konsil.evaluation.results import Series
from konsil.evaluation.scores import FILE, rows_of_images
from konsil.federation.plan import Job
from konsil.report.answers import Panel
from konsil.report.charts import Picture
from konsil.report.predictions import draw_predictions, picture_rows
from konsil.report.runs import Run, Runs
from konsil.report.style import look

LABELS = ("best", "median", "worst")
DPI = 110


def example_pictures(
    runs: Runs, joined: Series, shown: Sequence[Series]
) -> tuple[list[Picture], list[str]]:
    """A picture a hospital, with the answers of all who are shown; what is missing, and why."""
    values = values_of_images(runs, joined)
    if not values:
        return [], ["no single images' scores are known, so which are best and worst is not"]
    panels = [panel for one in shown for panel in _panels(runs, one)]
    home = next((run for run in runs.runs if run.plan.data_folder.is_dir()), None)
    if home is None:
        return [], ["the images are not on this machine; pictures are drawn where they are"]
    pictures, lacking = list[Picture](), list[str]()
    for site, of_images in values.items():
        here = [panel for panel in panels if panel.is_here(site)]
        if here:
            pictures.append(_picture(home, here, site, of_images, joined))
        else:
            lacking.append(f"{site}: the models are not in these folders")
    return pictures, lacking


def values_of_images(runs: Runs, joined: Series) -> dict[str, list[float]]:
    """How well each test image of a hospital is answered, mean over seeds."""
    found: dict[str, dict[int, list[float]]] = {}
    for folder in runs.told:
        for row in rows_of_images(folder / FILE, joined.role):
            if row["method"] == joined.method:
                own = found.setdefault(row["site"], {})
                own.setdefault(row["image"], []).append(_value(row, runs.task.main_metric))
    return {site: [mean(own[k]) for k in sorted(own)] for site, own in found.items()}


def _value(row: dict[str, Any], metric: str) -> float:
    """The metric; of a class how surely the answer is right, below 0 how surely it is wrong."""
    if row.get("predicted") is None:
        return float(row[metric])
    right = row["predicted"] == row["target"]
    return float(row["confidence"]) * (1 if right else -1)


def _panels(runs: Runs, one: Series) -> list[Panel]:
    """The models of a method's first job that is done: one panel or none."""
    for run in runs.runs:
        for job in run.plan.jobs:
            if job.method == one.method and (run.folder / job.name).is_dir():
                return [_panel(run, job, one.role)]
    return []


def _panel(run: Run, job: Job, role: str) -> Panel:
    return Panel(run.folder, run.plan, job, {role})


def extremes(values: Sequence[float]) -> list[int]:
    """The places of the best, the median and the worst, each once."""
    order = sorted(range(len(values)), key=lambda place: (-values[place], place))
    places = [order[0], order[(len(order) - 1) // 2], order[-1]]
    return list(dict.fromkeys(places))


def _picture(
    home: Run, panels: Sequence[Panel], site: str, values: Sequence[float], joined: Series
) -> Picture:
    chosen = extremes(values)
    labels = LABELS if len(chosen) == len(LABELS) else LABELS[:: len(LABELS) - 1]
    images = test_images(home.plan.data_folder, site)
    task = panels[0].method.context.task
    caption = (
        f"{site}: test images that {joined.name} answers best, typically and worst; truth, and "
        "what the models of one seed say"
    )
    with look():
        rows = picture_rows(panels, site, images, chosen, labels)
        figure = draw_predictions(rows, task, "")
        files = {kind: io.BytesIO() for kind in ("png", "svg")}
        for kind, file in files.items():
            made: dict[str, Any] = {"metadata": {"Date": None}} if kind == "svg" else {"dpi": DPI}
            figure.savefig(file, format=kind, facecolor="white", **made)
    png, svg = (file.getvalue() for file in files.values())
    return Picture(f"examples-{site}", png, caption, svg, of_patients=True)
