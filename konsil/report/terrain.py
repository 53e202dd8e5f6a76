"""What a finished run has left to be looked at: models by the names of its tables, and the loss on
training and validation images. No test image is opened.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any, Generic, TypeVar

from konsil.data import Images, TrainingData, training_data
from konsil.errors import RunError
from konsil.evaluation import batches
from konsil.evaluation.landscape import Height, height
from konsil.evaluation.results import Series, read_results, read_rows, write_rows
from konsil.federation.plan import Job, Plan
from konsil.ingredients.learner import recompute_statistics
from konsil.networks import build_network
from konsil.report.analysis import jobs_of, model_of
from konsil.supermodel import GLOBAL, SuperModel
from konsil.tasks import Task
from konsil.weights import BoundNetwork, Weights

SPLITS = {"train": "training images", "val": "validation images"}
Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Answerer:
    """A model of a job; with `own` every site has another one."""

    job: Job
    role: str
    own: bool

    @property
    def name(self) -> str:
        """As tables have it."""
        return Series(self.job.method, self.role).name

    @property
    def full(self) -> str:
        """The name with its seed behind it."""
        return f"{self.name}@{self.job.seed}"


class Terrain:
    """The models of a run and the images that they were trained with."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        """RunError if the images are not here."""
        if not plan.data_folder.is_dir():
            raise RunError(f"{folder}: its images are not here; losses need training images")
        self.folder, self.plan = folder, plan
        self._held: tuple[str, SuperModel] | None = None
        self._data: dict[str, TrainingData] = {}

    @cached_property
    def task(self) -> Task:
        """Of all methods of the run."""
        return self.plan.context(self.plan.jobs[0], self.plan.sites).task

    @cached_property
    def network(self) -> BoundNetwork:
        """Of all models of the run."""
        spec = self.plan.context(self.plan.jobs[0], self.plan.sites).network
        return BoundNetwork(build_network(spec), self.plan.experiment.compute.device)

    def images(self, site: str, split: str) -> Images:
        """A site's training images (`train`), or those for validation (`val`)."""
        if site not in self._data:
            self._data[site] = training_data(self.plan.data_folder, (site,))
        return {"train": self._data[site].train, "val": self._data[site].val}[split]

    def site(self, name: str | None) -> str:
        """The site of that name; without one the hardest."""
        if name is None:
            return self.hardest
        if name not in self.plan.sites:
            raise RunError(f"--site {name}: the run has {', '.join(self.plan.sites)}")
        return name

    @cached_property
    def hardest(self) -> str:
        """The site whose validation images all models together answer worst."""
        rows = read_results(self.folder / "results.csv")
        wanted = "val", self.task.main_metric
        scores: dict[str, list[float]] = {site: [] for site in self.plan.sites}
        for row in rows:
            if (row.split, row.metric) == wanted and row.site in scores:
                scores[row.site].append(row.value)
        known = [site for site in scores if scores[site]]
        return min(known or self.plan.sites, key=lambda site: mean(scores[site] or [0.0]))

    # --- models -----------------------------------------------------------------------------------

    def answerers(self, job: Job) -> list[Answerer]:
        """The models that a job leaves: the one for all, and the sites' own."""
        method = self.plan.method(job)
        shared = [Answerer(job, role, own=False) for role in method.shared_roles[:1]]
        return shared + [Answerer(job, role, own=True) for role in method.private_roles[:1]]

    def named(self, name: str) -> Answerer:
        """By the name of a table's line, `fedavg global`; of its first seed unless `@1` follows."""
        done = [j for j in self.plan.jobs if (self.folder / j.name / "result.json").exists()]
        if not done:
            raise RunError(f"{self.folder}: no job is done; go on with konsil run --resume")
        known = [one for job in done for one in self.answerers(job)]
        found = next((one for one in known if name in (one.name, one.full)), None)
        if found is None:
            names = ", ".join(dict.fromkeys(one.name for one in known))
            seeds = ", ".join(f"@{seed}" for seed in dict.fromkeys(job.seed for job in done))
            raise RunError(
                f"{name}: the run has left no such model; there are {names}, each with its seed "
                f"behind it if wanted ({seeds})"
            )
        return found

    def of_seed(self, label: str, seed: int | None) -> list[Answerer]:
        """The models of a method with this seed, or with the first that is done."""
        done = jobs_of(self.plan, self.folder, label)
        found = next((job for job in done if seed in (None, job.seed)), None)
        if found is None:
            seeds = ", ".join(str(job.seed) for job in done)
            raise RunError(f"--seed {seed}: {label} is done with seeds {seeds}")
        return self.answerers(found)

    def weights(self, one: Answerer, site: str) -> Weights:
        """Of the model that answers at a site."""
        models = self._model(one.job).models
        name = site if one.own else GLOBAL
        if name not in models:
            raise RunError(f"{one.name}: {site} has kept its own model")
        return models[name]

    def recalibrated(self, weights: Weights, site: str) -> Weights:
        """With running statistics recomputed on the site's training images."""
        self.network.load(weights)
        images = self.images(site, "train")
        recompute_statistics(self.network, batches(images, self.network.flat.device))
        return self.network.weights()

    def check_recomputes(self) -> None:
        """RunError if there are no statistics that could be recomputed."""
        if not any(self.network.norm_layers()):
            raise RunError("--recompute: networks of this run keep no running statistics")

    def height(self, weights: Weights, site: str, split: str) -> Height:
        """Loss and main metric of weights on a site's images."""
        return height(self.network, weights, self.task, self.images(site, split))

    def _model(self, job: Job) -> SuperModel:
        if self._held is None or self._held[0] != job.name:  # one job's models are enough memory
            device = self.plan.experiment.compute.device
            self._held = job.name, model_of(self.folder, job, device)
        return self._held[1]


def file_name(*words: str) -> str:
    """Words as the name of a file, without its ending."""
    return re.sub(r"[^\w.@-]+", "-", "-".join(words))


# --- what is computed once ------------------------------------------------------------------------

R = TypeVar("R", bound=tuple[Any, ...])


class Kept(Generic[R]):
    """Rows of a file that stands whole after every step, so that none is computed twice.

    A finished run's models do not change, so what was found of them stays true.
    """

    def __init__(self, path: Path, kind: type[R], keys: int, again: bool = False) -> None:
        """`keys`: so many columns say what a row is of; `again`: compute what is there, too."""
        self.path, self.kind, self.keys = path, kind, keys
        found: Sequence[R] = read_rows(path, kind) if path.exists() else []
        self.rows = {tuple(row[:keys]): row for row in found}
        self._stale = set(self.rows) if again else set()
        self.old = 0  # rows that were asked for and known

    def has(self, *key: Any) -> bool:
        """Whether a row need not be computed."""
        known = key in self.rows and key not in self._stale
        self.old += known
        return known

    def add(self, rows: Sequence[R]) -> None:
        """More of them, on the disk when this returns."""
        for row in rows:
            key = tuple(row[: self.keys])
            self.rows[key] = row
            self._stale.discard(key)
        write_rows(self.path, self.kind, self.rows.values())

    def __getitem__(self, key: tuple[Any, ...]) -> R:
        return self.rows[key]
