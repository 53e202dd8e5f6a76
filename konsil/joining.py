"""`konsil join`: what would joining late bring to a hospital that took no part?

It gets a specialist of its own from the super model: the one of its models that is best on the
hospital's validation images, fine-tuned on its training images, and perhaps pulled to the mean of
the others' specialists (FedSM's SoftPull, once). Held against that are the super model as it is,
and training alone from scratch, as long as a hospital of the run has trained. Validation images
choose everything; test images are read once, at the end.

Every training is a step with a file of its own, so that a killed one goes on with the next.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from konsil.config import Experiment, read_experiment
from konsil.errors import ConfigError, DataError, RunError
from konsil.evaluation.scores import FILE, Scored, write_scores
from konsil.files import write_text
from konsil.report.joining import ALONE, AS_IS, PULLED, SHORT, START, TUNED, Choices
from konsil.version import __version__

if TYPE_CHECKING:
    from konsil.data import Federation, Images, TrainingData
    from konsil.evaluation import Columns
    from konsil.ingredients.context import Context
    from konsil.ingredients.site import Networks, Site
    from konsil.supermodel import SuperModel
    from konsil.tasks import Task
    from konsil.weights import Weights

CLAIM, STEPS, MODEL = "join.json", "steps", "model"
NETWORK, OWN = "alone", "specialist"  # what is trained: from scratch, and fine-tuned
ORDER = (TUNED, PULLED, SHORT, ALONE)  # of the lines
SETTABLE = ("training", "compute", "federation", "task")
AUTO, NONE = "auto", "none"
USUAL_EPOCHS = 40  # alone, where a model's folder does not tell how long its run was
Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Wanted:
    """What is to be tried."""

    epochs: int  # of fine-tuning, at most
    alone: int | None  # epochs from scratch; None: as the hospitals of the run
    pull: str | float  # lambda: auto, none, or a number
    seeds: tuple[int, ...]


def experiment_of(
    model: SuperModel,
    data: Path,
    site: str | None,
    wanted: Wanted,
    set_: Sequence[str],
    device: str,
) -> Experiment:
    """How the hospital trains: as the run did, where the model's folder tells; else as usual."""
    for override in set_:
        if override.partition(".")[0] not in SETTABLE:
            raise ConfigError(f"--set {override}: keys of {', '.join(SETTABLE)} alone")
    told, network = model.facts.provenance, model.facts.network
    size, channels = network["image_size"], network["in_channels"]
    federation: dict[str, Any] = {"file": str(data), "image_size": size, "channels": channels}
    federation |= {"sites": [site]} if site else {}
    classes = {"classes": model.facts.labels} if _needs_classes(model, data) else {}
    raw = {
        "name": "join",
        "federation": federation,
        "task": {"name": model.facts.task, **told.get("task", {}), **classes},
        "training": told.get("training", {}),
        "compute": {**told.get("compute", {}), "device": device},
        "methods": ["local"],
        "rounds": wanted.alone or usual_epochs(model),
        "seeds": list(wanted.seeds),
    }
    return read_experiment(raw, list(set_))


def _needs_classes(model: SuperModel, data: Path) -> bool:
    """Whether the federation file leaves open which classes there are."""
    from konsil.data.manifest import read_manifest

    manifest = read_manifest(data)
    return manifest.task == "classification" and manifest.labels is None


def usual_epochs(model: SuperModel) -> int:
    """So many epochs a hospital of the run has trained."""
    told = model.facts.provenance
    if not isinstance(told.get("rounds"), int):
        return USUAL_EPOCHS
    return int(told["rounds"]) * int(told.get("training", {}).get("local_epochs", 1))


def the_site(federation: Federation) -> str:
    """The one hospital that joins."""
    if len(federation.sites) > 1:
        raise ConfigError(
            f"{', '.join(federation.sites)}: one hospital joins at a time; choose it by --site"
        )
    return federation.sites[0]


class Joining:
    """One hospital, a super model, and what becomes of it there."""

    def __init__(
        self,
        model: SuperModel,
        experiment: Experiment,
        federation: Federation,
        wanted: Wanted,
        report: Report = lambda what, done, total: None,
    ) -> None:
        from konsil.tasks import make_task

        self.model, self.experiment, self.wanted = model, experiment, wanted
        self.federation, self.site, self.report = federation, the_site(federation), report
        self.epochs, self.alone = wanted.epochs, experiment.rounds
        if self.site in (*model.facts.sites, "global"):
            raise ConfigError(
                f"{self.site}: the model has a specialist of that name already; a hospital that "
                "joins late needs a name of its own in its federation file"
            )
        self.task: Task = make_task(experiment.task, model.facts.labels)
        self._order = self._places()

    # --- its images, with the labels in the model's order ---

    def _places(self) -> list[int] | None:
        """Where the model's structures are among the file's; None: in the same order."""
        wanted, found = self.model.facts.labels, self.federation.labels
        if wanted == found:
            return None
        if set(wanted) - set(found) or self.task.targets == "classes":
            raise DataError(
                f"the model answers {', '.join(wanted)}, these images are labelled "
                f"{', '.join(found)}: give them the same names, classes in the same order"
            )
        return [found.index(label) for label in wanted]

    def _in_order(self, images: Images) -> Images:
        from konsil.data import Images

        if self._order is None:
            return images
        return Images(images.images, images.targets[:, self._order])

    @cached_property
    def data(self) -> TrainingData:
        """Training and validation images."""
        from konsil.data import TrainingData, training_data

        found = training_data(self.federation.folder, [self.site])
        return TrainingData(self._in_order(found.train), self._in_order(found.val))

    # --- training ---

    def context(self, seed: int, epochs: int) -> Context:
        """What is known of a training of so many epochs, each a round of one."""
        from konsil.federation.plan import augmented_for
        from konsil.ingredients.context import Context
        from konsil.networks import NetworkSpec

        images = len(self.data.train)
        training = self.experiment.training
        training = augmented_for(training, self.alone * images / training.batch_size)
        return Context(
            NetworkSpec.from_json(self.model.facts.network),
            self.task,
            training.model_copy(update={"local_epochs": 1}),
            (self.site,),
            epochs,
            seed,
            {self.site: images},
            {self.site: len(self.data.val)},
        )

    def networks(self, seed: int, epochs: int) -> Networks:
        """The networks of a training; each has its own."""
        from konsil.ingredients.context import TrainedNetwork
        from konsil.ingredients.site import Networks

        context = self.context(seed, epochs)
        trained = {
            NETWORK: TrainedNetwork(context.network),
            OWN: TrainedNetwork(context.network, "reset"),
        }
        return Networks(context, trained, self.experiment.compute)

    def from_scratch(self, seed: int, epochs: int, what: str) -> tuple[Weights, dict[str, Any]]:
        """What `local` would be in a run of so many rounds; the best on validation images."""
        from konsil.federation.keeping import kept
        from konsil.federation.state import SiteState
        from konsil.ingredients.context import Upload
        from konsil.ingredients.site import Site
        from konsil.randomness import global_stream

        networks, memory = self.networks(seed, epochs), SiteState()
        context = networks.context
        weights = context.initial(context.network)
        best: Weights | None = None
        scores: list[float] = []
        for number in range(1, epochs + 2):
            site = Site(self.site, number, networks, self.data, memory, {})
            now = site.localised(NETWORK, weights)
            scores.append(site.score(now))
            best = kept(context.training, best, now, scores)
            if number <= epochs:
                with global_stream(seed, self.site, number, "local"):
                    weights = site.train(site.learner(NETWORK, weights)).weights()
                site.finish_learners(Upload())
                self.report(what, number, epochs)
        assert best is not None
        return best, {"scores": scores}

    def fine_tuned(self, seed: int, start: Weights) -> tuple[Weights, dict[str, Any]]:
        """The best on validation images of these weights after 0, 1, ... epochs."""
        from konsil.ingredients.finetune import fine_tune
        from konsil.randomness import global_stream

        site = self.after(seed)
        scores = [site.score(start)]

        def heard(epoch: int, score: float) -> None:
            scores.append(score)
            self.report("fine-tuning", epoch, self.epochs)

        with global_stream(seed, self.site, site.round, "local"):
            tuned = fine_tune(site, OWN, start, self.epochs, tell=heard)
        return tuned, {"scores": scores}

    def after(self, seed: int) -> Site:
        """The hospital when all rounds are over: what is trained then is fine-tuned."""
        from konsil.federation.state import SiteState
        from konsil.ingredients.site import Site

        networks = self.networks(seed, 1)
        return Site(self.site, 2, networks, self.data, SiteState(), {})

    # --- what validation images choose ---

    @cached_property
    def starts(self) -> dict[str, float]:
        """What each model of the super model scores on the validation images."""
        site = self.after(self.wanted.seeds[0])
        return {name: site.score(self.model.models[name]) for name in self.model.answerers}

    @cached_property
    def start(self) -> str:
        """The best of them, the first of equals: the global model before specialists."""
        return max(self.starts, key=self.starts.__getitem__)

    def pulled(self, tuned: Weights, site: Site) -> tuple[Weights, float, float] | None:
        """The best way back to the mean of the others' specialists, its lambda and its score."""
        from konsil.ingredients.softpull import softpull

        mean = self.mean_of_specialists
        if mean is None:
            return None
        tried = ((share, softpull(share, tuned, mean)) for share in self.shares)
        found = [(weights, share, site.score(weights)) for share, weights in tried]
        return max(found, key=lambda one: one[2])

    @cached_property
    def mean_of_specialists(self) -> Weights | None:
        """Of the other hospitals' own models; None if there is none, or none is wanted."""
        from konsil.weights import WeightedMean

        names = [name for name in self.model.facts.sites if name in self.model.models]
        if not names or self.wanted.pull == NONE:
            return None
        mean = WeightedMean(self.model.models[names[0]].layout)
        for name in names:
            mean.add(self.model.models[name], 1)
        return mean.result()

    @property
    def shares(self) -> list[float]:
        """Every lambda that is tried, the gentlest pull first; 1 is none."""
        from konsil.ingredients.softpull import CANDIDATES

        if self.wanted.pull != AUTO:
            return [float(self.wanted.pull)]
        return [share for share in reversed(CANDIDATES) if share < 1]

    # --- all of it ---

    def claim(self, out: Path, resume: bool) -> None:
        """The folder is that of this very trial; of another one it is left alone."""
        said = self._identity()
        path = out / CLAIM
        if path.exists():
            known = json.loads(path.read_text(encoding="utf-8"))
            if not resume:
                raise RunError(f"{out}: holds a trial already; add --resume to go on with it")
            if changed := [key for key in said if known.get(key) != said[key]]:
                keys = ", ".join(changed)
                raise RunError(f"{out}: holds another trial ({keys} differ); choose another --out")
            return
        if out.exists() and any(out.iterdir()):
            raise RunError(f"{out}: not empty and no trial; choose another --out")
        write_text(path, json.dumps(said, indent=1))

    def _identity(self) -> dict[str, Any]:
        digests = sorted((name, own.digest()) for name, own in self.model.models.items())
        e = self.experiment
        said = {
            "konsil": __version__,
            "model": hashlib.sha256(repr(digests).encode()).hexdigest()[:16],
            "site": self.site,
            "images": self.federation.fingerprint,
            "epochs": self.epochs,
            "alone": self.alone,
            "lambda": self.wanted.pull,
            "seeds": list(self.wanted.seeds),
            "training": e.training.model_dump(mode="json"),
            "task": e.task.model_dump(mode="json"),
            "compute": e.compute.model_dump(mode="json"),
        }
        return dict(json.loads(json.dumps(said)))

    def go(self, out: Path) -> Choices:
        """Train what is not trained yet, read the test images once, leave scores and models."""
        first, *_ = self.wanted.seeds
        trained = {s: self._trained(s, out / STEPS / f"seed{s}") for s in self.wanted.seeds}
        models, note = trained[first]
        self._save(models[TUNED if note["chosen"] == 1 else PULLED], first, out / MODEL)
        rows = [*self._rows(first, {AS_IS: None, START: self.model.models[self.start]})]
        for seed, (models, _) in trained.items():
            rows += self._rows(seed, models)
        write_scores(out / FILE, rows)
        seeds = {str(seed): note for seed, (_, note) in trained.items()}
        return Choices(
            self.site, self.start, self.starts, self.epochs, self.alone, self.counts, seeds
        )

    @property
    def counts(self) -> dict[str, int]:
        """Images of each split."""
        return dict(self.federation.counts[self.site])

    def _trained(self, seed: int, folder: Path) -> tuple[dict[str, Weights], dict[str, Any]]:
        """The models of one seed by their names, and what validation images say of them."""
        start = self.model.models[self.start]
        makers: dict[str, Callable[[], tuple[Weights, dict[str, Any]]]] = {
            TUNED: partial(self.fine_tuned, seed, start),
            SHORT: partial(self.from_scratch, seed, self.epochs, "alone, as short"),
            ALONE: partial(self.from_scratch, seed, self.alone, "alone"),
        }
        models: dict[str, Weights] = {}
        said: dict[str, Any] = {"chosen": 1.0}
        for name, make in makers.items():
            models[name], said[name] = _step(folder, name, make)
        site = self.after(seed)
        if (found := self.pulled(models[TUNED], site)) is not None:
            models[PULLED], share, score = found
            said[PULLED] = {"lambda": share, "score": score}
            if score > site.score(models[TUNED]):
                said["chosen"] = share
        return {name: models[name] for name in ORDER if name in models}, said

    # --- test images, once ---

    def _rows(self, seed: int, models: Mapping[str, Weights | None]) -> Iterator[dict[str, Any]]:
        """Every test image's scores by these models; None: the super model itself."""
        from konsil.data import test_images

        images = self._in_order(test_images(self.federation.folder, self.site))
        patients = {self.site: self.federation.test_patients(self.site)}
        networks = self.networks(seed, 1)
        for name, weights in models.items():
            found = self._columns(images, networks, weights)
            told = {self.site: {n: v.tolist() for n, v in found.items()}}
            scored = Scored(name, seed, name, self.model.facts.sites, told)
            yield from scored.rows(self.task, patients)

    def _columns(self, images: Images, networks: Networks, weights: Weights | None) -> Columns:
        from konsil.evaluation import columns_of
        from konsil.evaluation.files import answered_columns

        if weights is None:
            return answered_columns(self.model, images, self.task, self.site)
        return columns_of(networks.evaluator, weights, images, self.task, detailed=True)

    def _save(self, specialist: Weights, seed: int, folder: Path) -> None:
        """The hospital's own model, and the global one beside it: whole or not at all."""
        from konsil.supermodel import GLOBAL, SuperModel
        from konsil.supermodel.rules import Even, Fixed, to_json

        models = {self.site: specialist}
        models |= {GLOBAL: self.model.models[GLOBAL]} if GLOBAL in self.model.models else {}
        told = {
            "konsil": __version__,
            "method": "join",
            "seed": seed,
            "rounds": self.epochs,
            "images": {self.site: self.counts["train"]},
            "compute": self.experiment.compute.model_dump(mode="json"),
            "training": self.experiment.training.model_dump(mode="json"),
        }
        facts = replace(
            self.model.facts,
            sites=[self.site],
            selector={},
            routing=to_json(Fixed(1) if GLOBAL in models else Even()),
            temperature=1.0,
            limit=None,
            withheld=[],
            reading={self.site: self.federation.readings[self.site].to_json()},
            scores={},
            intervals={},
            provenance=told,
        )
        SuperModel(facts, models).save(folder)


def _step(
    folder: Path, name: str, make: Callable[[], tuple[Weights, dict[str, Any]]]
) -> tuple[Weights, dict[str, Any]]:
    """What was trained before, or is now; its notes are written last."""
    from konsil.weights import Weights

    plain = name.replace(", ", "-").replace(" ", "-")
    weights, notes = folder / f"{plain}.safetensors", folder / f"{plain}.json"
    if notes.exists():
        return Weights.load(weights), dict(json.loads(notes.read_text(encoding="utf-8")))
    found, said = make()
    folder.mkdir(parents=True, exist_ok=True)
    found.save(weights)
    write_text(notes, json.dumps(said))
    return found, said
