"""What sites make of a finished run's models by training them further, each on its own images.

The models are those that the run has evaluated: a site's own where the method has one, else the
model for all. Fine-tuning is the same for every method: all weights move, with the experiment's
own training, a fresh optimiser and a constant rate. A soup is done by then and stays as it is.
Nobody chooses anything with what is found here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Any

from konsil.data import test_images, training_data
from konsil.errors import RunError
from konsil.evaluation.scores import EPOCHS, MODEL, Scored
from konsil.federation.compute import prepare_process
from konsil.federation.plan import Job, Plan
from konsil.federation.site_worker import site_folder
from konsil.federation.state import SiteState
from konsil.ingredients.context import Context, TrainedNetwork
from konsil.ingredients.finetune import tuned_epochs
from konsil.ingredients.site import Networks, Site
from konsil.randomness import global_stream
from konsil.weights import Weights

LEARNER = "personal"


@dataclass(frozen=True)
class TestImages:
    """Where a site's test images lie, and whose they are; nobody: it is not known."""

    data_folder: Path
    patients: Sequence[int] | None

    __test__ = False  # pytest shall not take it for a test


@dataclass(frozen=True)
class Personalising:
    """A finished run, and the test images that its sites' models are asked about."""

    plan: Plan
    folder: Path
    tests: Mapping[str, TestImages]  # of its sites, and of one that it has left out

    def rows(self, job: Job, site: str, epochs: Collection[int]) -> Iterator[dict[str, Any]]:
        """What a site's model scores on every site's test images after so many local epochs.

        As in scores.parquet, with whose `model` it is and after how many `epochs`.
        """
        context = self._context(job)
        role, left = self._left_by(job, site)
        networks = Networks(
            context,
            {LEARNER: TrainedNetwork(context.network, "reset")},
            self.plan.experiment.compute,
        )
        data = training_data(self.plan.data_folder, (site,))
        at = Site(site, context.rounds + 1, networks, data, SiteState(), {})
        # the streams of fine-tuning at the end of a run (`ft`): its models are found again
        with global_stream(job.seed, site, at.round, "local"):
            tuned = chain([left], tuned_epochs(at, LEARNER, left, max(epochs)))
            for epoch, weights in enumerate(tuned):
                _check_finite(weights, job, site, epoch)
                if epoch in epochs:
                    for row in self._asked(job, role, networks, weights):
                        yield row | {MODEL: site, EPOCHS: epoch}

    def _context(self, job: Job) -> Context:
        """That of the job's federation, with the training that all methods share."""
        experiment = self.plan.experiment
        context = self.plan.context(job, self.plan.sites)
        return replace(context, training=self.plan.training_of(experiment.training))

    def _left_by(self, job: Job, site: str) -> tuple[str, Weights]:
        """The role in which a site uses the model that the run has left it, and the model."""
        method, folder = self.plan.method(job), self.folder / job.name
        own, shared = method.private_roles, method.shared_roles
        if own:
            path = site_folder(folder, site) / "best" / f"{own[0]}.safetensors"
        else:
            path = folder / "checkpoints" / "best" / f"{shared[0]}.safetensors"
        if not path.exists():
            raise RunError(f"{path}: not there; between hospitals each keeps its own models")
        weights, statistics = Weights.load(path), self.plan.training(job).running_statistics
        if not own and not method.pooled and statistics == "local" and _has_statistics(weights):
            raise RunError(
                f"{job.name}: its sites ran the model for all with norm statistics of their own "
                "(training.running_statistics: local), which are gone with the run: leave the "
                "method out (--method), or train with running_statistics: average"
            )
        return (own or shared)[0], weights

    def _asked(
        self, job: Job, role: str, networks: Networks, weights: Weights
    ) -> Iterator[dict[str, Any]]:
        for site, test in self.tests.items():
            images = test_images(test.data_folder, site)
            columns = networks.columns((site, "test"), weights, images, detailed=True)
            told = {site: {name: values.tolist() for name, values in columns.items()}}
            patients = {} if test.patients is None else {site: test.patients}
            scored = Scored(job.method, job.seed, role, self.plan.sites, told)
            yield from scored.rows(networks.context.task, patients)

    def prepare_process(self) -> None:
        """Compute as the run did."""
        prepare_process(self.plan.experiment.compute)


def _has_statistics(weights: Weights) -> bool:
    return weights.layout.statistics.start != weights.layout.statistics.stop


def _check_finite(weights: Weights, job: Job, site: str, epoch: int) -> None:
    if not isfinite(float(weights.flat.norm())):
        raise RunError(
            f"{job.name}, site {site}: fine-tuning diverged in epoch {epoch}; ask for fewer "
            "--epochs, or train with a lower training.lr"
        )
