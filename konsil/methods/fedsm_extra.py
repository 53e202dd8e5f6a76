"""FedSM-extra (Xu et al., CVPR 2022, Algorithms 3-4): models first, then a selector for them.

Phase 1 is FedSM without its selector. Then every site hands in its specialist, once (this is
where the server sees single models), and everybody gets all of them, once. In phase 2 only the
selector is trained and travels. It has an output 0 for the global model, and an image's label is
the model that serves it best, y_s = argmin_k L(h_k(x), y) over k = 0..K. (Eq. 1 prints L(h, h_k);
h does not exist at that point.) The models are frozen, so labels are worked out once an image.

A site that is away when specialists are handed in is represented by their plain mean, and takes
that for its own: all sites must mean the same by "the specialist of site k".
"""

from dataclasses import replace
from functools import cached_property
from typing import ClassVar, Literal, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from konsil.evaluation import EVALUATION_BATCH
from konsil.ingredients.context import Context, Means, Shared, TrainedNetwork, Upload
from konsil.ingredients.method import method
from konsil.ingredients.piece import Piece, merged, together, train
from konsil.ingredients.site import Batches, Site
from konsil.methods.fedsm import FedSM, SuperModelSettings
from konsil.methods.selector import SELECTOR
from konsil.weights import Layout, Weights

PHASE = "server.phase"  # a note: what the next round is
TOLD = "server.told"  # a note: the sites that have got the frozen models
HANDED_IN = "specialist"  # as it is uploaded; below, as everybody gets it
MODELS, HANDING_IN, SELECTING = 1, 2, 3
V = TypeVar("V")


def frozen(site: str) -> str:
    """The part that holds a site's frozen specialist."""
    return f"{HANDED_IN}.{site}"


class TwoPhaseSettings(SuperModelSettings):
    """With `selector_share` = 0 there is no second phase: FedSM's models without a selector."""

    selector_share: float = Field(1 / 3, ge=0, lt=1)  # of the rounds, for phase 2: 50 of 150


class FedSMExtraSettings(TwoPhaseSettings):
    """With `selector_share` = 0 there is no second phase: FedSM's models without a selector."""

    # On its own training images a specialist is at its most over-fitted, so that its site's label
    # dominates: images that no model was trained on are the fairer teachers, and fewer.
    labels_from: Literal["train", "validation"] = "train"


@method("fedsm-extra", paper="Xu et al., CVPR 2022, Algorithms 3-4")
class FedSMExtra(FedSM):
    """FedSM's models, then a selector that learns which of them serves an image best."""

    Settings: ClassVar[type[SuperModelSettings]] = FedSMExtraSettings
    needs = "individual"
    travels = "second phase: the selector; before it each specialist once up, all of them once down"
    further_outputs = 1  # output 0 is for the global model

    def specialists(self, context: Context) -> list[Piece]:
        """Their training ends with the first phase."""
        return super().specialists(replace(context, rounds=self.first_phase))

    def networks(self) -> dict[str, TrainedNetwork]:
        """Each learns at the rates of its own phase."""
        phases = {SELECTOR: (self.first_phase + 2, self.context.rounds)}
        models = (1, self.first_phase)
        found = super().networks().items()
        return {name: replace(net, rounds=phases.get(name, models)) for name, net in found}

    @property
    def routing(self) -> str:
        return "argmax"

    @cached_property
    def first_phase(self) -> int:
        """Its number of rounds. A second phase is one round of handing in and at least one more."""
        rounds = self.context.rounds
        second = min(max(2, round(rounds * self.settings.selector_share)), rounds - 1)
        return rounds - second if self.settings.selector_share and rounds > 2 else rounds

    def eligible(self, round: int) -> bool:
        """Only what was frozen: the selector knows no other models."""
        return round > self.first_phase + 1 or self.first_phase == self.context.rounds

    def phase(self, site: Site) -> int:
        """Which phase a site is in."""
        if site.round <= self.first_phase:
            return MODELS
        return HANDING_IN if site.round == self.first_phase + 1 else SELECTING

    def warnings(self) -> list[str]:
        """Without a second phase the selector stays as it began."""
        if self.first_phase == self.context.rounds:
            return ["no second phase (too few rounds, or no share): the selector is not trained"]
        return super().warnings()

    # --- at the server --------------------------------------------------------------------------

    def sent(self, site: str, shared: Shared) -> Shared:
        """Phase 1: the models. Phase 2: the selector, and once the frozen models."""
        everything = shared.sent()
        selector, models = apart(everything)
        if phase_of(shared) != SELECTING:
            return Shared(models, everything.notes)
        if site in shared.notes[TOLD]:
            return Shared(selector)
        names = ["global", *map(frozen, self.context.sites)]
        return Shared({**{name: models[name] for name in names}, **selector})

    def uploads(self, shared: Shared) -> dict[str, Layout]:
        """Phase 1: the models. Handing in: the specialist. Phase 2: the selector."""
        selector, models = apart(super().uploads(shared))
        if phase_of(shared) == HANDING_IN:
            return {HANDED_IN: shared["global"].layout}
        return selector if phase_of(shared) == SELECTING else models

    def keeps_uploads(self, shared: Shared) -> bool:
        """Only the specialists that are handed in."""
        return phase_of(shared) == HANDING_IN

    def merge(self, shared: Shared, means: Means) -> Shared:
        """By phase; the last round of one names the next."""
        phase = phase_of(shared)
        if phase == MODELS:
            new = merged(self.models, shared, means)
        elif phase == HANDING_IN:
            given = {site: parts[HANDED_IN] for site, parts in means.individual.items()}
            parts = {frozen(s): given.get(s, means[HANDED_IN]) for s in self.context.sites}
            new = shared.updated(parts, {TOLD: []})
        else:
            new = merged([self.selector], shared, means)
            new.notes[TOLD] = sorted({*shared.notes[TOLD], *means.sites})
        if means.round >= self.first_phase:
            new.notes[PHASE] = HANDING_IN if means.round == self.first_phase else SELECTING
        return new

    # --- at a site ------------------------------------------------------------------------------

    def receive(self, site: Site, shared: Shared) -> None:
        """Phase 1 and handing in: SoftPull. Phase 2: study the frozen models, once."""
        if self.phase(site) != SELECTING:
            for piece in self.models:
                piece.receive(site, shared)
        elif frozen(site.name) in shared:
            site.private["personal"] = shared[frozen(site.name)]
            site.private.pop("personal.statistics", None)  # frozen with those it was handed in with
            site.private["global"] = shared["global"]
            self.study(site, [shared["global"], *(shared[frozen(s)] for s in self.context.sites)])

    def study(self, site: Site, models: list[Weights]) -> None:
        """Label every image with the model of the smallest loss; of equals the global one wins."""
        for split, images in (("train", site.training), ("validation", site.validation)):
            losses = torch.stack([losses_of(site, m, site.in_order(images)) for m in models])
            site.notes[f"labels.{split}"] = losses.argmin(dim=0).tolist()

    def local(self, site: Site, shared: Shared) -> Upload:
        """One round of whatever phase it is."""
        phase = self.phase(site)
        if phase == MODELS:  # Algorithm 3, phase 1: FedSM's two models
            return train(self.models, site, shared)
        if phase == HANDING_IN:
            answers = together(piece.answers(site, shared) for piece in self.models)
            specialist = answers.get("personal", shared["global"])
            return Upload().add(HANDED_IN, site.localised("personal", specialist), weight=1)
        return self.select(site, shared)

    def select(self, site: Site, shared: Shared) -> Upload:
        """Algorithm 3, phase 2: cross-entropy against the labels."""
        held_out = self.settings.labels_from == "validation"
        images = site.validation if held_out else site.training
        labels = torch.tensor(site.notes[f"labels.{self.settings.labels_from}"])
        self.selector.begin(site, shared)
        purpose, epochs = "labels" if held_out else "", self.settings.selector_epochs
        for index, x, _ in site.indexed_batches(images, purpose, epochs):
            self.selector.learn(x, labels[index].to(x.device))
        upload = Upload()
        self.selector.send(upload, len(images), lambda: labelled(site.in_order(images), labels))
        return upload

    def answers(self, site: Site, shared: Shared) -> dict[str, Weights]:
        """The global model and the specialist; in phase 2 the frozen ones."""
        if self.phase(site) == SELECTING:
            return {role: site.private[role] for role in ("global", "personal")}
        return together(piece.answers(site, shared) for piece in self.models)

    def measures(self, site: Site, shared: Shared) -> dict[str, float]:
        """Of the selector in phase 2, of the specialists before."""
        if self.phase(site) == SELECTING:
            return self.selector_measures(site, shared)
        return together(piece.measures(site, shared) for piece in self.models)

    def selector_measures(self, site: Site, shared: Shared) -> dict[str, float]:
        """How many of the site's validation images the selector gives to the best model."""
        w_s, best = site.eval_network(SELECTOR, shared[SELECTOR]), site.notes["labels.validation"]
        with torch.no_grad():
            chosen = [w_s(x).argmax(dim=1).cpu() for x, _ in site.in_order(site.validation)]
        right = (torch.cat(chosen) == torch.tensor(best)).double().mean()
        return {"selector_accuracy": float(right)}


def labelled(images: Batches, labels: Tensor) -> Batches:
    """These images, which are in order, with a label each."""
    by_batch = zip(images, labels.split(EVALUATION_BATCH), strict=True)
    return ((x, mine.to(x.device)) for (x, _), mine in by_batch)


@torch.no_grad()
def losses_of(site: Site, weights: Weights, images: Batches) -> Tensor:
    """The loss of a model on each of these images."""
    net = site.frozen("candidate", weights)
    return torch.cat([site.task.losses(net(x), y).cpu() for x, y in images])


def apart(parts: dict[str, V]) -> tuple[dict[str, V], dict[str, V]]:
    """The selector's parts, and the others."""
    mine = {n: p for n, p in parts.items() if n == SELECTOR or n.startswith(f"{SELECTOR}.")}
    return mine, {n: p for n, p in parts.items() if n not in mine}


def phase_of(shared: Shared) -> int:
    """What the next round is, at the server."""
    return int(shared.notes.get(PHASE, MODELS))
