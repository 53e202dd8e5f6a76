"""The super model: global model, specialists, selector. It runs without the training code.

On disk it is a folder: `model.json` and one safetensors file a network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from konsil.errors import ConfigError, DataError, StateError
from konsil.networks import NetworkSpec, build_network, check_spec
from konsil.networks.outputs import TARGETS, blended
from konsil.weights import BoundNetwork, Weights

FORMAT = 1
GLOBAL = "global"
SELECTOR = "selector"


@dataclass(frozen=True)
class Facts:
    """What `model.json` says: enough to build the networks again and read their answers."""

    task: str
    labels: list[str]  # structures, or classes
    sites: list[str]  # in the order of the selector's outputs
    network: dict[str, Any]
    selector: dict[str, Any]
    gamma: float
    plan: str = ""
    routing: str = "threshold"  # or argmax, ensemble: a selector with an output 0 for the global
    withheld: list[str] = field(default_factory=list)  # sites that keep their specialist
    format: int = FORMAT
    targets: str = ""  # masks or classes; older folders have none, when there were two tasks

    def __post_init__(self) -> None:
        given = self.targets or ("masks" if self.task == "segmentation" else "classes")
        if given not in TARGETS:
            raise ValueError(f"targets = {given!r}: one of {', '.join(TARGETS)}")
        object.__setattr__(self, "targets", given)


@dataclass(frozen=True)
class Route:
    """Whom the selector would ask, image by image."""

    probabilities: Tensor  # [images, sites]; with the global model before the sites if it has one
    confidence: Tensor  # the largest of them
    site: Tensor  # its place in the roster; -1: the selector names the global model
    specialist: Tensor  # True: that site's specialist answers; False: the global model


@dataclass(frozen=True)
class Answer:
    """What the super model says of a batch of images."""

    logits: Tensor
    route: Route


class SuperModel:
    """One global model, one specialist a site, and a selector that decides whom to ask."""

    def __init__(
        self, facts: Facts, models: Mapping[str, Weights], device: torch.device | str = "cpu"
    ) -> None:
        given = [site for site in facts.sites if site not in facts.withheld]
        missing = [n for n in (GLOBAL, SELECTOR, *given) if n not in models]
        if missing:
            raise StateError(f"super model: no weights for {', '.join(missing)}")
        self.facts = facts
        self.models = dict(models)
        self.device = torch.device(device)
        # whom to ask for images of each site: its specialist, or the global model if it is kept
        self.answering = [GLOBAL if site in facts.withheld else site for site in facts.sites]

    @classmethod
    def from_parts(
        cls, facts: dict[str, Any], parts: Mapping[str, Weights], device: str = "cpu"
    ) -> SuperModel:
        """The super model of plain facts and named weights."""
        return cls(Facts(**facts), parts, device)

    def with_gamma(self, gamma: float) -> SuperModel:
        """The same models with another threshold."""
        return SuperModel(replace(self.facts, gamma=gamma), self.models, self.device)

    @cached_property
    def _selector(self) -> BoundNetwork:
        return self._bound(self.facts.selector, SELECTOR)

    @cached_property
    def _network(self) -> BoundNetwork:
        return self._bound(self.facts.network, GLOBAL)

    def _bound(self, spec: dict[str, Any], name: str) -> BoundNetwork:
        bound = BoundNetwork(build_network(NetworkSpec.from_json(spec)), self.device)
        bound.load(self.models[name])
        bound.net.eval()
        return bound

    @torch.no_grad()
    def route(self, images: Tensor) -> Route:
        """Algorithm 2, lines 1-3: a specialist if the selector is surer than gamma.

        A selector that knows the global model too (FedSM-extra) simply names its choice.

        Strictly surer: a saturated softmax returns exactly 1, and gamma = 1 must mean "always
        the global model".
        """
        probabilities = torch.softmax(self._selector.net(images.to(self.device)), dim=1)
        confidence, site = probabilities.max(dim=1)
        if self.facts.routing == "threshold":
            wanted = confidence > self.facts.gamma
        else:
            site = site - 1
            wanted = site >= 0
        # Withheld specialists are not asked; the last entry is for -1, the global model.
        given = torch.tensor([*(name != GLOBAL for name in self.answering), True])
        return Route(probabilities, confidence, site, wanted & given.to(site.device)[site])

    def asked(self, route: Route) -> list[str]:
        """Who answers each image: a site's specialist, or `global`."""
        choices = zip(route.site.tolist(), route.specialist.tolist(), strict=True)
        return [self.facts.sites[site] if special else GLOBAL for site, special in choices]

    @torch.no_grad()
    def logits_of(self, name: str, images: Tensor) -> Tensor:
        """The answer of one of the models, by the name of its site or `global`."""
        self._network.load(self.models[name])
        return self._network.net(images.to(self.device))

    def read(self, *files: str | Path) -> Tensor:
        """Pictures as `answer` takes them: read and resized as for training, without a window."""
        from konsil.data.findings import BadFile
        from konsil.data.readers import eight_bit, fit, read_picture

        size, channels = self.facts.network["image_size"], self.facts.network["in_channels"]
        pictures = []
        for file in files:
            try:
                picture = eight_bit(read_picture(Path(file).read_bytes()), window=None)
            except OSError as error:
                raise DataError(f"{file}: cannot be read ({error.strerror})") from None
            except BadFile as bad:
                raise DataError(f"{file}: {bad.what}; {bad.cure}") from None
            pictures.append(torch.tensor(fit(picture, channels, size)))
        return torch.stack(pictures) / 255

    def answer(self, images: Tensor) -> Answer:
        """Algorithm 2: every image is answered by the model that the selector chose.

        `images`: [n, channels, height, width], values in [0, 1].
        """
        route = self.route(images)
        if self.facts.routing == "ensemble":
            logits = [self.logits_of(name, images) for name in (GLOBAL, *self.answering)]
            return Answer(blended(self.facts.targets, logits, route.probabilities), route)
        return Answer(self.logits_by(self.asked(route), images), route)

    def logits_by(self, chosen: list[str], images: Tensor) -> Tensor:
        """Logits with a named model for every image; images of one model go through together."""
        pieces: dict[int, Tensor] = {}
        for name in sorted(set(chosen)):
            places = [i for i, c in enumerate(chosen) if c == name]
            pieces.update(zip(places, self.logits_of(name, images[places]), strict=True))
        return torch.stack([pieces[i] for i in range(len(chosen))])

    def save(self, folder: Path) -> None:
        """Write the folder; `model.json` last, so that a folder with it is whole."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.json").unlink(missing_ok=True)
        files = {}
        for number, name in enumerate(sorted(self.models)):
            files[name] = f"{number:03d}-{''.join(c if c.isalnum() else '_' for c in name)}"
            self.models[name].save(folder / f"{files[name]}.safetensors")
        text = json.dumps(asdict(self.facts) | {"files": files}, indent=2)
        (folder / "model.json").write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, device: str = "cpu") -> SuperModel:
        """The super model of a folder."""
        try:
            facts = json.loads((folder / "model.json").read_text(encoding="utf-8"))
            files = dict(facts.pop("files"))
            if facts["format"] != FORMAT:
                raise StateError(f"{folder}: format {facts['format']}, this Konsil reads {FORMAT}")
            known = Facts(**facts)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(f"{folder}: not a super model's folder ({error})") from None
        _check_networks(known, folder)
        models = {n: Weights.load(folder / f"{file}.safetensors") for n, file in files.items()}
        return cls(known, models, device)


def _check_networks(facts: Facts, folder: Path) -> None:
    """Refuse at once what could only fail when the first image is asked about."""
    for spec in (facts.network, facts.selector):
        try:
            check_spec(NetworkSpec.from_json(spec))
        except ConfigError as error:
            raise StateError(
                f"{folder}: {error}; a network of one's own must be installed, or its file loaded "
                "first: konsil.registry.load_plugins([FILE.py])"
            ) from None
