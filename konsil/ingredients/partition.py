"""Which entries of a network stay at the site; only the others travel and are averaged.

In the language of mixing matrices (Theta <- W Theta), such a method has W = 1 p^T for the shared
entries and W = I for a site's own.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from functools import cached_property

from konsil.errors import ConfigError
from konsil.ingredients.context import MethodSettings, Upload
from konsil.ingredients.method import Method
from konsil.ingredients.site import Site
from konsil.weights import Layout, Parts, Weights

Names = frozenset[str]


def norm_entries(layout: Layout) -> Names:
    """All of every norm layer: scale and shift, running statistics, counters."""
    return frozenset(e.name for e in layout.entries if e.group == "norm")


def norm_statistics(layout: Layout) -> Names:
    """The norm layers' running statistics and counters, without what is trained."""
    return frozenset(e.name for e in layout.entries if e.group == "norm" and e.kind != "trainable")


def head_entries(layout: Layout, head: str) -> Names:
    """The head: the last layer, nothing, or what a regular expression finds in entry names."""
    if head == "none":
        return frozenset()
    names = [e.name for e in layout.entries if _in_head(e.name, e.group == "head", head)]
    found = {e.name for e in layout.entries if e.kind == "trainable"} & set(names)
    everything = sum(e.kind == "trainable" for e in layout.entries)
    if not 0 < len(found) < everything:
        amount = "everything, so that nothing is shared" if found else "nothing that is trained"
        raise ConfigError(f"head = {head!r}: it finds {amount}; {_examples(layout)}")
    return frozenset(names)


def _in_head(name: str, last: bool, head: str) -> bool:
    if head == "last":
        return last
    try:
        return re.search(head, name) is not None
    except re.error as error:
        raise ConfigError(
            f"head = {head!r}: last, none or a regular expression ({error})"
        ) from None


def _examples(layout: Layout) -> str:
    names = [e.name for e in layout.entries if e.kind == "trainable"]
    return f"the names go from {', '.join(names[:2])} to {', '.join(names[-2:])}"


class Partitioned(Method):
    """FedAvg of the shared entries; the others are trained, and stay.

    The site answers with both together: its own entries, and the means of the shared ones.
    """

    shared_roles = ()  # without a site's own entries the shared part is no network
    private_roles = ("personal",)
    best_by = ()

    @abstractmethod
    def partition(self, layout: Layout) -> Names:
        """The entries that stay at the site."""

    @cached_property
    def initial(self) -> Weights:
        """The whole network before round 1, alike for every site."""
        return self.context.initial(self.context.network)

    @cached_property
    def own(self) -> Names:
        """The names of the entries that stay."""
        return self.partition(self.initial.layout)

    @cached_property
    def others(self) -> Names:
        """The names of the entries that travel."""
        return frozenset(e.name for e in self.initial.layout.entries) - self.own

    def start(self) -> dict[str, Weights]:
        """The shared entries alone."""
        return {"global": self.initial.only(self.others)}

    def receive(self, site: Site, shared: Parts) -> None:
        """A newcomer's own entries are the initial ones, like everybody's were."""
        site.private.setdefault("own", self.initial.only(self.own))

    def whole(self, site: Site, shared: Parts) -> Weights:
        """The site's network: its own entries, and the shared ones as they came."""
        joined = self.initial.replaced(site.private["own"]).replaced(shared["global"])
        return site.localised("global", joined)

    def divide(self, site: Site, trained: Weights) -> Upload:
        """Keep what is the site's own, send the rest."""
        site.private["own"] = trained.only(self.own)
        return Upload().add("global", trained.only(self.others), weight=site.images)

    def local(self, site: Site, shared: Parts) -> Upload:
        """Train all of it together, as FedAvg does."""
        model = site.train(site.learner("global", self.whole(site, shared)))
        return self.divide(site, model.weights())

    def answers(self, site: Site, shared: Parts) -> dict[str, Weights]:
        """The site's network after the mean."""
        return {"personal": self.whole(site, shared)}


class OwnNorm(Partitioned):
    """What norm layers keep stays at the site, in part or whole."""

    def warnings(self) -> list[str]:
        """On a network whose norm layers keep nothing of the kind, this is FedAvg."""
        if self.own:
            return []
        network = self.context.network
        norm = f" with {network.norm} norm" if network.norm else ""
        return [
            f"the norm layers of {network.name}{norm} have nothing that could stay at a site, so "
            "this is FedAvg; set network.norm: batch"
        ]


class HeadSettings(MethodSettings):
    """head = none is FedAvg."""

    # U-Nets may want more than the last convolution, e.g. 'net\.model\.2\.' (MONAI's top block)
    head: str = "last"  # the last layer; or none; or a regular expression on entry names


class OwnHead(Partitioned):
    """The head stays at the site, the body is shared."""

    Settings = HeadSettings

    def check(self) -> None:
        """Refuse a head that is not one."""
        self.partition(self.initial.layout)

    def partition(self, layout: Layout) -> Names:
        """The head, by the setting."""
        return head_entries(layout, self.settings.head)
