"""What methods are put together from: a piece is one part of the model, from start to answer.

`Method.pieces` lists them, and that list is the whole composition: in every round each piece
begins, sees every batch in the order of the list, and ends; no piece calls another's hooks.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

from torch import Tensor

from konsil.ingredients.context import Context, Means, Shared, TrainedNetwork, Upload
from konsil.ingredients.learner import Learner
from konsil.ingredients.optimizers import OptimizerPolicy
from konsil.ingredients.server_optimizer import ServerMomentum, ServerOptimizer
from konsil.ingredients.site import Site
from konsil.weights import Layout, Weights

Names = frozenset[str]
Partition = Callable[[Layout], Names]  # which entries of a network
V = TypeVar("V")
Step = Callable[[Learner, Tensor, Tensor], None]  # a learner, its loss, where it began the round


class Piece:
    """One part of a method, and everything that happens to it. By default nothing does.

    It serves one site at a time, from `begin` to `end`, and remembers nothing beyond that: what
    lasts is in `site.private` and `site.notes`, at the server in the shared parts and notes. Other
    pieces' learners can be asked for in `on_batch` and `end` (`site.running`), not before.
    """

    shared_roles: tuple[str, ...] = ()  # answered by a shared part of that name
    private_roles: tuple[str, ...] = ()  # answered by what a site keeps
    best_by: tuple[tuple[str, str], ...] = ()  # shared part, the measure that chooses its best
    epochs: int | None = None  # of a round, in which it sees batches; None: training.local_epochs

    context: Context

    def bind(self, context: Context) -> None:
        """Tell it of the experiment; whoever does so first decides."""
        if not hasattr(self, "context"):
            self.context = context
            self.check()

    def check(self) -> None:
        """Refuse settings that do not fit the federation: a ConfigError, "lambda = 2: ..."."""

    def warnings(self) -> list[str]:
        """What a person should know before round 1."""
        return []

    def networks(self) -> dict[str, TrainedNetwork]:
        """The networks that a site trains for it, by the name `site.learner` takes."""
        return {}

    def work(self) -> float:
        """Local work in units of FedAvg's: forward and backward once a batch."""
        return 0.0

    def start(self) -> dict[str, Weights]:
        """Its shared parts before round 1; what begins with `server.` never travels."""
        return {}

    def uploads(self, layouts: dict[str, Layout]) -> None:
        """Change in place what an upload holds: at first each part that was sent."""

    def wrong_upload(self, site: str, upload: Upload) -> str:
        """Why no honest site sends this, whose form is right already; empty if one can."""
        return ""

    def receive(self, site: Site, shared: Shared) -> None:
        """What a site does with the means before anything else."""

    def begin(self, site: Site, shared: Shared) -> None:
        """Before the first batch of a round."""

    def on_batch(self, x: Tensor, y: Tensor) -> None:
        """One batch of the round."""

    def end(self, upload: Upload) -> None:
        """After the last batch: keep what is private, add what is shared."""

    def merge(self, shared: Shared, means: Means, new: Shared) -> None:
        """At the server, change in place what comes next: at first the mean of every part."""

    def answers(self, site: Site, shared: Shared) -> dict[str, Weights]:
        """The weights that answer for this site, by role."""
        return {}

    def measures(self, site: Site, shared: Shared) -> dict[str, float]:
        """Further validation measures of this site (means over its validation images)."""
        return {}


def plain_step(model: Learner, loss: Tensor, start: Tensor) -> None:
    """One step along the gradient of the loss, and nothing else."""
    model.step(loss)


class Averaged(Piece):
    """FedAvg's model: sites train it, w <- sum_k p_k w_k with p_k = n_k / n.

    optimizer   what becomes of the sites' optimiser between rounds
    server      an optimiser at the server, which takes the mean as a direction
    stays       entries that stay at the site; the others travel, and a site answers with both
    trains_own  whether entries that stay are trained together with the others
    step        what is done with a batch's loss
    """

    def __init__(
        self,
        part: str = "global",
        optimizer: OptimizerPolicy = "persist",
        *,
        server: ServerOptimizer | None = None,
        stays: Partition | None = None,
        trains_own: bool = True,
        step: Step = plain_step,
    ) -> None:
        self.part, self.optimizer, self.server = part, optimizer, server
        self.stays, self.trains_own, self.step = stays, trains_own, step
        if stays is None:
            self.shared_roles, self.best_by = (part,), ((part, part),)
        else:  # without a site's own entries the shared part is no network
            self.private_roles = ("personal",)

    def check(self) -> None:
        assert self.own is not None  # asking for them refuses a partition that is none
        if self.server is None and self.context.momentum:
            self.server = ServerMomentum(self.context.momentum)

    @cached_property
    def initial(self) -> Weights:
        """The whole network before round 1, alike for every site."""
        return self.context.initial(self.context.network)

    @cached_property
    def own(self) -> Names:
        """The names of the entries that stay."""
        return frozenset() if self.stays is None else self.stays(self.initial.layout)

    @cached_property
    def others(self) -> Names:
        """The names of the entries that travel."""
        return frozenset(e.name for e in self.initial.layout.entries) - self.own

    @property
    def kept(self) -> str:
        """What a site calls its own entries."""
        return f"{self.part}.own"

    def networks(self) -> dict[str, TrainedNetwork]:
        only = None if self.trains_own else self.others
        return {self.part: TrainedNetwork(self.context.network, self.optimizer, only=only)}

    def work(self) -> float:
        return 1.0

    def start(self) -> dict[str, Weights]:
        model = self.initial if self.stays is None else self.initial.only(self.others)
        moments = self.server.start(self.part, model) if self.server else {}
        return {self.part: model, **moments}

    def receive(self, site: Site, shared: Shared) -> None:
        """A newcomer's own entries are the initial ones, like everybody's were."""
        if self.stays is not None:
            site.private.setdefault(self.kept, self.initial.only(self.own))

    def model(self, site: Site, shared: Shared) -> Weights:
        """The site's network: the shared entries as they came, and its own."""
        if self.stays is None:
            return shared[self.part]
        joined = self.initial.replaced(site.private[self.kept]).replaced(shared[self.part])
        return site.localised(self.part, joined)

    def begin(self, site: Site, shared: Shared) -> None:
        self.site = site
        self.w = site.learner(self.part, self.model(site, shared))
        self.began = self.w.parameters.clone()

    def on_batch(self, x: Tensor, y: Tensor) -> None:
        self.step(self.w, self.site.task.loss(self.w(x), y), self.began)

    def end(self, upload: Upload) -> None:
        """Keep what is the site's own, send the rest."""
        trained = self.w.weights()
        if self.stays is not None:
            self.site.private[self.kept] = trained.only(self.own)
            trained = trained.only(self.others)
        upload.add(self.part, trained, weight=self.site.weight)

    def merge(self, shared: Shared, means: Means, new: Shared) -> None:
        if self.server:
            self.server.merge(self.part, shared, means, new)

    def answers(self, site: Site, shared: Shared) -> dict[str, Weights]:
        role = self.part if self.stays is None else "personal"
        return {role: self.model(site, shared)}


class AveragedStart(Averaged):
    """An averaged model from which each site makes one of its own in a few steps.

    Inside FedSM, where FedAvg's model is the global one, its part is called `personal` and the
    mean answers nothing.
    """

    def __init__(self, part: str) -> None:
        super().__init__(part)
        self.private_roles = ("personal",)
        if part == "personal":
            self.shared_roles, self.best_by = (), ()


class Personal(Piece):
    """A model that a site begins as the global one, trains beside it, and keeps."""

    private_roles = ("personal",)

    def networks(self) -> dict[str, TrainedNetwork]:
        return {"personal": TrainedNetwork(self.context.network)}

    def work(self) -> float:
        return 1.0 if self.epochs is None else self.epochs / self.context.training.local_epochs

    def receive(self, site: Site, shared: Shared) -> None:
        """A newcomer's begins as the global model."""
        site.private.setdefault("personal", shared["global"])

    def begin(self, site: Site, shared: Shared) -> None:
        self.site = site
        self.v = site.learner("personal", site.private["personal"])

    def on_batch(self, x: Tensor, y: Tensor) -> None:
        self.v.step(self.site.task.loss(self.v(x), y))

    def end(self, upload: Upload) -> None:
        self.site.private["personal"] = self.v.weights()

    def answers(self, site: Site, shared: Shared) -> dict[str, Weights]:
        return {"personal": site.private["personal"]}


def train(pieces: Sequence[Piece], site: Site, shared: Shared) -> Upload:
    """One round at one site: the one loop of all methods that are composed."""
    for piece in pieces:
        piece.begin(site, shared)
    usual = site.context.training.local_epochs
    epochs = [usual if piece.epochs is None else piece.epochs for piece in pieces]
    for epoch, x, y in site.epochs(max(epochs)):
        for piece, own in zip(pieces, epochs, strict=True):
            if epoch < own:
                piece.on_batch(x, y)
    upload = Upload()
    for piece in pieces:
        piece.end(upload)
    return upload


def merged(pieces: Sequence[Piece], shared: Shared, means: Means) -> Shared:
    """The server's step: the mean of every shared part, and what the pieces make of it."""
    new = shared.updated({name: mean for name, mean in means.items() if name in shared})
    for piece in pieces:
        piece.merge(shared, means, new)
    return new


def together(found: Iterable[Mapping[str, V]]) -> dict[str, V]:
    """What several pieces say, by name; of two with one name, the later."""
    return {name: value for said in found for name, value in said.items()}
