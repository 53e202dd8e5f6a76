"""What must hold for every method, whoever has written it: one function a promise.

`tests/test_every_method.py` holds Konsil's own to all of them, `check_method` anybody's.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from konsil.config import ComputeConfig
from konsil.data import Images
from konsil.errors import ConfigError, RoundFailed
from konsil.federation.compute import prepare_process, settings_kept
from konsil.federation.engines import Engine
from konsil.federation.plan import Plan
from konsil.federation.server import Record
from konsil.federation.state import SiteState
from konsil.ingredients.method import METHODS, Method
from konsil.ingredients.site import Site
from konsil.methods.fedsm_extra import FedSMExtra
from konsil.registry import load_plugins
from konsil.testing.runs import (
    SIZE,
    Shuffled,
    plan_of,
    same_parts,
    same_record,
    server,
    state_of,
    train,
    whole_run,
    write_shades,
    write_squares,
)
from konsil.weights import Weights

ROUNDS = 3
STATISTICS_ROUNDS, ROUNDING = 4, 1e-5
SITES = {"north": 8, "south": 12}  # unequal
MODELS = {"global", "personal", "centralized"}  # parts that begin as the network does
CLASSIFICATION = {"name": "classification", "normalise": False}  # brightness is the class
Batches = dict[tuple[str, int], str]  # site, round -> a digest of every batch that training got


@dataclass(frozen=True)
class Left:
    """What training left: the server's record, every site's state, the batches that were seen."""

    record: Record
    states: Mapping[str, SiteState]
    batches: Batches

    def equals(self, other: Left) -> bool:
        """Bit for bit, at the server and at every site."""
        return same_record(self.record, other.record) and all(
            _same_state(state, other.states[site]) for site, state in self.states.items()
        )


class Trial:
    """A method on two tiny federations. Trials may share a folder, and then share images."""

    def __init__(
        self, method: str, folder: Path, settings: Mapping[str, Any] | None = None
    ) -> None:
        self.name, self.folder = method, folder
        self.config = {"name": method, **(settings or {})}
        prepare_process(ComputeConfig())  # or the first run would have other threads than the rest
        for images, write in (("squares", write_squares), ("shades", write_shades)):
            if not (folder / images).exists():
                write(folder / images, SITES)

    def plan(self, **blocks: Any) -> Plan:
        """A tiny experiment with it: squares are to be found."""
        return self._plan("squares", None, blocks)

    def classification(self, only: list[str] | None = None, **blocks: Any) -> Plan:
        """A tiny experiment with it: dark images and light ones are to be told apart."""
        task = {"task": CLASSIFICATION, "network": {"name": "small"}}
        return self._plan("shades", only, task | blocks)

    def quick(self, **blocks: Any) -> Plan:
        """For what no task and no network changes: the cheapest; batch norm keeps most."""
        return self.classification(network={"name": "small", "norm": "batch"}, **blocks)

    def _plan(self, images: str, only: list[str] | None, blocks: dict[str, Any]) -> Plan:
        folder, cache = self.folder / images, self.folder / "cache"
        where = {"folder": str(folder), "cache": str(cache), "image_size": SIZE, "sites": only}
        return plan_of(folder, federation=where, methods=[self.config], **blocks)

    def fresh(self) -> Path:
        """A folder for one more run."""
        return Path(tempfile.mkdtemp(dir=self.folder))

    @cached_property
    def method(self) -> Method:
        """The method itself, for the squares."""
        plan = self.plan()
        return plan.method(plan.jobs[0])

    @property
    def roles(self) -> tuple[str, ...]:
        """Who answers for it."""
        return (*self.method.shared_roles, *self.method.private_roles)

    @property
    def few_rounds(self) -> int:
        """One, or as many as it takes to see both phases."""
        return 3 if isinstance(self.method, FedSMExtra) else 1

    @cached_property
    def reference_plan(self) -> Plan:
        """What runs are compared on."""
        return self.quick(rounds=ROUNDS)

    @cached_property
    def reference(self) -> Left:
        """What an undisturbed run of that plan leaves."""
        return self.trained(self.reference_plan)

    def trained(self, plan: Plan, folder: Path | None = None, engine: Engine | None = None) -> Left:
        """What training leaves in a folder, in a fresh one if none is given."""
        folder = folder or self.fresh()
        with _batches_noted() as batches:
            train(plan, folder, engine=engine)
        sites = plan.method(plan.jobs[0]).context.sites
        states = {site: state_of(plan, folder, site) for site in sites}
        return Left(server(plan, folder).record, states, batches)

    def hold(self, fact: bool, promise: str) -> None:
        """A promise that is not kept is an AssertionError which says so."""
        if not fact:
            raise AssertionError(f"{self.name}: {promise}")


def check_method(
    method: str | Path, *, only: Collection[str] | None = None, **settings: Any
) -> list[str]:
    """Hold a method (by name, or all of a plugin file) to what Konsil's own are held to.

    `only` these of the CHECKS; `settings` are the method's. Raises AssertionError with the first
    promise that is not kept, or whatever the method raises; returns the names of the checks.
    """
    wanted = list(CHECKS if only is None else only)
    for name in _names(method):
        with settings_kept(), tempfile.TemporaryDirectory(prefix="konsil-") as folder:
            trial = Trial(name, Path(folder), settings)
            for check in wanted:
                CHECKS[check](trial)
    return wanted


def _names(method: str | Path) -> list[str]:
    """The methods that are meant."""
    if not str(method).endswith(".py"):
        return [str(method)]
    names = [name for name in load_plugins([method]) if name in METHODS.all()]
    if not names:
        raise ConfigError(f"{method}: no method in it")
    return names


# --- the checks -----------------------------------------------------------------------------------


def learns(trial: Trial) -> None:
    """Every role is better in the end than the worst was in the beginning."""
    plan = trial.plan(rounds=6, training={"batch_size": 2, "lr": 1e-2})
    history = train(plan, trial.fresh()).history
    start = history[0]["means"]
    first = min(start[role] for role in trial.roles if role in start)  # some appear at the end
    for role in trial.roles:
        scores = [h["means"][role] for h in history if role in h["means"]]
        trial.hold(max(scores[-2:]) > first + 0.1, f"{role} does not learn: {scores}")


def resumes(trial: Trial) -> None:
    """Stopped twice and gone on with from the disk, it gives the same bits."""
    plan, folder = trial.reference_plan, trial.fresh()
    for number in (1, 2):
        server(plan, folder)._round(number)
    same = trial.trained(plan, folder).equals(trial.reference)
    trial.hold(same, "resumed, a run gives other bits: what lasts must be in private or notes")


def another_seed(trial: Trial) -> None:
    """Another seed gives other bits, in every part."""
    here, there = trial.reference, trial.trained(trial.quick(rounds=1, seeds=[1]))
    site = next(iter(here.states))
    mine, theirs = (left.states[site].last or left.record.shared for left in (here, there))
    differ = all(not mine[part].equals(theirs[part]) for part in mine)
    trial.hold(differ, "another seed gives the same bits")


def any_order(trial: Trial) -> None:
    """Replies may arrive in any order."""
    plan, folder = trial.reference_plan, trial.fresh()
    same = trial.trained(plan, folder, Shuffled(plan, folder, seed=5)).equals(trial.reference)
    trial.hold(same, "replies in another order give other bits")


def missing_site(trial: Trial) -> None:
    """A site may miss a round."""
    absent = {"absences": {"north": [2]}, "min_sites": 1}
    rows = whole_run(trial.quick(rounds=3, server=absent), trial.fresh())
    trial.hold({r.site for r in rows} >= set(SITES), "a site that missed a round has no results")


def norm_layers(trial: Trial) -> None:
    """Batch and group norm give finite numbers; instance norm is what `learns` has."""
    for norm in ("batch", "group"):
        network = {"name": "unet", "width": 2, "norm": norm}
        left = trial.trained(trial.plan(rounds=trial.few_rounds, network=network))
        parts = [left.record.shared, *(state.last for state in left.states.values())]
        finite = all(bool(w.flat.isfinite().all()) for own in parts for w in own.values())
        trial.hold(finite, f"{norm} norm: infinite or undefined values")


def statistics_of_images(trial: Trial) -> None:
    """With batch norm, what is shared has running statistics between those that sites have had.

    Statistics are measured on images. A method that calculates with them as with weights (a step
    beyond the mean, a sum of differences) ends with statistics that no image has.
    """
    network, training = {"name": "unet", "width": 2, "norm": "batch"}, {"batch_size": 2, "lr": 1e-2}
    plan = trial.plan(rounds=STATISTICS_ROUNDS, network=network, training=training)
    folder = trial.fresh()
    listener = server(plan, folder)
    heard = list(listener.record.shared.values())
    for number in range(1, STATISTICS_ROUNDS + 1):
        listener._round(number)
        for site in listener.roster:
            heard += state_of(plan, folder, site).upload.values()
        beyond = [n for n, w in listener.record.shared.items() if not _between(w, heard)]
        trial.hold(
            not beyond,
            f"{', '.join(beyond)}: running statistics beyond those of every site; take the "
            "mean's (`with_statistics_of`, `mix`)",
        )


def _between(part: Weights, heard: list[Weights]) -> bool:
    """Whether its statistics lie within what was heard of its kind; a new kind's do."""
    own = part.flat[part.layout.statistics]
    alike = [w.flat[w.layout.statistics] for w in heard if w.layout.key == part.layout.key]
    every = torch.stack(alike or [own])
    slack = ROUNDING * (1 + every.abs().amax(0))
    return bool(((own >= every.amin(0) - slack) & (own <= every.amax(0) + slack)).all())


def one_site(trial: Trial) -> None:
    """A federation of one, and the other task."""
    plan = trial.classification(only=["north"], rounds=trial.few_rounds)
    rows = whole_run(plan, trial.fresh())
    trial.hold({r.metric for r in rows} >= {"accuracy", "auc"}, "classification: metrics missing")
    trial.hold(all(0 <= r.value <= 1 for r in rows), "classification: values beyond [0, 1]")


def classifies(trial: Trial) -> None:
    """It learns to classify, too."""
    plan = trial.classification(rounds=6, training={"batch_size": 2, "lr": 1e-3})
    history = train(plan, trial.fresh()).history
    best = max(h["means"][trial.roles[0]] for h in history)
    trial.hold(best > 0.7, f"does not learn to classify: {best:.2f}")


def state_serialises(trial: Trial) -> None:
    """What a site keeps is the same after it has been on disk."""
    folder, plan = trial.fresh(), trial.reference_plan.hash
    for site, state in trial.reference.states.items():
        first, second = folder / f"{site}.1", folder / f"{site}.2"
        state.save(first, plan, durable=False)
        SiteState.load(first, plan).save(second, plan, durable=False)
        trial.hold(first.read_bytes() == second.read_bytes(), "state changes on disk")


def no_test_image(trial: Trial) -> None:
    """The test arrays are not there: training, selection and the last validation do not notice."""
    plan, folder = trial.quick(rounds=1 + trial.few_rounds), trial.fresh()
    blind = replace(plan, data_folder=folder / "cache")
    shutil.copytree(plan.data_folder, blind.data_folder)
    for split in blind.data_folder.glob("*/test"):
        shutil.rmtree(split)
    try:
        whole_run(blind, folder / "run")
    except RoundFailed as failed:
        trial.hold("did not answer in evaluate" in str(failed), f"without test images: {failed}")
        trial.hold("test/images.npy" in str(failed), f"without test images: {failed}")
    trial.hold(not (folder / "run" / "results.csv").exists(), "results without test images")
    trial.hold(server(blind, folder / "run").record.finished, "training needs test images")


def equal_start(trial: Trial) -> None:
    """Every model begins with the weights that all methods begin with."""
    context = trial.method.context
    initial = context.initial(context.network)
    for name, part in trial.method.start().items():
        if name in MODELS:  # or a part of one, if the rest stays at a site
            own = initial.only({entry.name for entry in part.layout.entries})
            trial.hold(part.equals(own), f"{name} begins with other weights than other methods")


def equal_batches(trial: Trial) -> None:
    """Methods are compared on equal terms: same images in the same order in the same batches."""
    if trial.method.pooled:
        return
    usual, seen = _batches_of_fedavg(trial.folder), trial.reference.batches
    if isinstance(trial.method, FedSMExtra):  # no images while models are handed in
        usual = {place: digest for place, digest in usual.items() if place[1] != 2}
    trial.hold(seen == usual, "trains on other batches than FedAvg; name the purpose of more")


CHECKS: dict[str, Callable[[Trial], None]] = {
    check.__name__: check
    for check in (
        learns, resumes, another_seed, any_order, missing_site, norm_layers, statistics_of_images,
        one_site, classifies, state_serialises, no_test_image, equal_start, equal_batches,
    )
}  # fmt: skip


# --- helpers --------------------------------------------------------------------------------------


def _same_state(a: SiteState, b: SiteState) -> bool:
    sections = (same_parts(getattr(a, name), getattr(b, name)) for name in SiteState.SECTIONS)
    return all(sections) and a.notes == b.notes


@cache
def _batches_of_fedavg(folder: Path) -> Batches:
    return Trial("fedavg", folder).reference.batches


@contextmanager
def _batches_noted() -> Iterator[Batches]:
    digests: Batches = {}
    usual = Site.indexed_batches

    def note(
        self: Site, images: Images, purpose: str = "", epochs: int | None = None
    ) -> Iterator[tuple[Any, Any, Any]]:
        digest = hashlib.sha256()
        for index, x, y in usual(self, images, purpose, epochs):
            digest.update(x.numpy().tobytes() + y.numpy().tobytes())
            yield index, x, y
        if not purpose:  # further batches, which a method's definition asks for, have one
            digests[self.name, self.round] = digest.hexdigest()

    with patch.object(Site, "indexed_batches", note):
        yield digests
