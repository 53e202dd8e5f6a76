"""FedSM (Xu et al., CVPR 2022): global model, one specialist a site, and a selector.

`local` is lines 4-13 of Algorithm 1. Lines 15-16 are three means; SoftPull (Eq. 11) is finished
by the site: `konsil/ingredients/softpull.py`, which other personalisers can replace (Table 6).
How the selector learns, and why that is delicate, is `konsil/methods/selector.py`; Algorithm 2
(inference) is `supermodel/`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from konsil.errors import ConfigError
from konsil.ingredients.context import (
    Context,
    Means,
    MethodSettings,
    TrainedNetwork,
    Upload,
    broadcast,
)
from konsil.ingredients.learner import OptimizerPolicy
from konsil.ingredients.method import Method, method
from konsil.ingredients.personaliser import Personaliser, make_personaliser
from konsil.ingredients.site import Site
from konsil.ingredients.softpull import Lambda, SoftPull, checked_lambda
from konsil.methods.selector import ClosedForm, PerBatch, ReferenceFullBatch, ServerAdam, site_label
from konsil.networks import NetworkSpec
from konsil.weights import Layout, Parts, Weights

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

    # one number for all sites, {site: number}, or found by each site: auto (= auto-linesearch),
    # auto-shrinkage
    lambda_: Lambda = Field(0.7, alias="lambda")
    lambda_guard: Literal["cross-fit", "none"] = "cross-fit"  # of auto-linesearch
    allow_extrapolation: bool = False  # lambda outside [1/K, 1], as one row of Table 7 has it
    # Table 6: softpull, or ft, apfl, perfedavg, pfedme, ditto; {name: apfl, alpha: 0.5} with
    # settings. They have no lambda of SoftPull's.
    personaliser: dict[str, Any] = Field({"name": "softpull"}, description="softpull")
    selector: Literal["small", "vgg11", "vgg11_pooled", "features"] | None = Field(
        None, description="small, or features with closed_form"
    )
    selector_lr: float | None = Field(None, gt=0, description="the experiment's lr")  # eta_s
    selector_optimizer: SelectorOptimizer = "average_moments"
    global_optimizer_state: OptimizerPolicy = "persist"
    personal_optimizer_state: OptimizerPolicy = "persist"

    @field_validator("lambda_", mode="before")
    @classmethod
    def _number_or_rule(cls, given: Any) -> Any:
        return checked_lambda(given)

    @field_validator("personaliser", mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given


@method("fedsm", paper="Xu et al., CVPR 2022, Algorithms 1-2")
class FedSM(Method):
    """A super model: FedAvg's model, SoftPull's specialists, and a selector of sites."""

    Settings = FedSMSettings
    private_roles = ("personal",)
    best_by = (("global", "global"), ("selector", "selector_accuracy"))
    super_model = True

    def check(self) -> None:
        """Settings that cannot be meant, before round 1."""
        self.personaliser = self._personaliser()
        if self.closed_form and self.settings.selector not in (None, "features"):
            raise ConfigError(
                f"selector = {self.settings.selector}: closed_form solves for the "
                "linear layer on fixed features; leave selector out, or choose features"
            )

    def _personaliser(self) -> Personaliser:
        config = self.settings.personaliser
        if config == {"name": "softpull"}:
            return SoftPull(self.settings, self.personaliser_context())
        if config.get("name") == "softpull":
            raise ConfigError(
                f"personaliser = {config}: SoftPull's settings (lambda, ...) are FedSM's own; "
                "write them beside personaliser"
            )
        return make_personaliser(config, self.personaliser_context(), "personaliser")

    def personaliser_context(self) -> Context:
        """What the personaliser knows of the experiment."""
        return self.context

    def warnings(self) -> list[str]:
        """A selector that will not be trained by the end is worth a line."""
        return self.personaliser.warnings() + self._ignored() + self._selector_warnings()

    def _ignored(self) -> list[str]:
        default = FedSMSettings.model_fields["lambda_"].default
        if isinstance(self.personaliser, SoftPull) or self.settings.lambda_ == default:
            return []
        return [f"lambda is SoftPull's: {self.settings.personaliser['name']} does not know it"]

    def _selector_warnings(self) -> list[str]:
        optimizer = self.settings.selector_optimizer
        if "known_to_fail" in optimizer:
            return [f"selector_optimizer {optimizer}: Algorithm 1 to the letter trains no selector"]
        if not self.closed_form and self.context.rounds < FEW_ROUNDS:
            return [
                f"selector_optimizer {optimizer} can take a hundred rounds to tell sites apart; "
                "closed_form takes one (docs/methods.md)"
            ]
        return []

    def work(self) -> float:
        """The global model, the specialist; the selector's own network is not counted."""
        return 1 + self.personaliser.work()

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

    def networks(self) -> dict[str, TrainedNetwork]:
        """Three, each with its own optimiser; no gradient crosses."""
        model = TrainedNetwork(self.context.network, self.settings.global_optimizer_state)
        lr = self.settings.selector_lr
        selector = TrainedNetwork(self.selector_network(), self.rule.policy, lr)
        return {"global": model, **self.personaliser.networks(), "selector": selector}

    def selector_network(self) -> NetworkSpec:
        """It sees the raw image: brightness tells sites apart."""
        network = self.context.network
        return NetworkSpec(
            name=self.settings.selector or ("features" if self.closed_form else "small"),
            in_channels=network.in_channels,
            outputs=self.outputs(),
            image_size=network.image_size,
        )

    def outputs(self) -> int:
        """Of the selector: one a site (Eq. 2 has no label for the global model)."""
        return len(self.context.sites)

    def start(self) -> dict[str, Weights]:
        """Line 1: every model of a kind begins alike."""
        model = self.context.initial(self.context.network)
        selector = self.context.initial(self.selector_network())
        parts = {"global": model, **self.personaliser.start(), "selector": selector}
        self.rule.start(parts)
        return parts

    def uploads(self, shared: Parts) -> dict[str, Layout]:
        """The two models, and what the selector's rule sends in the selector's place."""
        layouts = {name: part.layout for name, part in broadcast(shared).items()}
        self.personaliser.uploads(layouts)
        self.rule.uploads(layouts)
        return layouts

    def receive(self, site: Site, shared: Parts) -> None:
        """Line 16: SoftPull, finished at the site."""
        self.personaliser.receive(site, shared)

    def local(self, site: Site, shared: Parts) -> Upload:
        """Lines 5-13 at one site: three steps on every batch."""
        w_g = site.learner("global", shared["global"])
        w_s = site.learner("selector", shared["selector"])
        personal, rule = self.personaliser, self.rule
        personal.begin(site, shared)
        for x, y in site.batches():
            personal.see(x, y)
            w_g.step(site.task.loss(w_g(x), y))
            rule.see(w_s, x, site_label(site, x))
        upload = Upload().add("global", w_g.weights(), weight=site.images)
        personal.end(upload)
        rule.send(upload, w_s, site.images, lambda: self.examples(site))
        return upload

    def examples(self, site: Site) -> Iterator[tuple[Tensor, Tensor]]:
        """All images that the selector learns from, with their labels: the site's place."""
        return ((x, site_label(site, x)) for x, _ in site.training_images())

    def classes(self, site: str) -> Collection[int]:
        """The labels that a site's images can have."""
        return [self.context.sites.index(site)]

    def wrong_upload(self, site: str, upload: Upload) -> str:
        """What the selector's rule knows of an honest upload."""
        return self.rule.wrong(upload, self.classes(site))

    def merge(self, shared: dict[str, Weights], means: Means) -> dict[str, Weights]:
        """Line 15: the means, and of the selector what its rule makes of them."""
        new = dict(means)
        self.personaliser.merge(shared, means, new)
        self.rule.merge(shared, new)
        return {**shared, **new}

    def answers(self, site: Site, shared: Parts) -> dict[str, Weights]:
        """The global model, and the specialist."""
        personal = self.personaliser.opinion(site, shared)
        return {"global": shared["global"]} | ({"personal": personal} if personal else {})

    def measures(self, site: Site, shared: Parts) -> dict[str, float]:
        """How many of the site's validation images the selector assigns to it."""
        w_s = site.eval_network("selector", shared["selector"])
        with torch.no_grad():
            right = [(w_s(x).argmax(1) == site.index).sum() for x, _ in site.validation_batches()]
        accuracy = float(sum(right)) / site.validation_images
        return {"selector_accuracy": accuracy, **self.personaliser.measures(site)}
