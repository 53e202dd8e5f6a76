"""What `konsil analyze cross` and `selector` compute and draw of finished runs: whose model is good
where, and how well the selector tells hospitals apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.markup import escape
from rich.table import Table

from konsil.colours import FURTHER_COLOURS
from konsil.data import test_images
from konsil.errors import RunError
from konsil.evaluation import batches
from konsil.evaluation.foreign import SUPER, columns_alone
from konsil.evaluation.routing import CONFIDENCES
from konsil.evaluation.scores import FILE, LIKE, rows_of_images
from konsil.federation.plan import Job, Plan
from konsil.report.series import metric_name
from konsil.report.style import FAINT, INK, new_figure
from konsil.report.tables import new_table
from konsil.supermodel import GLOBAL, SuperModel
from konsil.tasks.classification import BINS, expected_calibration_error

Matrix = dict[str, dict[str, float]]  # model -> site -> score there, mean over seeds
ALWAYS = 0  # the seed of t-SNE


def jobs_of(plan: Plan, folder: Path, method: str) -> list[Job]:
    """The finished jobs of a method, by its label; RunError if there are none."""
    known = list(dict.fromkeys(job.method for job in plan.jobs))
    if method not in known:
        raise RunError(f"--method {method}: the run has {', '.join(known)}")
    done = [
        j for j in plan.jobs if j.method == method and (folder / j.name / "result.json").exists()
    ]
    if not done:
        raise RunError(f"{folder}: no job of {method} is done")
    return done


def model_of(folder: Path, job: Job, device: str) -> SuperModel:
    """What a job has left to ask."""
    found = [folder / job.name / kind for kind in ("supermodel", "model")]
    there = next((path for path in found if (path / "model.json").exists()), None)
    if there is None:
        raise RunError(f"{folder / job.name}: left no model here; its hospitals keep theirs")
    return SuperModel.load(there, device)


# --- whose model is good where --------------------------------------------------------------------


def cross_scores(folder: Path, plan: Plan, jobs: Sequence[Job]) -> Matrix:
    """What every model of these jobs scores on every site's test images, by the main metric."""
    if not plan.data_folder.is_dir():
        raise RunError(f"{folder}: its images are not here; between hospitals nobody has them all")
    found: dict[tuple[str, str], list[float]] = {}
    for job in jobs:
        model = model_of(folder, job, plan.experiment.compute.device)
        task = plan.method(job).context.task
        for site in plan.sites:
            images = test_images(plan.data_folder, site)
            for name in model.answerers:
                columns = columns_alone(model, name, images, task)
                score = task.summarise(columns)[task.main_metric]
                found.setdefault((name, site), []).append(score)
    names = [name for name in (GLOBAL, *plan.sites) if (name, plan.sites[0]) in found]
    if names in ([], [GLOBAL]):
        raise RunError(f"{jobs[0].method}: its sites have no models of their own")
    return {n: {s: float(np.mean(found[n, s])) for s in plan.sites} for n in names}


def cross_table(matrix: Matrix, method: str, metric: str) -> Table:
    """A line a model, a column a site; at home it is marked."""
    title = f"{method}: {metric_name(metric)} of every model on every site's test images"
    table = new_table(title, "model of")
    sites = list(next(iter(matrix.values())))
    for column in (*sites, "elsewhere"):
        table.add_column(escape(column), justify="right", overflow="fold", min_width=5)
    for name, scores in matrix.items():
        cells = [f"[bold]{scores[s]:.3f}[/]" if s == name else f"{scores[s]:.3f}" for s in sites]
        elsewhere = np.mean([score for site, score in scores.items() if site != name])
        table.add_row(escape(name), *cells, f"{elsewhere:.3f}")
    table.caption = "bold: at home; elsewhere: the mean of the other sites"
    return table


def draw_cross(matrix: Matrix, method: str, metric: str) -> Figure:
    """The same as a picture."""
    names, sites = list(matrix), list(next(iter(matrix.values())))
    values = np.array([[matrix[name][site] for site in sites] for name in names])
    figure = new_figure(1.4 + 0.5 * len(names))
    axes = figure.subplots()
    _heat(axes, values, names, sites, "{:.3f}")
    axes.set_title(f"{method}: {metric_name(metric)} of a row's model on a column's test images")
    return figure


def _heat(
    axes: Axes, values: np.ndarray, rows: Sequence[str], columns: Sequence[str], form: str
) -> None:
    axes.imshow(values, cmap="Blues", aspect="auto", vmin=values.min(), vmax=values.max() + 1e-9)
    middle = (values.min() + values.max()) / 2
    for (row, column), value in np.ndenumerate(values):
        colour = "white" if value > middle else INK
        axes.text(column, row, form.format(value), ha="center", va="center", color=colour)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


# --- how well the selector tells hospitals apart --------------------------------------------------


@dataclass(frozen=True)
class Telling:
    """What a selector says of all test images, all seeds together."""

    sites: Sequence[str]
    confusion: np.ndarray  # [sites, sites]: share of a row's images that are taken for a column's
    confidence: np.ndarray  # of every image
    right: np.ndarray

    @property
    def error(self) -> float:
        """The expected calibration error."""
        return expected_calibration_error(self.confidence, self.right)

    def bins(self) -> list[tuple[float, float, int]]:
        """How sure, how often right, and how many images, of every bin that has any."""
        place = np.minimum((self.confidence * BINS).astype(int), BINS - 1)
        return [
            (float(self.confidence[of].mean()), float(self.right[of].mean()), int(of.sum()))
            for of in (place == k for k in range(BINS))
            if of.any()
        ]


def telling(folder: Path, method: str, sites: Sequence[str]) -> Telling:
    """From the scores that the run has kept."""
    path = folder / FILE
    if not path.exists():
        raise RunError(f"{path}: not there; policies that let only means out leave none")
    said = telling_of(super_rows([path]).get(method, []), sites)
    if said is None:
        raise RunError(f"{method}: no selector of sites among its scores")
    return said


def super_rows(paths: Sequence[Path]) -> dict[str, list[dict[str, Any]]]:
    """What is known of every super model's answers: method -> a row a test image and seed."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in paths:
        for row in rows_of_images(path, SUPER):
            found.setdefault(row["method"], []).append(row)
    return found


def telling_of(rows: Sequence[dict[str, Any]], sites: Sequence[str]) -> Telling | None:
    """From one super model's rows, all seeds together; None: its selector names no sites."""
    rows = [row for row in rows if row.get(CONFIDENCES[0]) is not None]
    if not rows:
        return None
    like = np.array([[row[f"{LIKE}{site}"] for site in sites] for row in rows])
    own = np.array([sites.index(row["site"]) for row in rows])
    counts = np.zeros((len(sites), len(sites)))
    np.add.at(counts, (own, like.argmax(axis=1)), 1)
    confidence = np.array([row[CONFIDENCES[0]] for row in rows])
    right = np.array([row["selector_accuracy"] for row in rows])
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return Telling(sites, shares, confidence, right)


def features_of(folder: Path, plan: Plan, job: Job) -> tuple[np.ndarray, np.ndarray]:
    """What the selector sees of every test image, and of which site (a number) it is."""
    model = model_of(folder, job, plan.experiment.compute.device)
    found, sites = [], []
    for number, site in enumerate(plan.sites):
        for x, _ in batches(test_images(plan.data_folder, site), model.device):
            found.append(model.selector(x)[1].cpu())
            sites += [number] * len(x)
    return torch.cat(found).double().numpy(), np.array(sites)


def flattened(features: np.ndarray) -> np.ndarray:
    """t-SNE of features in units of their deviation, [images, 2]."""
    from sklearn.manifold import TSNE

    scaled = (features - features.mean(axis=0)) / np.maximum(features.std(axis=0), 1e-9)
    near = max(1, min(30, (len(features) - 1) // 3))
    return np.asarray(TSNE(perplexity=near, random_state=ALWAYS, init="pca").fit_transform(scaled))


def draw_selector(
    said: Telling, points: np.ndarray | None, own: np.ndarray | None, method: str
) -> Figure:
    """Which site is taken for which, how sure against how right, and the map of the images."""
    panels = 2 if points is None else 3
    figure = new_figure(3.6, width=3.4 * panels)
    axes = figure.subplots(1, panels)
    _heat(axes[0], said.confusion, said.sites, said.sites, "{:.0%}")
    axes[0].tick_params(axis="x", rotation=60)
    axes[0].set_title("Row's images taken for")
    _reliability(axes[1], said)
    if points is not None and own is not None:
        _map(axes[2], points, own, said.sites)
    figure.suptitle(f"{method}: the selector on test images", x=0.01, ha="left", fontsize=10)
    return figure


def draw_reliability(said: Telling) -> Figure:
    """How sure against how right, alone."""
    figure = new_figure(3.6, width=4.2)
    _reliability(figure.subplots(), said)
    return figure


def _reliability(axes: Axes, said: Telling) -> None:
    axes.plot([0, 1], [0, 1], color=FAINT, linewidth=0.8)
    sure, right, images = zip(*said.bins(), strict=True)
    axes.scatter(sure, right, s=[10 + 90 * n / max(images) for n in images], color="#D55E00")
    axes.set_xlabel("how sure the selector is")
    axes.set_ylabel("how often it is right")
    axes.set_title(f"Calibration error {said.error:.3f}")


def _map(axes: Axes, points: np.ndarray, own: np.ndarray, sites: Sequence[str]) -> None:
    for number, site in enumerate(sites):
        colour = FURTHER_COLOURS[number % len(FURTHER_COLOURS)]
        x, y = points[own == number].T
        axes.scatter(x, y, s=8, color=colour, label=site)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title("t-SNE of what it sees")
    axes.legend(fontsize=7, loc="best", markerscale=1.5)


def selector_table(said: Telling, method: str) -> Table:
    """Which site's images are taken for which."""
    table = new_table(f"{method}: a row's test images are taken for", "site")
    for site in said.sites:
        table.add_column(escape(site), justify="right", overflow="fold", min_width=5)
    for site, row in zip(said.sites, said.confusion, strict=True):
        table.add_row(escape(site), *(f"{share:.0%}" for share in row))
    table.caption = f"calibration error {said.error:.3f}, {len(said.right)} answers"
    return table
