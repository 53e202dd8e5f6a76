"""Which entries of a network stay at the site; only the others travel and are averaged.

In the language of mixing matrices (Theta <- W Theta), such a method has W = 1 p^T for the shared
entries and W = I for a site's own. `Averaged(stays=...)` takes one of these.
"""

import re

from konsil.errors import ConfigError
from konsil.ingredients.context import MethodSettings
from konsil.ingredients.piece import Averaged, Names, Partition
from konsil.networks import NetworkSpec, decoder_of
from konsil.weights import Layout


def norm_entries(layout: Layout) -> Names:
    """All of every norm layer: scale and shift, running statistics, counters."""
    return frozenset(e.name for e in layout.entries if e.group == "norm")


def norm_statistics(layout: Layout) -> Names:
    """The norm layers' running statistics and counters, without what is trained."""
    return frozenset(e.name for e in layout.entries if e.group == "norm" and e.kind != "trainable")


class AveragedButNorms(Averaged):
    """FedAvg's model whose norm layers, or what `stays` names of them, are the site's own."""

    def __init__(self, stays: Partition) -> None:
        super().__init__("global", stays=stays)

    def warnings(self) -> list[str]:
        """Where norm layers keep nothing of the kind, the method is FedAvg."""
        network = self.context.network
        norm = f" with {network.norm} norm" if network.norm else ""
        warning = (
            f"the norm layers of {network.name}{norm} have nothing that could stay at a site, so "
            "this is FedAvg; set network.norm: batch"
        )
        return [] if self.own else [warning]


class HeadSettings(MethodSettings):
    """head = none is FedAvg."""

    # decoder: of a U-Net, of other networks the last layer; level: its last level alone;
    # last: the last layer alone; none; or a regular expression on entry names
    head: str = "decoder"


class AveragedBody(Averaged):
    """FedAvg's model whose head is the site's own."""

    def __init__(self, head: str, trains_own: bool = True) -> None:
        super().__init__("global", stays=self._head, trains_own=trains_own)
        self.head = head

    def _head(self, layout: Layout) -> Names:
        return head_entries(layout, self.head, self.context.network)

    def warnings(self) -> list[str]:
        """How much of the network the head is: a small one makes the method FedAvg by name."""
        layout = self.initial.layout
        if not self.own:
            return []
        stays, all_ = layout.only(self.own).trainable, layout.trainable
        return [f"the head has {stays:,} of {all_:,} parameters; they stay at the site"]


def head_entries(layout: Layout, head: str, network: NetworkSpec) -> Names:
    """The head: a decoder or a part of it, nothing, or what a regular expression finds."""
    if head == "none":
        return frozenset()
    named = head in ("decoder", "level")
    if named and (modules := decoder_of(network, last_level=head == "level")):
        names = [e.name for e in layout.entries if e.name.rpartition(".")[0] in modules]
    else:
        names = [e.name for e in layout.entries if _in_head(e.name, e.group == "head", head)]
    found = {e.name for e in layout.entries if e.kind == "trainable"} & set(names)
    everything = sum(e.kind == "trainable" for e in layout.entries)
    if not 0 < len(found) < everything:
        amount = "everything, so that nothing is shared" if found else "nothing that is trained"
        raise ConfigError(f"head = {head!r}: it finds {amount}; {_examples(layout)}")
    return frozenset(names)


def _in_head(name: str, last: bool, head: str) -> bool:
    if head in ("decoder", "level", "last"):
        return last
    try:
        return re.search(head, name) is not None
    except re.error as error:
        raise ConfigError(
            f"head = {head!r}: decoder, level, last, none or a regular expression ({error})"
        ) from None


def _examples(layout: Layout) -> str:
    names = [e.name for e in layout.entries if e.kind == "trainable"]
    return f"the names go from {', '.join(names[:2])} to {', '.join(names[-2:])}"
