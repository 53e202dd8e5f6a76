"""The super model: global model, specialists, selector. It runs without the training code.

On disk it is a folder: `model.json` and one safetensors file a network.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from konsil.errors import DataError, StateError
from konsil.networks import NetworkSpec, build_network
from konsil.networks.outputs import TARGETS, mixed
from konsil.supermodel.folder import FORMAT, check_fit, load_folder, save_folder
from konsil.supermodel.novelty import novelty
from konsil.supermodel.rules import (
    NAMES_MODELS,
    NEEDS_NO_SELECTOR,
    Even,
    Rule,
    Threshold,
    from_json,
    to_json,
)
from konsil.weights import BoundNetwork, Weights

if TYPE_CHECKING:  # asked about tensors, a super model reads no file
    from konsil.data.reading import ImageReading
    from konsil.supermodel.predict import Prediction

GLOBAL = "global"
ALL = "all"  # every model of more than two
SELECTOR = "selector"
NOVELTY = "novelty"  # what tells images of no site, if anything does


@dataclass(frozen=True)
class Facts:
    """What `model.json` says: enough to build the networks again and read their answers."""

    task: str
    labels: list[str]  # structures, or classes
    sites: list[str]  # in the order of the selector's outputs
    network: dict[str, Any]
    selector: dict[str, Any]  # empty: there is none, and always the same models answer
    routing: dict[str, Any]  # whom to ask: a rule of rules.py
    temperature: float = 1.0  # by which the selector's logits are divided
    limit: float | None = None  # an image of more novelty is like those of no site
    plan: str = ""
    withheld: list[str] = field(default_factory=list)  # sites that keep their specialist
    format: int = FORMAT
    targets: str = ""  # masks or classes; older folders have none, when there were two tasks
    # site -> how its image files were read, in a federation file's words; older folders have none
    reading: dict[str, dict[str, Any]] = field(default_factory=dict)
    # validation or test -> role (super, global, personal) -> site -> metric -> score there
    scores: dict[str, dict[str, dict[str, dict[str, float]]]] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)  # which run of what it comes from
    # like `scores`, of each the ends of its 95 % interval, where sites told single images'
    intervals: dict[str, dict[str, dict[str, dict[str, list[float]]]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = self.targets or ("masks" if self.task == "segmentation" else "classes")
        if given not in TARGETS:
            raise ValueError(f"targets = {given!r}: one of {', '.join(TARGETS)}")
        object.__setattr__(self, "targets", given)
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature = {self.temperature!r}: a number above 0")
        rule = self.rule
        if not self.selector and not isinstance(rule, NEEDS_NO_SELECTOR):
            raise ValueError(f"routing: {rule.name} asks a selector, and there is none")
        if self.reading and set(self.reading) != set(self.sites):
            raise ValueError(f"reading: of {', '.join(self.reading)}, and not of every site")

    @property
    def rule(self) -> Rule:
        """The rule itself; ValueError if `routing` is none."""
        return from_json(self.routing, len(self.sites))


@dataclass(frozen=True)
class Route:
    """Whom to ask, image by image, and why."""

    probabilities: Tensor  # [images, sites]; with the global model before the sites if it has one
    confidence: Tensor  # the largest of them
    site: Tensor  # its place in the roster; -1: the selector names the global model
    shares: Tensor  # [images, 1 + sites]: what the global model and each specialist count
    novelty: Tensor  # how little like any site's images each is; nan: nobody can tell
    unfamiliar: Tensor  # True: too little, so that the global model answers

    @property
    def specialist(self) -> Tensor:
        """True: a specialist answers, or helps to; False: the global model alone."""
        return self.shares[:, 1:].sum(dim=1) > 0


@dataclass(frozen=True)
class Answer:
    """What the super model says of a batch of images."""

    logits: Tensor
    route: Route


class SiteSelector:
    """The network that tells which site an image is like, without the models it chooses from."""

    def __init__(
        self, spec: dict[str, Any], weights: Weights, device: torch.device | str = "cpu"
    ) -> None:
        self.device = torch.device(device)
        self.net = build_network(NetworkSpec.from_json(spec))
        BoundNetwork(self.net, self.device).load(weights)
        self.net.eval()

    @torch.no_grad()
    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Its logits, and the features that it has seen of each image."""
        return self.net.with_features(images.to(self.device))


class SuperModel:
    """One global model, one specialist a site, and a selector that decides whom to ask.

    What a method leaves that has no selector, or not all of these models, is one of the same kind.
    """

    def __init__(
        self, facts: Facts, models: Mapping[str, Weights], device: torch.device | str = "cpu"
    ) -> None:
        needed = [site for site in facts.sites if site not in facts.withheld]
        needed += [SELECTOR] if facts.selector else []
        needed += [] if isinstance(facts.rule, Even) and needed else [GLOBAL]
        missing = [name for name in needed if name not in models]
        if missing:
            raise StateError(f"super model: no weights for {', '.join(missing)}")
        self.facts = facts
        self.models = dict(models)
        self.device = torch.device(device)
        self.rule = facts.rule
        # whom to ask for images of each site: its specialist, or the global model if it is kept
        self.answering = [GLOBAL if site in facts.withheld else site for site in facts.sites]

    @classmethod
    def from_parts(
        cls, facts: dict[str, Any], parts: Mapping[str, Weights], device: str = "cpu"
    ) -> SuperModel:
        """The super model of plain facts and named weights."""
        return cls(Facts(**facts), parts, device)

    def with_rule(self, rule: Rule) -> SuperModel:
        """The same models with another rule of whom to ask."""
        return self.changed(routing=to_json(rule))

    def with_gamma(self, gamma: float) -> SuperModel:
        """The same models with Algorithm 2's rule and this threshold."""
        return self.with_rule(Threshold(gamma))

    def changed(self, **facts: Any) -> SuperModel:
        """The same models with other facts."""
        return SuperModel(replace(self.facts, **facts), self.models, self.device)

    @property
    def answerers(self) -> list[str]:
        """The models that can be asked: the global one, and the specialists that are here."""
        return [name for name in (GLOBAL, *self.facts.sites) if name in self.models]

    @cached_property
    def selector(self) -> SiteSelector:
        """Built when it is first asked."""
        return SiteSelector(self.facts.selector, self.models[SELECTOR], self.device)

    @cached_property
    def _network(self) -> BoundNetwork:
        network = build_network(NetworkSpec.from_json(self.facts.network))
        bound = BoundNetwork(network, self.device)
        bound.mode(training=False)
        return bound

    @torch.no_grad()
    def route(self, images: Tensor) -> Route:
        """Algorithm 2, lines 1-3, by whatever rule: how much of the answer is whose."""
        if not self.facts.selector:
            return self._unasked(len(images))
        return self.route_of(*self.selector(images))

    def route_of(self, logits: Tensor, features: Tensor) -> Route:
        """The same from what the selector has said of the images, which may have been asked."""
        probabilities = torch.softmax(logits / self.facts.temperature, dim=1)
        confidence, site = probabilities.max(dim=1)
        if self.rule.name in NAMES_MODELS:
            site = site - 1
        novel = self._novelty(features)
        unfamiliar = novel > (float("inf") if self.facts.limit is None else self.facts.limit)
        shares = self._shares(probabilities, unfamiliar)
        return Route(probabilities, confidence, site, shares, novel, unfamiliar)

    def _unasked(self, images: int) -> Route:
        """The route of images that no selector has seen."""
        unknown = torch.full((images, len(self.facts.sites)), torch.nan, device=self.device)
        nobody = torch.full((images,), -1, device=self.device)
        familiar = torch.zeros(images, dtype=torch.bool, device=self.device)
        shares = self._shares(unknown, familiar)
        return Route(unknown, unknown[:, 0], nobody, shares, unknown[:, 0], familiar)

    def shares_of(self, route: Route) -> Tensor:
        """The shares that this model's rule gives for another rule's route."""
        return self._shares(route.probabilities, route.unfamiliar)

    def _novelty(self, features: Tensor) -> Tensor:
        if NOVELTY not in self.models:
            return torch.full((len(features),), torch.nan, device=features.device)
        found = novelty(self.models[NOVELTY], features.cpu().double())
        return found.float().to(features.device)

    def _shares(self, probabilities: Tensor, unfamiliar: Tensor) -> Tensor:
        """The rule's; the global model stands in for withheld specialists, and answers what is
        unfamiliar."""
        shares = self.rule.shares(probabilities).clone()
        withheld = [1 + k for k, name in enumerate(self.answering) if name == GLOBAL]
        shares[:, 0] += shares[:, withheld].sum(dim=1)
        shares[:, withheld] = 0
        if GLOBAL not in self.models:  # those who are left answer
            shares[:, 0] = 0
            shares /= shares.sum(dim=1, keepdim=True)
        shares[unfamiliar] = 0
        shares[unfamiliar, 0] = 1
        return shares

    def asked(self, route: Route) -> list[str]:
        """Who answers each image: `global`, a site's name, or several with a plus; or `all`."""
        names = [GLOBAL, *self.facts.sites]
        answering = [[names[i] for i in row.nonzero().flatten()] for row in route.shares > 0]
        return [ALL if len(who) == len(names) > 2 else " + ".join(who) for who in answering]

    @torch.no_grad()
    def logits_of(self, name: str, images: Tensor) -> Tensor:
        """The answer of one of the models, by the name of its site or `global`."""
        if name not in self.models or name in (SELECTOR, NOVELTY):
            known = ", ".join(self.answerers)
            raise DataError(f"{name}: no model of that name here; there are {known}")
        self._network.load(self.models[name])
        return self._network.net(images.to(self.device))

    def reading(self, site: str | None = None) -> ImageReading:
        """How image files are read: as this site's were, or as those of all sites were."""
        from konsil.data.reading import ImageReading

        facts = self.facts
        if site is not None and site not in facts.sites:
            raise DataError(f"{site}: no site of this model; it has {', '.join(facts.sites)}")
        wanted = facts.sites if site is None else [site]
        found = {one: ImageReading.from_json(facts.reading.get(one, {})) for one in wanted}
        if len(set(found.values())) > 1:
            listing = "; ".join(f"{one}: {how}" for one, how in found.items())
            raise DataError(
                f"the sites of this model read their images in different ways ({listing}): say as "
                "which site's an image is to be read"
            )
        return found[wanted[0]]

    def read(self, *files: str | Path, site: str | None = None) -> Tensor:
        """Pictures, and all planes of volumes, as `answer` takes them: read as for training.

        `site`: as whose images, where the sites read theirs in different ways.
        """
        from konsil.data.findings import BadFile
        from konsil.data.image_file import open_image

        size, channels = self.facts.network["image_size"], self.facts.network["in_channels"]
        reading = self.reading(site)
        pictures = []
        for file in files:
            try:
                opened = open_image(Path(file), reading)
            except BadFile as bad:
                raise DataError(f"{file}: {bad}") from None
            planes = range(len(opened.pictures))
            pictures += [torch.tensor(opened.plane(n, channels, size)) for n in planes]
        return torch.stack(pictures) / 255

    def predict(
        self, *inputs: str | Path | Any, ask: str = "auto", site: str | None = None
    ) -> list[Prediction]:
        """What the model says of files (pictures, volumes, DICOM series) or of arrays of pixels.

        Each is read as training read its images (`site`: as this one's, where sites differ), and
        is asked about alone. `ask`: whom; by default the super model chooses.
        """
        from konsil.supermodel.predict import predict_array, predict_file

        reading = self.reading(site)
        return [
            predict_file(self, Path(one), ask, reading)
            if isinstance(one, str | Path)
            else predict_array(self, one, ask, reading)
            for one in inputs
        ]

    def answer(self, images: Tensor) -> Answer:
        """Algorithm 2: every image is answered by whom the rule asks.

        `images`: [n, channels, height, width], values in [0, 1].
        """
        route = self.route(images)
        return Answer(self.logits_for(route.shares, images), route)

    @torch.no_grad()
    def logits_for(self, shares: Tensor, images: Tensor) -> Tensor:
        """The answers of all who have a share in an image, mixed; others are not asked."""
        alone = bool((shares == 1).any(dim=1).all())  # each image has one who answers: no mixing
        found: list[Tensor] = []
        columns = []
        for column, name in enumerate((GLOBAL, *self.answering)):
            asked = shares[:, column] > 0
            if asked.any():
                answers = self.logits_of(name, images[asked.to(images.device)])
                if not (alone and found):
                    found.append(answers.new_zeros(len(images), *answers.shape[1:]))
                    columns.append(column)
                found[-1][asked] = answers
        return found[0] if alone else mixed(self.facts.targets, found, shares[:, columns])

    def save(self, folder: Path, half: Mapping[str, Collection[str]] | None = None) -> None:
        """Write the folder; `model.json` last, so that a folder with it is whole.

        `half`: of each model the entries that are stored as float16; `load` gives float32 again.
        """
        from konsil.supermodel.card import model_card

        save_folder(folder, asdict(self.facts), self.models, half or {}, model_card(self.facts))

    @classmethod
    def load(cls, folder: Path, device: str = "cpu") -> SuperModel:
        """The super model of a folder."""
        plain, models = load_folder(folder)
        try:
            facts = Facts(**plain)
        except (ValueError, TypeError) as error:
            raise StateError(f"{folder}: not a super model's folder ({error})") from None
        others = (SELECTOR, NOVELTY)
        check_fit(facts.network, {n: w for n, w in models.items() if n not in others}, folder)
        # What looks through the very network of the model is of that size, which has been checked;
        # to build it only for that takes longer than all the rest. `selector` holds it to its file.
        if SELECTOR in models and facts.selector.get("arguments", {}).get("of") != facts.network:
            check_fit(facts.selector, {SELECTOR: models[SELECTOR]}, folder)
        return cls(facts, models, device)
