"""FedSM (Xu et al., CVPR 2022): global model, one specialist a site, and a selector.

`local` is lines 4-13 of Algorithm 1. Lines 15-16 are three means; SoftPull (Eq. 11) is finished
by the site in `receive`, because

    lambda w_k + (1 - lambda)/(K - 1) * sum_{j != k} w_j  =  lambda' w_k + (1 - lambda') mean(w)

with lambda' = (K lambda - 1)/(K - 1): the server needs only the plain mean. One responder pulls
towards itself, which is no pull (but for rounding); an absent site pulls towards the latest mean
when it is back. How the selector learns, and why that is delicate, is `konsil/selector.py`;
Algorithm 2 (inference) is `supermodel/`.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from konsil.errors import ConfigError
from konsil.learner import OptimizerPolicy
from konsil.method import Means, Method, MethodSettings, Trained, Upload, method
from konsil.networks import NetworkSpec
from konsil.selector import ClosedForm, PerBatch, ReferenceFullBatch, ServerAdam
from konsil.site import Site
from konsil.weights import Layout, Parts, Weights, mix

SelectorOptimizer = Literal[
    "average_moments",  # one step a batch; Adam's moments are averaged with the weights
    "server_adam",  # the sites send the mean gradient; the server takes one Adam step a round
    "closed_form",  # a linear discriminant on fixed features, solved exactly from means
    "reference_full_batch",  # the published code: one step a round on summed gradients
    "literal_persist_known_to_fail",  # Algorithm 1 to the letter: moments stay at the site ...
    "literal_reset_known_to_fail",  # ... or are forgotten; neither trains one-class sites
]
FEW_ROUNDS = 100  # below this, selectors trained by gradients have not been seen to converge


class FedSMSettings(MethodSettings):
    """lambda = 1/K with equal sites is the plain average, lambda = 1 is local training."""

    lambda_: float = Field(0.7, alias="lambda")
    allow_extrapolation: bool = False  # lambda outside [1/K, 1], as one row of Table 7 has it
    selector: Literal["small", "vgg11", "vgg11_pooled", "features"] | None = Field(
        None, description="small, or features with closed_form"
    )
    selector_lr: float | None = Field(None, gt=0, description="the experiment's lr")  # eta_s
    selector_optimizer: SelectorOptimizer = "average_moments"
    global_optimizer_state: OptimizerPolicy = "persist"
    personal_optimizer_state: OptimizerPolicy = "persist"


@method("fedsm", paper="Xu et al., CVPR 2022, Algorithms 1-2")
class FedSM(Method):
    """A super model: FedAvg's model, SoftPull's specialists, and a selector of sites."""

    Settings = FedSMSettings
    private_roles = ("personal",)
    best_by = (("global", "global"), ("selector", "selector_accuracy"))
    super_model = True

    def check(self) -> None:
        """lambda must lie between the plain average and local training."""
        sites, lambda_ = len(self.context.sites), self.settings.lambda_
        inside = 1 / sites <= lambda_ <= 1 or sites == 1
        if not inside and not self.settings.allow_extrapolation:
            raise ConfigError(
                f"methods.fedsm.lambda = {lambda_}: with {sites} sites SoftPull is defined on "
                f"[{1 / sites:.4g}, 1]; set allow_extrapolation: true to leave it on purpose"
            )
        if self.closed_form and self.settings.selector not in (None, "features"):
            raise ConfigError(
                f"methods.fedsm.selector = {self.settings.selector}: closed_form solves for the "
                "linear layer on fixed features; leave selector out, or choose features"
            )

    def warnings(self) -> list[str]:
        """A selector that will not be trained by the end is worth a line."""
        optimizer = self.settings.selector_optimizer
        if "known_to_fail" in optimizer:
            return [f"selector_optimizer {optimizer}: Algorithm 1 to the letter trains no selector"]
        if not self.closed_form and self.context.rounds < FEW_ROUNDS:
            return [
                f"selector_optimizer {optimizer} can take a hundred rounds to tell sites apart; "
                "closed_form takes one (docs/methods.md)"
            ]
        return []

    @property
    def closed_form(self) -> bool:
        """Whether the selector is solved for instead of trained."""
        return self.settings.selector_optimizer == "closed_form"

    @property
    def rule(self) -> PerBatch:
        """What sites and server do for the selector."""
        training = self.context.training
        rules: dict[str, PerBatch] = {
            "average_moments": PerBatch("average"),
            "server_adam": ServerAdam(self.settings.selector_lr or training.lr, training.betas),
            "closed_form": ClosedForm(),
            "reference_full_batch": ReferenceFullBatch(),
            "literal_persist_known_to_fail": PerBatch("persist"),
            "literal_reset_known_to_fail": PerBatch("reset"),
        }
        return rules[self.settings.selector_optimizer]

    @property
    def lambda_prime(self) -> float:
        """The site's share of itself against the plain mean (Eq. 11, rewritten)."""
        sites = len(self.context.sites)
        return 1.0 if sites == 1 else (sites * self.settings.lambda_ - 1) / (sites - 1)

    def networks(self) -> dict[str, Trained]:
        """Three, each with its own optimiser; no gradient crosses."""
        network, s = self.context.network, self.settings
        selector = Trained(self.selector_network(), self.rule.policy, s.selector_lr)
        return {
            "global": Trained(network, s.global_optimizer_state),
            "personal": Trained(network, s.personal_optimizer_state),
            "selector": selector,
        }

    def selector_network(self) -> NetworkSpec:
        """One output a site. It sees the raw image: brightness tells sites apart."""
        network = self.context.network
        return NetworkSpec(
            name=self.settings.selector or ("features" if self.closed_form else "small"),
            in_channels=network.in_channels,
            outputs=len(self.context.sites),
            image_size=network.image_size,
        )

    def start(self) -> dict[str, Weights]:
        """Line 1: every model of a kind begins alike."""
        model = self.context.initial(self.context.network)
        selector = self.context.initial(self.selector_network())
        parts = {"global": model, "personal": model, "selector": selector}
        self.rule.start(parts)
        return parts

    def uploads(self, shared: Parts) -> dict[str, Layout]:
        """The two models, and what the selector's rule sends in the selector's place."""
        layouts = super().uploads(shared)
        self.rule.uploads(layouts)
        return layouts

    def receive(self, site: Site, shared: Parts) -> None:
        """Line 16, SoftPull (Eq. 11): towards the plain mean of the specialists."""
        own = site.private.get("personal")
        site.private["personal"] = (
            shared["personal"] if own is None else self.softpull(own, shared["personal"])
        )

    def softpull(self, own: Weights, mean: Weights) -> Weights:
        """lambda' w_k + (1 - lambda') mean(w)."""
        return mix([(self.lambda_prime, own), (1 - self.lambda_prime, mean)])

    def local(self, site: Site, shared: Parts) -> Upload:
        """Lines 5-13 at one site: three steps on every batch."""
        w_g = site.learner("global", shared["global"])
        w_p = site.learner("personal", site.private["personal"])
        w_s = site.learner("selector", shared["selector"])
        rule = self.rule
        for x, y in site.batches():
            w_g.step(site.task.loss(w_g(x), y))
            w_p.step(site.task.loss(w_p(x), y))
            rule.see(w_s, x, site)
        site.private["personal"] = w_p.weights()
        upload = Upload()
        upload.add("global", w_g.weights(), weight=site.images)
        upload.add("personal", site.private["personal"], weight=1)
        rule.send(upload, w_s, site)
        return upload

    def merge(self, shared: dict[str, Weights], means: Means) -> dict[str, Weights]:
        """Line 15: the means, and of the selector what its rule makes of them."""
        new = dict(means)
        self.rule.merge(shared, new)
        return {**shared, **new}

    def opinions(self, site: Site, shared: Parts) -> dict[str, Weights]:
        """The global model, and the specialist after SoftPull."""
        return {"global": shared["global"], "personal": site.private["personal"]}

    def measures(self, site: Site, shared: Parts) -> dict[str, float]:
        """How many of the site's validation images the selector assigns to it."""
        w_s = site.judge("selector", shared["selector"])
        with torch.no_grad():
            right = [(w_s(x).argmax(1) == site.index).sum() for x, _ in site.validation_batches()]
        return {"selector_accuracy": float(sum(right)) / site.validation_images}
