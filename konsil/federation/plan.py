"""The plan: the experiment resolved against its federation, and the hash that names it.

Server and sites derive everything they compute from it. What cannot change a number (the engine,
where files lie) is not part of the hash, so a run may be resumed with other workers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from konsil.config import PLACES, ComputeConfig, Experiment, MethodConfig, TrainingConfig
from konsil.errors import ConfigError
from konsil.ingredients.context import Context
from konsil.ingredients.method import Method, make_method, method_class, method_settings
from konsil.ingredients.pretrained import Pretrained, content_of, read_pretrained
from konsil.networks import NetworkSpec, check_spec, network_spec, try_out
from konsil.registry import load_plugins
from konsil.tasks import make_task, targets_of, task_settings
from konsil.version import __version__

if TYPE_CHECKING:
    from konsil.data import Federation

POOLED_SITE = "all-sites"
# Steps of pooled training from which on images are augmented in full (docs/recipe.md).
FULL_STRENGTH = 5000
# Of a plan's keys those that change no number: where things lie, how messages travel, promises.
NOT_NUMBERS = (
    *("data_folder", "readings", "experiment.engine", "experiment.name", "experiment.plugins"),
    "experiment.server.means_only",
    *(f"experiment.federation.{place}" for place in PLACES),
    "experiment.network.initial",
)


@dataclass(frozen=True)
class Job:
    """One method with one seed."""

    method: str  # its title in the tables
    seed: int

    @property
    def name(self) -> str:
        """Folder below the run, and the name in messages."""
        return f"{self.method}/seed{self.seed}"


@dataclass(frozen=True)
class Plan:
    """An experiment and what was found of its federation."""

    experiment: Experiment
    sites: tuple[str, ...]
    labels: tuple[str, ...]
    channels: int
    counts: dict[str, dict[str, int]]
    fingerprint: str  # of the federation: contents, label mapping, splits
    data_folder: Path  # the federation's cache entry
    version: str = __version__
    plugins: Mapping[str, str] = field(default_factory=dict)  # what it gives -> a file's sha256
    initial_weights: str = ""  # sha256 of the file of network.initial
    # how each site's images are read, in words; the fingerprint has it, too
    readings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, experiment: Experiment, federation: Federation) -> Plan:
        """The plan of an experiment on an opened federation; every method is checked."""
        plan = cls(
            plugins=load_choices(experiment),
            initial_weights=initial_content(experiment),
            experiment=experiment,
            sites=tuple(federation.sites),
            labels=tuple(federation.labels),
            channels=federation.channels,
            counts=federation.counts,
            fingerprint=federation.fingerprint,
            data_folder=federation.folder,
            readings={site: r.to_json() for site, r in federation.readings.items()},
        )
        plan.check()
        return plan

    def check(self) -> None:
        """Refuse before round 1 what could only fail in round 40."""
        server = self.experiment.server
        for site in server.absences:
            if site not in self.sites:
                raise ConfigError(
                    f"server.absences.{site}: no such site; there are {', '.join(self.sites)}"
                )
        if (server.min_sites or 1) > len(self.sites):
            raise ConfigError(
                f"server.min_sites = {server.min_sites}: the federation has {len(self.sites)} sites"
            )
        if (server.min_sites or 1) > (asked := server.asked(len(self.sites))):
            raise ConfigError(
                f"server.min_sites = {server.min_sites}: server.fraction = {server.fraction:g} "
                f"asks {asked} of {len(self.sites)} sites a round"
            )
        segments = targets_of(self.experiment.task) == "masks"
        for job in self.jobs[:: len(self.experiment.seeds)]:
            method = self.method(job)
            if server.means_only and method.needs == "individual":
                raise ConfigError(
                    f"methods.{job.method}: at the server {method.name} needs each site's own "
                    "model, and server.means_only: true promises that means are enough; leave "
                    "out one of the two"
                )
            for trained in method.networks().values():
                check_spec(trained.spec)
                try_out(trained.spec, segments)
        if self.pretrained is not None:
            context = self.context(self.jobs[0], self.sites)
            context.initial(context.network)  # refuses a file that does not fit

    @cached_property
    def jobs(self) -> list[Job]:
        """Every method with every seed, in the file's order."""
        e = self.experiment
        return [Job(m.title, seed) for m in e.methods for seed in e.seeds]

    def job(self, name: str) -> Job:
        """The job of that name."""
        return next(job for job in self.jobs if job.name == name)

    def method_config(self, job: Job) -> MethodConfig:
        """What the experiment says of a job's method."""
        return next(m for m in self.experiment.methods if m.title == job.method)

    def method(self, job: Job) -> Method:
        """A job's method, with its settings checked against the federation."""
        config = self.method_config(job)
        context = self.context(job, self.sites)
        if method_class(config).pooled:
            context = replace(context, sites=(POOLED_SITE,), momentum=0.0)  # no federation
        return make_method(config, context)

    def training(self, job: Job) -> TrainingConfig:
        """A job's local work: the experiment's, with what its method has of its own over it."""
        own = self.method_config(job).training
        return self.training_of(own.laid_over(self.experiment.training))

    def training_of(self, training: TrainingConfig) -> TrainingConfig:
        """The same with the strength of augmentation that `auto` means for so many steps."""
        images = sum(self.images(site, "train") for site in self.sites)
        epochs = self.experiment.rounds * training.local_epochs
        return augmented_for(training, epochs * images / training.batch_size)

    def context(self, job: Job, sites: tuple[str, ...]) -> Context:
        """What a method knows of the experiment."""
        e = self.experiment
        task = make_task(e.task, self.labels)
        network = _network(e, self.channels, task.outputs)
        train, val = ({s: self.images(s, split) for s in sites} for split in ("train", "val"))
        return Context(
            network, task, self.training(job), sites, e.rounds, job.seed, train, val,
            momentum=e.server.momentum_among(len(sites)),
            equal=e.server.weights == "equal",
            pretrained=self.pretrained,
        )  # fmt: skip

    @cached_property
    def pretrained(self) -> Pretrained | None:
        """What the network begins with, if not with random weights."""
        path = self.experiment.network.initial
        return None if path is None else read_pretrained(path, self.initial_weights)

    def members(self, site: str) -> tuple[str, ...]:
        """The hospitals whose images a site holds: itself, or all of them if pooled."""
        return self.sites if site == POOLED_SITE else (site,)

    def images(self, site: str, split: str) -> int:
        """Number of images a site has in a split."""
        return sum(self.counts[member][split] for member in self.members(site))

    @cached_property
    def hash(self) -> str:
        """Equal plans compute equal numbers."""
        numbers = self._facts()
        for key in NOT_NUMBERS:
            block, (*above, last) = numbers, key.split(".")
            for name in above:
                block = block[name]
            block.pop(last, None)
        numbers["federation"] = numbers.pop("fingerprint")
        del numbers["counts"]  # the fingerprint holds them
        text = json.dumps(numbers, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def resolved(self) -> dict[str, Any]:
        """The experiment with every default written out."""
        plain: dict[str, Any] = self.experiment.model_dump(mode="json")
        plain["methods"] = [
            {
                "name": m.name,
                "label": m.title,
                # without any a plan is the same as before methods could have their own
                **({"training": own} if (own := own_training(self.experiment, m)) else {}),
                **method_settings(m).model_dump(mode="json", by_alias=True),
            }
            for m in self.experiment.methods
        ]
        del plain["performance"]  # what it found is in `compute` by now
        if plain["server"]["compression"] == "none":  # the same as before there was any
            del plain["server"]["compression"]
        usual = ComputeConfig().model_dump(mode="json")
        for key in ("precision", "memory_format", "kernels"):
            # a plan that computes as all did before there was a choice is the same as then
            if plain["compute"][key] == usual[key]:
                del plain["compute"][key]
        plain["task"] |= task_settings(self.experiment.task).model_dump(mode="json", by_alias=True)
        plain["network"] = _network(self.experiment).settings()
        if self.experiment.network.initial is not None:
            plain["network"]["initial"] = str(self.experiment.network.initial)
        return plain

    def to_json(self) -> dict[str, Any]:
        """Plain data: what a worker process needs, and what plan.yaml holds."""
        return {"hash": self.hash, **self._facts()}

    def _facts(self) -> dict[str, Any]:
        facts = {
            "version": self.version,
            "experiment": self.resolved(),
            "sites": list(self.sites),
            "labels": list(self.labels),
            "channels": self.channels,
            "counts": self.counts,
            "fingerprint": self.fingerprint,
            "data_folder": str(self.data_folder),
        }
        # without such files a plan is the same as before there were any
        further = {
            "plugins": dict(self.plugins),
            "initial_weights": self.initial_weights,
            "readings": {site: dict(words) for site, words in self.readings.items()},
        }
        return facts | {name: content for name, content in further.items() if content}

    @classmethod
    def from_json(cls, data: dict[str, Any], methods: bool = True) -> Plan:
        """The plan of `to_json`; `methods` = False: only to be looked at, plugins are not run."""
        experiment = Experiment.model_validate(data["experiment"])
        plugins = data.get("plugins", {})
        if methods:
            load_plugins(experiment.plugins, agreed=plugins.values())
        return cls(
            plugins=plugins,
            initial_weights=data.get("initial_weights", ""),
            readings=data.get("readings", {}),
            experiment=experiment,
            sites=tuple(data["sites"]),
            labels=tuple(data["labels"]),
            channels=data["channels"],
            counts=data["counts"],
            fingerprint=data["fingerprint"],
            data_folder=Path(data["data_folder"]),
            version=data["version"],
        )


def augmented_for(training: TrainingConfig, steps: float) -> TrainingConfig:
    """The same with the strength of augmentation that `auto` means for so many steps."""
    if training.augment == "none" or training.augment_strength != "auto":
        return training
    return training.model_copy(update={"augment_strength": min(1.0, steps / FULL_STRENGTH)})


def load_choices(experiment: Experiment) -> dict[str, str]:
    """Run its plugins, whose contents come back, and check all that it chooses by name.

    No image is needed for that, so that mistakes are found before any is read.
    """
    plugins = load_plugins(experiment.plugins)
    for config in experiment.methods:
        method_settings(config)
    task_settings(experiment.task)
    check_spec(_network(experiment))
    if experiment.network.initial is not None:
        read_pretrained(experiment.network.initial)
    return plugins


def own_training(experiment: Experiment, config: MethodConfig) -> dict[str, Any]:
    """In what a method's local work differs from the experiment's: equal settings, equal plans."""
    usual = experiment.training
    own = config.training.laid_over(usual).model_dump(mode="json")
    return {
        key: own[key] for key, value in usual.model_dump(mode="json").items() if own[key] != value
    }


def initial_content(experiment: Experiment) -> str:
    """The sha256 of the file that the network begins with; empty without one."""
    return "" if experiment.network.initial is None else content_of(experiment.network.initial)


def _network(experiment: Experiment, in_channels: int = 1, outputs: int = 1) -> NetworkSpec:
    """The network of an experiment; before its images are known, with one channel and output."""
    return network_spec(
        experiment.network,
        targets_of(experiment.task),
        in_channels=in_channels,
        outputs=outputs,
        image_size=experiment.federation.image_size,
        normalise=experiment.task.normalise,
    )
