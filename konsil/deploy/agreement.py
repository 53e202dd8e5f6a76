"""How server and sites come to one plan, before anything is computed.

server                              site
greet: experiment, version     ->   its policy is asked; which labels and channels it has
open:  the labels of all       ->   opens its data; how many images, and their fingerprint
agree: the whole plan          ->   its policy is asked again; it computes the plan's hash
                                    itself, notes the plan, and answers for no other
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, JsonValue, NonNegativeInt, ValidationError, field_validator

from konsil.config import SOURCES, Experiment, check_experiment
from konsil.data import Federation, open_federation
from konsil.data.origin import find_source
from konsil.data.reading import ImageReading
from konsil.data.sources import SPLITS
from konsil.deploy.policy import PolicyRefused
from konsil.errors import ConfigError
from konsil.federation.messages import BadMessage, Body, Name, first_mistake
from konsil.federation.plan import Plan, initial_content
from konsil.registry import kind_and_name, load_plugins, with_contents
from konsil.tasks import targets_of
from konsil.version import __version__

OWN = "own-data"  # stands where an experiment names a path: every site has a path of its own
# What a server may say of a site's images: how they are read, never where anything lies.
AGREED = ("images", "image_size", "channels", "patient_pattern", "split", "split_seed")
Raw = dict[str, JsonValue]  # an experiment, as it is sent
SplitName = Annotated[str, Field(pattern=f"^({'|'.join(SPLITS)})$")]


class Said(Body):
    """What one side says before the first round, as JSON."""

    def to_bytes(self) -> bytes:
        """The bytes that travel under its topic."""
        return self.model_dump_json().encode()

    @classmethod
    def from_bytes(cls, payload: bytes) -> Self:
        """What the other side meant, or why it cannot have been meant."""
        try:
            return cls.model_validate_json(payload)
        except ValidationError as error:
            raise BadMessage(f"no {cls.__name__}: {first_mistake(error)}") from None


class Greeting(Said):
    """What the server would like to run."""

    experiment: Raw
    version: Name


class Welcome(Said):
    """What a site says of itself when it is greeted."""

    labels: list[Name]
    given: bool  # its labels are written down, not only those that occur
    channels: int


class Opening(Said):
    """With which labels a site is to open its data."""

    experiment: Raw
    labels: list[Name]


class Opened(Said):
    """What leaves of a site's data when they are open: numbers and a hash."""

    counts: dict[SplitName, NonNegativeInt] = Field(min_length=len(SPLITS))  # images
    fingerprint: Name
    reading: Raw = Field(default_factory=dict)  # how its image files are read, for who asks later

    @field_validator("reading")
    @classmethod
    def _is_one(cls, words: Raw) -> Raw:
        return ImageReading.from_json(words).to_json()


class SharedPlan(Said):
    """The whole plan, but for where anything lies at the server; what else is said is not kept."""

    run: Name  # two runs may be of one plan
    hash: Name
    version: Name
    experiment: Raw
    sites: list[Name]
    labels: list[Name]
    channels: int
    counts: dict[Name, dict[str, int]]
    fingerprint: Name
    plugins: dict[Name, Name] = Field(default_factory=dict)
    initial_weights: Name = ""
    readings: dict[Name, Raw] = Field(default_factory=dict)


class Agreed(Said):
    """To which plan a site agreed, by the hash that it computed itself."""

    plan: Name


class Over(Said):
    """A run needs no more rounds."""

    plan: Name
    run: Name


def without_places(experiment: Experiment) -> dict[str, Any]:
    """The experiment as it travels: no path of anybody's disk."""
    if experiment.performance == "auto":
        raise ConfigError(
            "performance = 'auto': a trial on one machine says nothing of the hospitals' others; "
            "between them say compute.kernels, compute.memory_format and compute.precision"
        )
    plain: dict[str, Any] = experiment.model_dump(mode="json", by_alias=True, exclude_unset=True)
    plain.pop("plugins", None)
    if content := initial_content(experiment):
        plain["network"]["initial"] = content  # every party has a file of its own with it
    federation = plain["federation"]
    for key in ("cache", "cache_limit"):
        federation.pop(key, None)
    federation |= {key: OWN for key in SOURCES if key != "synthetic" and key in federation}
    return plain


def with_own_initial(raw: Mapping[str, Any], own: Sequence[Path]) -> dict[str, Any]:
    """An experiment that travelled, with a party's own file where it names a file's content."""
    network = raw.get("network") or {}
    if (content := network.get("initial")) is None:
        return dict(raw)
    found = with_contents(own, [content])
    if not found:
        raise PolicyRefused(
            f"network.initial: none of the files here has the sha256 {content}; when the file has "
            "been looked at, put it into `plugins` of a site's policy, and at the server give it "
            "with konsil server start --plugin FILE.safetensors"
        )
    return {**raw, "network": {**network, "initial": str(found[content])}}


# --- at a site ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class SiteData:
    """A site's own images: where they are is the site's business, how they are read is agreed."""

    site: str
    source: Mapping[str, Any]  # the block `federation` of an experiment: file: ..., cache: ...

    def experiment(self, raw: Mapping[str, Any], plugins: list[Path]) -> Experiment:
        """The experiment with this site's own places in it, and the plugins that it needs."""
        needed = _needed(raw.get("plugins") or {}, plugins)
        load_plugins(needed)  # they may hold the task, which says how images are read
        raw = with_own_initial(raw, plugins)
        block = {k: v for k, v in raw["federation"].items() if k in AGREED}
        own = {**block, **self.source, "sites": [self.site]}
        return check_experiment(
            {**raw, "federation": own, "plugins": [str(path) for path in needed]},
            "the experiment that was sent",
        )

    def welcome(self, experiment: Experiment) -> Welcome:
        """Labels and channels, without opening an image."""
        source = find_source(experiment.federation, experiment.task)
        listing = source.listing([self.site])
        given = source.manifest.labels
        labels = given or sorted({item.label for item in listing.items})
        if given is None and targets_of(experiment.task) == "masks":
            labels = source.recipe(listing.items).labels
        return Welcome(labels=labels, given=given is not None, channels=source.channels_read())

    def open(self, experiment: Experiment, labels: list[str]) -> tuple[Federation, Opened]:
        """All of it, decoded into the site's own cache; and what may be said of it."""
        task = experiment.task
        source = find_source(experiment.federation, task)
        if targets_of(task) == "classes" and source.manifest.labels is None:
            task = task.model_copy(update={"classes": labels})
        found = open_federation(experiment.federation, task)
        return found, Opened(
            counts=found.counts[self.site],
            fingerprint=found.fingerprint,
            reading=found.readings[self.site].to_json(),
        )

    def plan(self, shared: SharedPlan, plugins: list[Path]) -> tuple[Plan, Federation]:
        """The plan that was sent, with this site's own places, if it is about this site; its data.

        A site trusts its own arithmetic: the hash, its own numbers, and its own code.
        """
        experiment = self.experiment(shared.experiment | {"plugins": shared.plugins}, plugins)
        federation, now = self.open(experiment, shared.labels)
        known = with_own_initial(shared.experiment, plugins)
        own = {
            "experiment": {**known, "plugins": experiment.plugins},
            "data_folder": str(federation.folder),
        }
        plan = Plan.from_json(shared.model_dump() | own)
        if plan.version != __version__:
            raise PolicyRefused(
                f"the plan is of Konsil {plan.version}, this site has {__version__}"
            )
        if plan.hash != shared.hash:
            raise PolicyRefused(
                f"the plan's hash is {shared.hash}, this site computes {plan.hash}: it was changed "
                "on its way, or the code differs; install the same version of Konsil everywhere"
            )
        if self.site not in plan.sites or plan.counts[self.site] != now.counts:
            raise PolicyRefused(
                "the plan's counts of images are not those of this site's data now; bring the data "
                "back as they were, or submit a new run"
            )
        return plan, federation


def _needed(agreed: Mapping[str, str], own: list[Path]) -> list[Path]:
    """Of a site's own plugins those that the plan is made with. No other is run."""
    found = with_contents(own, agreed.values())
    for name, sha256 in agreed.items():
        if sha256 not in found:
            raise PolicyRefused(
                f"{kind_and_name(name)}: the plan has it from a plugin with the sha256 {sha256}, "
                "and none of the plugins in this site's policy has that content; put that file "
                "into `plugins` of the policy when it has been read, or do without it"
            )
    return list(found.values())


# --- at the server --------------------------------------------------------------------------------


def common_labels(welcomes: Mapping[str, Welcome]) -> tuple[list[str], int]:
    """The labels and channels of all sites; refused if they do not fit together."""
    channels = {welcome.channels for welcome in welcomes.values()}
    if len(channels) > 1:
        listing = ", ".join(f"{site}: {w.channels}" for site, w in welcomes.items())
        raise ConfigError(
            f"the sites read their images with different channels ({listing}); "
            "set federation.channels in the experiment"
        )
    written = {site: w.labels for site, w in welcomes.items() if w.given}
    first = next(iter(written.values()), None)
    for site, labels in written.items():
        if labels != first:
            raise ConfigError(
                f"site {site} has the labels {', '.join(labels)}, others have "
                f"{', '.join(first or [])}; every site needs the same, in the same order"
            )
    found = sorted({label for w in welcomes.values() for label in w.labels})
    if first is not None and set(found) - set(first):
        strange = ", ".join(sorted(set(found) - set(first)))
        raise ConfigError(f"labels that only some sites know: {strange}")
    return first or found, channels.pop()


def make_plan(
    experiment: Experiment, labels: list[str], channels: int, sites: Mapping[str, Opened]
) -> Plan:
    """The plan of an experiment whose images nobody but the sites has seen."""
    prints = json.dumps({site: answer.fingerprint for site, answer in sites.items()})
    plan = Plan(
        plugins=load_plugins(experiment.plugins),
        initial_weights=initial_content(experiment),
        experiment=experiment,
        sites=tuple(sites),
        labels=tuple(labels),
        channels=channels,
        counts={site: answer.counts for site, answer in sites.items()},
        fingerprint=hashlib.sha256(prints.encode()).hexdigest(),
        data_folder=Path(OWN),
        readings={site: answer.reading for site, answer in sites.items()},
    )
    plan.check()
    return plan
