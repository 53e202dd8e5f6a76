"""One round's uploads at the server: checked by name, then summed in roster order."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import isfinite, sqrt
from pathlib import Path

from konsil.config import ServerConfig
from konsil.errors import StateError, UploadRefused
from konsil.federation.compression import unpack_parts
from konsil.federation.messages import (
    BadMessage,
    Reply,
    Request,
    RoundReply,
    RoundRequest,
    shown,
)
from konsil.federation.storage import read_parts, write_parts
from konsil.ingredients.context import Means, Upload
from konsil.weights import Layout, Parts, WeightedMean


@dataclass(frozen=True)
class Holding:
    """How many images a site has, by the plan: what it says of itself is held against that."""

    train: int
    val: int


class Intake:
    """One round's uploads: checked before they touch a sum, summed in roster order.

    Replies may come in any order; one that is early waits for those before it in the roster, so
    that the sums are the same bits whoever answered first. Few wait in memory, the others in
    `folder`: memory does not grow with the sites.
    """

    IN_MEMORY = 2

    def __init__(
        self,
        request: Request,
        roster: Mapping[str, Holding],
        layouts: dict[str, Layout],
        config: ServerConfig,
        keep: bool = False,
        folder: Path | None = None,
        wrong_upload: Callable[[str, Upload], str] | None = None,
    ) -> None:
        self.request, self.layouts, self.config = request, layouts, config
        self.roster = roster
        self.folder = folder
        self.wrong_upload = wrong_upload  # by what the method knows of an honest one
        self.keep = keep  # a method that needs single models: they stay
        self.individual: dict[str, Parts] = {}
        self.waiting = list(roster)  # not yet summed, in roster order
        self.arrived: dict[str, Reply | Path | None] = {}  # None: will not come, or is summed
        self.summed: list[str] = []
        self.said: dict[str, RoundReply] = {}
        self.missing: dict[str, str] = {}  # site -> why
        self._means = {name: WeightedMean(layout) for name, layout in layouts.items()}

    def accept(self, reply: Reply, sent: Parts | None = None) -> None:
        """Take one upload, or refuse it by name; a refused one changes nothing.

        `sent`: the parts that the site was sent, which a packed upload is a difference to.
        """
        try:
            parts = unpack_parts(reply.parts, self.layouts, sent or {}, self.config.coding)
            reply = replace(reply, parts=parts)
            self._check(reply)
        except BadMessage as wrong:
            raise UploadRefused(
                f"site {shown(reply.site)}, round {self.request.round}: refused: {wrong}"
            ) from None
        self.arrived[reply.site] = reply
        self._sum_in_order()
        if self.arrived[reply.site] is not None:
            self._make_room(reply)

    def absent(self, site: str, reason: str) -> None:
        """This site will not answer in this round."""
        self.missing[site] = reason
        self.arrived[site] = None
        self._sum_in_order()

    def means(self) -> Means:
        """The weighted mean of every part, over the sites that answered."""
        means = {name: mean.result() for name, mean in self._means.items() if mean.total > 0}
        return Means(means, self.request.round, tuple(self.summed), self.individual)

    def _sum_in_order(self) -> None:
        while self.waiting and self.waiting[0] in self.arrived:
            site = self.waiting.pop(0)
            reply = self._waiting_reply(site)
            if reply is None:
                continue
            said = reply.body_as(RoundReply)
            for name, mean in self._means.items():
                mean.add(reply.parts[name], said.weights[name])
            self.summed.append(site)
            self.said[site] = said
            if self.keep:
                self.individual[site] = reply.parts
            self.arrived[site] = None  # its weights are in the sums: let them go

    def _make_room(self, reply: Reply) -> None:
        """An early reply waits on the disk if others wait in memory already."""
        early = sum(isinstance(waiting, Reply) for waiting in self.arrived.values())
        if self.folder is None or early <= self.IN_MEMORY:
            return
        path = self.folder / f"{reply.site}.safetensors"
        with suppress(StateError):  # no room there: then it waits where it is
            write_parts(path, reply.header(), reply.parts)
            self.arrived[reply.site] = path

    def _waiting_reply(self, site: str) -> Reply | None:
        reply = self.arrived[site]
        if not isinstance(reply, Path):
            return reply
        header, parts = read_parts(reply)
        reply.unlink()
        return Reply.from_parts(header, parts)

    def _check(self, reply: Reply) -> None:
        if reply.site not in self.roster:
            raise BadMessage(f"not in the roster ({', '.join(sorted(self.roster))})")
        if reply.site in self.arrived:
            raise BadMessage("a second upload for this round")
        check_address(reply, self.request)
        check_parts(reply.parts, self.layouts, self.config.max_rms)
        holding, said = self.roster[reply.site], reply.body_as(RoundReply)
        images = holding.val if self.request.body_as(RoundRequest).validation else 0
        # in a mean a site counts once, or by the images it learned from
        said.check(images, self.layouts, max(holding.train, holding.val))
        upload = Upload(dict(reply.parts), dict(said.weights))
        if self.wrong_upload and (wrong := self.wrong_upload(reply.site, upload)):
            raise BadMessage(wrong)


def check_address(reply: Reply, request: Request) -> None:
    """Refuse a reply that is none to this request."""
    if reply.kind != request.kind:
        raise BadMessage(f"it answers {shown(reply.kind)}; this is {request.kind}")
    if (reply.job, reply.round) != (request.job, request.round):
        raise BadMessage(
            f"it is for {shown(reply.job)}, round {shown(reply.round)}; this is {request.job}, "
            f"round {request.round}"
        )
    if reply.plan != request.plan:
        raise BadMessage(f"plan {shown(reply.plan)}, not {request.plan}")


def check_parts(parts: Parts, layouts: Mapping[str, Layout], max_rms: float) -> None:
    """Refuse parts of other names or layouts, and values that cannot come of training."""
    if set(parts) != set(layouts):
        raise BadMessage(f"parts {shown(sorted(parts))}, expected {sorted(layouts)}")
    for name, part in parts.items():
        if part.layout.key != layouts[name].key:
            raise BadMessage(f"{name}: {_difference(part.layout, layouts[name])}")
        rms = float(part.flat.norm()) / sqrt(max(1, part.layout.size))
        if not isfinite(rms):
            raise BadMessage(f"{name}: values that are not finite")
        if rms > max_rms:
            raise BadMessage(f"{name}: root mean square {rms:.3g} is above {max_rms:.3g}")


def _difference(got: Layout, expected: Layout) -> str:
    """The first thing in which two layouts differ."""
    for ours, theirs in zip(expected.entries, got.entries, strict=False):
        if ours != theirs:
            found = f"{shown(theirs.name)} {shown(theirs.shape)}"
            return f"{found} where {ours.name} {ours.shape} belongs"
    return f"{len(got.entries)} entries where {len(expected.entries)} belong"
