"""SoftPull (FedSM, Eq. 11): a specialist a site, pulled towards the mean of all specialists.

    lambda w_k + (1 - lambda)/(K - 1) * sum_{j != k} w_j  =  lambda' w_k + (1 - lambda') mean(w)

with lambda' = (K lambda - 1)/(K - 1). The right side is what happens here: the server needs only
the plain mean, the site finishes the pull, and may therefore have a lambda' of its own. One
responder pulls towards itself, which is no pull (but for rounding); an absent site pulls towards
the latest mean when it is back.

lambda' = 0 is the plain average of the sites, lambda' = 1 is local training. Beyond the paper it
can be found instead of given (`lambda: auto-linesearch`, `lambda: auto-shrinkage`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import ceil, log2
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from konsil.errors import ConfigError
from konsil.ingredients.context import Context, Means, MethodSettings, TrainedNetwork, Upload
from konsil.ingredients.learner import OptimizerPolicy
from konsil.ingredients.personaliser import Personaliser
from konsil.ingredients.site import Site
from konsil.weights import Layout, Parts, Weights, mix

Automatic = Literal["auto", "auto-linesearch", "auto-shrinkage"]
Lambda = float | Automatic | dict[str, float]  # one for all, found, or one a site
CANDIDATES = (0.0, 0.16, 0.4, 0.64, 0.88, 1.0)  # of lambda': the papers' lambdas with six sites
SMOOTHING = 0.7  # of lambda' over rounds: how much of the old one stays

SHRINKAGE = "softpull.shrinkage"  # [|D_k|, p_k |D_k|^2] of a site (`unit`); means at the server
CORRELATION = "softpull.correlation"  # rho, for every site
SHRINKAGE_LAYOUT = Layout.build([("sizes", (2,), "trainable", "body")])
CORRELATION_LAYOUT = Layout.build([("rho", (1,), "trainable", "body")])


class SoftPullSettings(MethodSettings):
    """What SoftPull needs of FedSM's settings."""

    lambda_: Lambda
    lambda_guard: Literal["cross-fit", "none"]
    allow_extrapolation: bool
    personal_optimizer_state: OptimizerPolicy


def checked_lambda(given: Any) -> Any:
    """What may be a lambda, in one sentence instead of one for every type that it is not."""
    numbers = given.values() if isinstance(given, dict) else [given]
    if given in get_args(Automatic) or all(isinstance(n, int | float) for n in numbers):
        return given
    names = ", ".join(get_args(Automatic))
    raise ValueError(f"must be a number, {names}, or a number for each site")


def lambda_prime(lambda_: float, sites: int) -> float:
    """A site's share of itself against the plain mean (Eq. 11, rewritten)."""
    return 1.0 if sites == 1 else (sites * lambda_ - 1) / (sites - 1)


def softpull(share: float, own: Weights, mean: Weights) -> Weights:
    """lambda' w_k + (1 - lambda') mean(w)."""
    return mix([(share, own), (1 - share, mean)])


class SoftPull(Personaliser):
    """Specialists that train alone and are pulled towards their mean after every round."""

    Settings = SoftPullSettings

    def check(self) -> None:
        """lambda must lie between the plain average and local training."""
        self.rule = rule_for(self.settings, self.context)

    def networks(self) -> dict[str, TrainedNetwork]:
        """One."""
        policy = self.settings.personal_optimizer_state
        return {"personal": TrainedNetwork(self.context.network, policy)}

    def work(self) -> float:
        """One more forward and backward a batch, and what finding lambda' takes."""
        return 1.0 + self.context.validation_work(self.rule.models_tried)

    def start(self) -> dict[str, Weights]:
        """Line 1 of Algorithm 1: the specialists begin like the global model."""
        return {self.part: self.context.initial(self.context.network)} | self.rule.start()

    def uploads(self, layouts: dict[str, Layout]) -> None:
        """The specialist, and what the rule for lambda' asks for."""
        self.rule.uploads(layouts)

    def receive(self, site: Site, shared: Parts) -> None:
        """Line 16: towards the plain mean of the specialists."""
        own, mean = site.private.get("personal"), shared[self.part]
        if own is None:  # its first round: nothing of its own yet
            site.private["personal"] = mean
            return
        share = self.rule.share(site, own, mean, shared)
        site.private["personal"] = softpull(share, own, mean)

    def begin(self, site: Site, shared: Parts) -> None:
        """Go on with the pulled specialist."""
        self.site = site
        self.w_p = site.learner("personal", site.private["personal"])
        self.rule.begin(site)

    def see(self, x: Tensor, y: Tensor) -> None:
        """Line 9: one step of the specialist."""
        self.rule.see(self.site)
        self.w_p.step(self.site.task.loss(self.w_p(x), y))

    def end(self, upload: Upload) -> None:
        """The specialist stays, and a copy goes into the plain mean."""
        self.site.private["personal"] = self.w_p.weights()
        upload.add(self.part, self.site.private["personal"], weight=1)
        self.rule.end(self.site, upload)

    def merge(self, shared: Parts, means: Means, new: dict[str, Weights]) -> None:
        """What the rule for lambda' makes of its means."""
        self.rule.merge(shared, means, new)

    def opinion(self, site: Site, shared: Parts) -> Weights:
        """The specialist after the pull."""
        return site.private["personal"]

    def measures(self, site: Site) -> dict[str, float]:
        """The lambda' in force, where it is not the same for ever."""
        found = site.notes.get("lambda_prime")
        return {} if found is None else {"lambda_prime": found}


class LambdaRule(ABC):
    """Where lambda' comes from. Most rules only need `share`."""

    models_tried: ClassVar[int] = 0  # on the validation images, a round

    @abstractmethod
    def share(self, site: Site, own: Weights, mean: Weights, shared: Parts) -> float:
        """lambda' of this site now."""

    def start(self) -> dict[str, Weights]:
        """Shared parts beside the specialists."""
        return {}

    def uploads(self, layouts: dict[str, Layout]) -> None:  # noqa: B027
        """What is uploaded beside the specialist."""

    def begin(self, site: Site) -> None:  # noqa: B027
        """Before the first batch."""

    def see(self, site: Site) -> None:  # noqa: B027
        """Before every batch."""

    def end(self, site: Site, upload: Upload) -> None:  # noqa: B027
        """After the last batch."""

    def merge(self, shared: Parts, means: Means, new: dict[str, Weights]) -> None:  # noqa: B027
        """At the server."""


def rule_for(settings: SoftPullSettings, context: Context) -> LambdaRule:
    """The rule that the settings name."""
    if len(context.sites) == 1:
        return Given(dict.fromkeys(context.sites, 1.0))
    if isinstance(settings.lambda_, str):
        if settings.lambda_ == "auto-shrinkage":
            return ByShrinkage(context)
        return ByLineSearch(guarded=settings.lambda_guard == "cross-fit")
    given = settings.lambda_
    by_site = given if isinstance(given, dict) else dict.fromkeys(context.sites, given)
    _check_given(by_site, context.sites, settings.allow_extrapolation)
    return Given({s: lambda_prime(by_site[s], len(context.sites)) for s in context.sites})


def _check_given(by_site: dict[str, float], sites: tuple[str, ...], extrapolate: bool) -> None:
    if set(by_site) != set(sites):
        wrong = sorted(set(by_site) ^ set(sites))
        raise ConfigError(
            f"lambda: one number, auto, or a number for each site ({', '.join(sites)}); "
            f"missing or unknown: {', '.join(wrong)}"
        )
    for site, lambda_ in by_site.items():
        if not 1 / len(sites) <= lambda_ <= 1 and not extrapolate:
            raise ConfigError(
                f"lambda = {lambda_} (site {site}): with {len(sites)} sites SoftPull is defined on "
                f"[{1 / len(sites):.4g}, 1]; set allow_extrapolation: true to leave it on purpose"
            )


class Given(LambdaRule):
    """The paper's: fixed. Here each site may have its own."""

    def __init__(self, shares: dict[str, float]) -> None:
        self.shares = shares

    def share(self, site: Site, own: Weights, mean: Weights, shared: Parts) -> float:
        """What was given for this site."""
        return self.shares[site.name]


class ByLineSearch(LambdaRule):
    """Each site takes the lambda' with the smallest loss on its validation images.

    Forward passes only, and not a byte of traffic. The choice is smoothed over rounds. A small
    validation split would be over-fitted (six candidates, a dozen images): so the choice must
    prove itself by cross-fitting. Each half of the images chooses a candidate for the other half,
    and if images that did not choose are not better off, lambda' stays where it is. It begins at
    0, the plain mean.
    """

    models_tried = len(CANDIDATES) + 1  # and the present lambda'

    def __init__(self, guarded: bool) -> None:
        self.guarded = guarded

    def share(self, site: Site, own: Weights, mean: Weights, shared: Parts) -> float:
        """Search, check, smooth."""
        now = site.notes.get("lambda_prime", 0.0)

        def losses(share: float) -> Tensor:
            pulled = softpull(share, own, mean)
            return site.validation_losses(site.localised("personal", pulled))  # as it would run

        wanted = search(losses, now, self.guarded)
        site.notes["lambda_prime"] = SMOOTHING * now + (1 - SMOOTHING) * wanted
        return float(site.notes["lambda_prime"])


def search(losses: Callable[[float], Tensor], now: float, guarded: bool) -> float:
    """The candidate with the smallest mean loss; `now` if images that did not choose it object."""
    table = torch.stack([losses(share) for share in CANDIDATES])  # [candidates, images]
    best = CANDIDATES[nearest_minimum(table.mean(dim=1), now)]
    if not guarded:
        return best
    return best if crossfitted_loss(table, now) < float(losses(now).mean()) else now


def crossfitted_loss(table: Tensor, now: float) -> float:
    """The mean loss if each half of the images is answered by the other half's choice.

    Halves are the first and the last images: slices of one patient are neighbours, and must not
    vouch for one another.
    """
    images = table.shape[1]
    if images < 2:
        return float("inf")
    halves = table[:, : images // 2], table[:, images // 2 :]
    chosen = [nearest_minimum(half.mean(dim=1), now) for half in halves]
    return float(halves[0][chosen[1]].sum() + halves[1][chosen[0]].sum()) / images


def nearest_minimum(losses: Tensor, now: float) -> int:
    """The place of the smallest loss; of equals, the candidate nearest to where lambda' is."""
    return min(range(len(losses)), key=lambda i: (float(losses[i]), abs(CANDIDATES[i] - now)))


class ByShrinkage(LambdaRule):
    """lambda' = P / (P + E): SoftPull as the best linear predictor (docs/methods.md).

    A site's update is what all share, what is its own (variance P), and noise (variance E). Two
    numbers tell them apart: rho, the mean cosine between different sites' updates, and the
    reliability r of one site's update, by Spearman and Brown from the cosine of its two halves:
    lambda'_k = (r_k - rho)/(1 - rho). Both are read off the global model, which all sites begin
    alike: no further pass, and beside the mean of the global model two numbers a site.
    """

    def __init__(self, context: Context) -> None:
        self.context = context

    def share(self, site: Site, own: Weights, mean: Weights, shared: Parts) -> float:
        """From this site's reliability and everybody's correlation, smoothed."""
        rho = max(0.0, float(shared[CORRELATION].flat[0]))  # a share of variance: below 0 is noise
        found = shrunk(site.notes["reliability"], rho)
        old = site.notes.get("lambda_prime", found)
        site.notes["lambda_prime"] = SMOOTHING * old + (1 - SMOOTHING) * found
        return float(site.notes["lambda_prime"])

    def start(self) -> dict[str, Weights]:
        """No correlation is known yet."""
        return {CORRELATION: Weights.zeros(CORRELATION_LAYOUT)}

    def uploads(self, layouts: dict[str, Layout]) -> None:
        """Two numbers; the correlation is the server's to work out."""
        del layouts[CORRELATION]
        layouts[SHRINKAGE] = SHRINKAGE_LAYOUT

    def begin(self, site: Site) -> None:
        """Note where the global model is."""
        epoch = ceil(site.images / self.context.training.batch_size)
        self.marks = (0, epoch // 2, epoch)  # of the first epoch: later ones see the images again
        self.seen, self.at = 0, dict[int, Tensor]()

    def see(self, site: Site) -> None:
        """Note where it is before, in the middle of, and after the first epoch."""
        if self.seen in self.marks:
            self.at[self.seen] = site.running("global").parameters.clone()
        self.seen += 1

    def end(self, site: Site, upload: Upload) -> None:
        """Reliability for this site, two sizes for the server."""
        now = site.running("global").parameters
        first, middle, last = (self.at.get(mark, now) for mark in self.marks)
        site.notes["reliability"] = reliability(middle - first, last - middle)
        update = (now - first).double() / unit(len(now))
        square = float(update.square().sum())
        sizes = Weights.zeros(SHRINKAGE_LAYOUT)
        sizes.flat[0], sizes.flat[1] = square**0.5, self.context.share(site.name) * square
        upload.add(SHRINKAGE, sizes, weight=site.images)

    def merge(self, shared: Parts, means: Means, new: dict[str, Weights]) -> None:
        """rho of the round, from means alone: the cosine of different sites' updates."""
        size, own = (float(v) for v in new.pop(SHRINKAGE).flat)
        if len(means.sites) < 2:
            return  # nobody to be compared with: what was known stays
        own /= sum(self.context.share(site) for site in means.sites)  # p_k of those who answered
        way = means["global"] - shared["global"]
        update = way.norm() / unit(way.layout.trainable)
        between = size**2 - own  # sum over j != k of p_j p_k ||D_j|| ||D_k||
        new[CORRELATION] = Weights.zeros(CORRELATION_LAYOUT)
        new[CORRELATION].flat[0] = (update**2 - own) / between if between > 0 else 1.0


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
