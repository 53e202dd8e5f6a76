"""SoftPull (FedSM, Eq. 11): a specialist a site, pulled towards the mean of all specialists.

    lambda w_k + (1 - lambda)/(K - 1) * sum_{j != k} w_j  =  lambda' w_k + (1 - lambda') mean(w)

with lambda' = (K lambda - 1)/(K - 1). The right side is what happens here: the server needs only
the plain mean, the site finishes the pull, and may therefore have a lambda' of its own. K is the
number of sites in the mean: one responder pulls towards itself, which is no pull; a site that was
away is not in the mean of the others, and takes w_k with lambda itself.

lambda' = 0 is the plain average of the sites, lambda' = 1 is local training. Beyond the paper it
can be found instead of given (`lambda: auto-linesearch`, `lambda: auto-shrinkage`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log2
from typing import Any, Literal, get_args

import torch
from pydantic import Field, field_validator
from torch import Tensor

from konsil.errors import ConfigError
from konsil.ingredients.context import (
    Context,
    Means,
    MethodSettings,
    Shared,
    TrainedNetwork,
    Upload,
)
from konsil.ingredients.optimizers import OptimizerPolicy
from konsil.ingredients.piece import Personal, Piece
from konsil.ingredients.server_optimizer import ServerOptimizer, trainable_part
from konsil.ingredients.site import Site
from konsil.weights import Layout, Weights, mix

Automatic = Literal["auto", "auto-linesearch", "auto-shrinkage"]
Lambda = float | Automatic | dict[str, float]  # one for all, found, or one a site
CANDIDATES = (0.0, 0.16, 0.4, 0.64, 0.88, 1.0)  # of lambda': the papers' lambdas with six sites
SMOOTHING = 0.7  # of lambda' over rounds: how much of the old one stays
Guard = Literal["one-se", "cross-fit", "none"]
BLOCKS = 10  # of neighbouring images, whose scatter tells how sure a difference of losses is

SHRINKAGE = "softpull.shrinkage"  # [|D_k|, p_k |D_k|^2] of a site (`unit`); means at the server
SHRINKAGE_LAYOUT = Layout.build([("sizes", (2,), "trainable", "body")])
CORRELATION = "softpull.correlation"  # rho, a note for every site
IN_THE_MEAN = "softpull.answered"  # a note for every site: whose specialists the mean is of
VELOCITY = "personal.velocity"  # how far the mean went in the last round; from the server alone


class SoftPullSettings(MethodSettings):
    """lambda = 1/K with equal sites is the plain average, lambda = 1 is local training."""

    # one number for all sites, {site: number}, or found by each site: auto (= auto-linesearch),
    # auto-shrinkage
    lambda_: Lambda = Field(0.7, alias="lambda")
    lambda_guard: Guard = "one-se"  # of auto-linesearch
    allow_extrapolation: bool = False  # lambda outside [1/K, 1], as one row of Table 7 has it

    @field_validator("lambda_", mode="before")
    @classmethod
    def _number_or_rule(cls, given: Any) -> Any:
        """In one sentence what it may be, instead of one for every type that it is not."""
        numbers = given.values() if isinstance(given, dict) else [given]
        if given in get_args(Automatic) or all(isinstance(n, int | float) for n in numbers):
            return given
        names = ", ".join(get_args(Automatic))
        raise ValueError(f"must be a number, {names}, or a number for each site")


def lambda_prime(lambda_: float, sites: int) -> float:
    """A site's share of itself against the plain mean (Eq. 11, rewritten)."""
    return 1.0 if sites == 1 else (sites * lambda_ - 1) / (sites - 1)


def softpull(share: float, own: Weights, mean: Weights) -> Weights:
    """lambda' w_k + (1 - lambda') mean(w); a lambda' outside [0, 1] was asked for by name.

    lambda' = 1 is local training, to the bit: nothing of the mean, not even its counters.
    """
    return own if share == 1 else mix([(share, own), (1 - share, mean)], extrapolate=True)


def answered(shared: Shared, context: Context) -> tuple[str, ...]:
    """The sites in the mean that has come: all, unless the server says otherwise."""
    return tuple(shared.notes.get(IN_THE_MEAN, context.sites))


class Share(ABC):
    """Where lambda' comes from: a site's share of itself, asked once a round."""

    @property
    def models_tried(self) -> int:
        """On the validation images, a round."""
        return 0

    def alone(self, site: str) -> bool:
        """Whether this site never takes anything of the others'."""
        return False

    @abstractmethod
    def __call__(self, site: Site, own: Weights, mean: Weights, shared: Shared) -> float:
        """lambda' of this site now."""


class SoftPull(Personal):
    """Specialists that train alone and are pulled towards their mean after every round."""

    def __init__(
        self,
        share: Share,
        optimizer: OptimizerPolicy = "persist",
        *,
        server: ServerOptimizer | None = None,
    ) -> None:
        self.share, self.optimizer, self.server = share, optimizer, server

    @property
    def momentum(self) -> float:
        """The experiment's (`server.momentum`), unless an optimiser of its own has the mean."""
        return 0.0 if self.server else self.context.momentum

    def networks(self) -> dict[str, TrainedNetwork]:
        return {"personal": TrainedNetwork(self.context.network, self.optimizer)}

    def work(self) -> float:
        """One more forward and backward a batch, and what finding lambda' takes."""
        return 1.0 + self.context.validation_work(self.share.models_tried)

    def start(self) -> dict[str, Weights]:
        """Line 2 of Algorithm 1: the specialists begin like the global model."""
        model = self.context.initial(self.context.network)
        parts = {"personal": model}
        if self.server:
            parts |= self.server.start("personal", model)
        if self.momentum:
            parts[VELOCITY] = Weights.zeros(trainable_part(model).layout)
        return parts

    def uploads(self, layouts: dict[str, Layout]) -> None:
        """The speed of their mean comes from the server alone."""
        layouts.pop(VELOCITY, None)

    def receive(self, site: Site, shared: Shared) -> None:
        """Line 16, finished at the site: towards the plain mean of the specialists.

        A newcomer begins with that mean. A site that is alone takes nothing of the others', ever.
        """
        mean, own = shared["personal"], site.private.get("personal")
        if self.share.alone(site.name):
            late = own is None and site.round > 1  # in round 1 the mean is the initial model
            first = self.context.initial(self.context.network) if late else mean
            site.private.setdefault("personal", first)
            return
        if own is not None:
            mean = softpull(self.share(site, own, mean, shared), own, mean)
        site.private["personal"] = self.ahead(mean, shared)

    def ahead(self, pulled: Weights, shared: Shared) -> Weights:
        """Momentum: all specialists go on as far as their mean just went, beta times.

        Their differences stay. It is Nesterov's: the mean of what sites begin with is
        mean_t + beta (mean_t - mean_{t-1}).
        """
        if not self.momentum:
            return pulled
        stepped = pulled.clone()
        stepped.trainable.add_(shared[VELOCITY].flat, alpha=self.momentum)
        return stepped

    def end(self, upload: Upload) -> None:
        """Line 13: the specialist stays, and a copy goes into the plain mean."""
        super().end(upload)
        upload.add("personal", self.site.private["personal"], weight=1)

    def merge(self, shared: Shared, means: Means, new: Shared) -> None:
        """The mean is as it came; who is in it is noted where not all are."""
        new.notes.pop(IN_THE_MEAN, None)
        if means.sites != self.context.sites:
            new.notes[IN_THE_MEAN] = list(means.sites)
        if self.server:
            self.server.merge("personal", shared, means, new)
        if self.momentum:
            way = means["personal"] - shared["personal"]
            new[VELOCITY] = trainable_part(way)

    def measures(self, site: Site, shared: Shared) -> dict[str, float]:
        """The lambda' in force, where it is not the same for ever."""
        found = site.notes.get("lambda_prime")
        return {} if found is None else {"lambda_prime": found}


def softpull_pieces(
    settings: SoftPullSettings,
    context: Context,
    optimizer: OptimizerPolicy,
    server: ServerOptimizer | None = None,
) -> list[Piece]:
    """SoftPull with the lambda that the settings name, and what finding it needs."""
    share = _share(settings, context)
    further = [Correlation()] if isinstance(share, ByShrinkage) else []
    return [*further, SoftPull(share, optimizer, server=server)]


def _share(settings: SoftPullSettings, context: Context) -> Share:
    given, sites = settings.lambda_, context.sites
    if len(sites) == 1:
        return Given(dict.fromkeys(sites, 1.0))
    if given == "auto-shrinkage":
        return ByShrinkage()
    if isinstance(given, str):
        return ByLineSearch(settings.lambda_guard)
    by_site = given if isinstance(given, dict) else dict.fromkeys(sites, given)
    _check_given(by_site, sites, settings.allow_extrapolation)
    return Given(by_site, settings.allow_extrapolation)


def _check_given(by_site: dict[str, float], sites: tuple[str, ...], extrapolate: bool) -> None:
    if set(by_site) != set(sites):
        wrong = sorted(set(by_site) ^ set(sites))
        raise ConfigError(
            f"lambda: one number, auto, or a number for each site ({', '.join(sites)}); "
            f"missing or unknown: {', '.join(wrong)}"
        )
    for site, lambda_ in by_site.items():
        smallest = f"{1 / len(sites):.4g}"  # as one writes 1/K: 0.3333 is meant to be a third
        if not min(1 / len(sites), float(smallest)) <= lambda_ <= 1 and not extrapolate:
            raise ConfigError(
                f"lambda = {lambda_} (site {site}): with {len(sites)} sites SoftPull is defined on "
                f"[{smallest}, 1]; set allow_extrapolation: true to leave it on purpose"
            )


@dataclass(frozen=True)
class Given(Share):
    """The paper's: fixed. Here each site may have its own."""

    lambdas: dict[str, float]
    extrapolate: bool = False

    def alone(self, site: str) -> bool:
        return self.lambdas[site] == 1

    def __call__(self, site: Site, own: Weights, mean: Weights, shared: Shared) -> float:
        return self.towards(site.name, answered(shared, site.context))

    def towards(self, site: str, others: tuple[str, ...]) -> float:
        """lambda' of Eq. 11 for the mean of these sites, of which it need not be one."""
        if site not in others:
            return self.lambdas[site]
        share = lambda_prime(self.lambdas[site], len(others))
        return share if self.extrapolate else max(0.0, share)  # 1/K, of fewer: their plain mean


@dataclass(frozen=True)
class ByLineSearch(Share):
    """Each site takes the lambda' with the smallest loss on its validation images.

    Forward passes only, and not a byte of traffic. The choice is smoothed over rounds, from 0, the
    plain mean. A small validation split would be over-fitted (six candidates, a dozen images, in
    every round), so the choice is guarded. `one-se`: the smallest lambda' that is not clearly worse
    than the best, so that a site leaves the others only as far as its images can tell. `cross-fit`:
    each half of the images chooses for the other half, and if images that did not choose are not
    better off, lambda' stays where it is.
    """

    guard: Guard

    @property
    def models_tried(self) -> int:
        """Every candidate, and for a choice that must prove itself the present lambda'."""
        return len(CANDIDATES) + (self.guard == "cross-fit")

    def __call__(self, site: Site, own: Weights, mean: Weights, shared: Shared) -> float:
        """Search, check, smooth."""
        now = site.notes.get("lambda_prime", 0.0)

        def losses(share: float) -> Tensor:
            pulled = softpull(share, own, mean)
            return site.validation_losses(site.localised("personal", pulled))  # as it would run

        wanted = search(losses, now, self.guard)
        site.notes["lambda_prime"] = SMOOTHING * now + (1 - SMOOTHING) * wanted
        return float(site.notes["lambda_prime"])


def search(losses: Callable[[float], Tensor], now: float, guard: Guard) -> float:
    """The candidate with the smallest mean loss, unless the guard has another, or `now`."""
    table = torch.stack([losses(share) for share in CANDIDATES])  # [candidates, images]
    best = CANDIDATES[nearest_minimum(table.mean(dim=1), now)]
    if guard == "none":
        return best
    if table.shape[1] < 2:
        return now  # one image alone proves nothing
    if guard == "one-se":
        return CANDIDATES[least_within_one_error(table)]
    return best if crossfitted_loss(table, now) < float(losses(now).mean()) else now


def least_within_one_error(table: Tensor) -> int:
    """The first candidate whose loss is within one standard error of the smallest (Breiman)."""
    behind = table - table[table.mean(dim=1).argmin()]
    near = [float(row.mean()) <= standard_error(row) for row in behind]
    return near.index(True)  # the best one is near itself


def standard_error(differences: Tensor) -> float:
    """Of the mean over images, from means of blocks of neighbours: those may be one patient's."""
    blocks = differences.double().tensor_split(min(len(differences), BLOCKS))
    means = torch.stack([block.mean() for block in blocks])
    return float(means.std() / len(means) ** 0.5)


def crossfitted_loss(table: Tensor, now: float) -> float:
    """The mean loss if each half of the images is answered by the other half's choice.

    Halves are the first and the last images: slices of one patient are neighbours, and must not
    vouch for one another.
    """
    images = table.shape[1]
    halves = table[:, : images // 2], table[:, images // 2 :]
    chosen = [nearest_minimum(half.mean(dim=1), now) for half in halves]
    return float(halves[0][chosen[1]].sum() + halves[1][chosen[0]].sum()) / images


def nearest_minimum(losses: Tensor, now: float) -> int:
    """The place of the smallest loss; of equals, the candidate nearest to where lambda' is."""
    return min(range(len(losses)), key=lambda i: (float(losses[i]), abs(CANDIDATES[i] - now)))


class ByShrinkage(Share):
    """lambda' = P / (P + E): SoftPull as the best linear predictor (docs/methods.md).

    A site's update is what all share, what is its own (variance P), and noise (variance E). Two
    numbers tell them apart: rho, the mean cosine between different sites' updates, and the
    reliability r of one site's update, by Spearman and Brown from the cosine of its two halves:
    lambda'_k = (r_k - rho)/(1 - rho). `Correlation` finds both.
    """

    def __call__(self, site: Site, own: Weights, mean: Weights, shared: Shared) -> float:
        """From this site's reliability and everybody's correlation, smoothed."""
        rho = max(0.0, shared.notes.get(CORRELATION, 0.0))  # a share of variance: below 0 is noise
        found = shrunk(site.notes["reliability"], rho)
        old = site.notes.get("lambda_prime", found)
        site.notes["lambda_prime"] = SMOOTHING * old + (1 - SMOOTHING) * found
        return float(site.notes["lambda_prime"])


class Correlation(Piece):
    """How reliable a site's update of the global model is, and how alike the sites' are.

    Both are read off the global model, which all sites begin alike: no further pass, and beside
    the mean of the global model two numbers a site.
    """

    def uploads(self, layouts: dict[str, Layout]) -> None:
        layouts[SHRINKAGE] = SHRINKAGE_LAYOUT

    def begin(self, site: Site, shared: Shared) -> None:
        self.site = site
        epoch = ceil(site.images / self.context.training.batch_size)
        self.marks = (0, epoch // 2, epoch)  # of the first epoch: later ones see the images again
        self.seen, self.at = 0, dict[int, Tensor]()

    def on_batch(self, x: Tensor, y: Tensor) -> None:
        """Note where the global model is before, in the middle of, and after the first epoch."""
        if self.seen in self.marks:
            self.at[self.seen] = self.site.running("global").parameters.clone()
        self.seen += 1

    def end(self, upload: Upload) -> None:
        """Reliability for this site, two sizes for the server."""
        now = self.site.running("global").parameters
        first, middle, last = (self.at.get(mark, now) for mark in self.marks)
        self.site.notes["reliability"] = reliability(middle - first, last - middle)
        update = (now - first).double() / unit(len(now))
        square = float(update.square().sum())
        sizes = Weights.zeros(SHRINKAGE_LAYOUT)
        sizes.flat[0], sizes.flat[1] = square**0.5, self.context.share(self.site.name) * square
        upload.add(SHRINKAGE, sizes, weight=self.site.images)

    def merge(self, shared: Shared, means: Means, new: Shared) -> None:
        """rho of the round, from means alone: the cosine of different sites' updates."""
        size, own = (float(v) for v in means[SHRINKAGE].flat)
        if len(means.sites) < 2:
            return  # nobody to be compared with: what was known stays
        own /= sum(self.context.share(site) for site in means.sites)  # p_k of those who answered
        way = means["global"] - shared["global"]
        update = way.norm() / unit(way.layout.trainable)
        between = size**2 - own  # sum over j != k of p_j p_k ||D_j|| ||D_k||
        rho = (update**2 - own) / between if between > 0 else 1.0
        new.notes[CORRELATION] = float(torch.tensor(rho))  # float32, like all that is shared


def unit(values: int) -> float:
    """What updates are measured in: near the root of the number of values, a power of two.

    So that a large network's numbers are no larger than a small one's (`server.max_rms`), and
    nothing is rounded.
    """
    return 2.0 ** round(log2(values) / 2)


def shrunk(r: float, rho: float) -> float:
    """(r - rho)/(1 - rho), between the plain average and local training."""
    return 0.0 if rho >= 1 else min(1.0, max(0.0, (r - rho) / (1 - rho)))


def reliability(first: Tensor, second: Tensor) -> float:
    """Spearman and Brown: how alike whole updates would be, from the cosine of two halves."""
    size = float(first.double().norm() * second.double().norm())
    cosine = float(torch.dot(first.double(), second.double())) / size if size else 0.0
    return 2 * cosine / (1 + cosine) if cosine > 0 else 0.0
