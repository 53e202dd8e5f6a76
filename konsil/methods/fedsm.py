"""FedSM (Xu et al., CVPR 2022): global model, one specialist a site, and a selector.

`local` is lines 4-13 of Algorithm 1. Lines 15-16 are three means; SoftPull (Eq. 11) is finished
by the site in `receive`, because

    lambda w_k + (1 - lambda)/(K - 1) * sum_{j != k} w_j  =  lambda' w_k + (1 - lambda') mean(w)

with lambda' = (K lambda - 1)/(K - 1): the server needs only the plain mean. One responder pulls
towards itself, which changes nothing; an absent site pulls towards the latest mean when it is
back. Algorithm 2 (inference) is `supermodel/`.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from konsil.errors import ConfigError
from konsil.learner import Learner, OptimizerPolicy
from konsil.method import SERVER_ONLY, Method, MethodSettings, Trained, Upload, method, moments_of
from konsil.networks import NetworkSpec
from konsil.site import Site
from konsil.weights import Layout, Parts, Weights, mix

SelectorOptimizer = Literal[
    "average_moments",  # one step a batch; Adam's moments are averaged with the weights
    "server_adam",  # the sites send the mean gradient; the server takes one Adam step a round
    "reference_full_batch",  # the published code: one step a round on summed gradients
    "literal_persist_known_to_fail",  # Algorithm 1 to the letter: moments stay at the site ...
    "literal_reset_known_to_fail",  # ... or are forgotten; neither trains one-class sites
]
SELECTOR_POLICY: dict[str, OptimizerPolicy] = {
    "average_moments": "average",
    "server_adam": "reset",
    "reference_full_batch": "average",
    "literal_persist_known_to_fail": "persist",
    "literal_reset_known_to_fail": "reset",
}
GRADIENT = "selector.gradient"
SERVER_MOMENTS = f"{SERVER_ONLY}{moments_of('selector')}"


class FedSMSettings(MethodSettings):
    """lambda = 1/K with equal sites is the plain average, lambda = 1 is local training."""

    lambda_: float = Field(0.7, alias="lambda")
    allow_extrapolation: bool = False  # lambda outside [1/K, 1], as one row of Table 7 has it
    selector: Literal["small", "vgg11", "vgg11_pooled"] = "small"
    selector_lr: float | None = Field(None, gt=0)  # eta_s; default: the experiment's rate
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

    def warnings(self) -> list[str]:
        """A selector that cannot be trained is worth a line."""
        if "known_to_fail" in self.settings.selector_optimizer:
            return ["selector_optimizer: the literal Algorithm 1 is known not to train a selector"]
        return []

    @property
    def lambda_prime(self) -> float:
        """The site's share of itself against the plain mean (Eq. 11, rewritten)."""
        sites = len(self.context.sites)
        return 1.0 if sites == 1 else (sites * self.settings.lambda_ - 1) / (sites - 1)

    def networks(self) -> dict[str, Trained]:
        """Three, each with its own optimiser; no gradient crosses."""
        network, s = self.context.network, self.settings
        selector = Trained(
            self.selector_network(), SELECTOR_POLICY[s.selector_optimizer], s.selector_lr
        )
        return {
            "global": Trained(network, s.global_optimizer_state),
            "personal": Trained(network, s.personal_optimizer_state),
            "selector": selector,
        }

    def selector_network(self) -> NetworkSpec:
        """One output a site. It sees the raw image: brightness tells sites apart."""
        network = self.context.network
        return NetworkSpec(
            name=self.settings.selector,
            in_channels=network.in_channels,
            outputs=len(self.context.sites),
            image_size=network.image_size,
        )

    def start(self) -> dict[str, Weights]:
        """Line 1: every model of a kind begins alike."""
        model = self.context.initial(self.context.network)
        selector = self.context.initial(self.selector_network())
        parts = {"global": model, "personal": model, "selector": selector}
        if self.settings.selector_optimizer == "server_adam":
            trained = self.networks()["selector"]
            layout = trained.moments_layout(self.context.training)
            parts[SERVER_MOMENTS] = Weights.zeros(layout)
        return parts

    def uploads(self, shared: Parts) -> dict[str, Layout]:
        """Every part, or with `server_adam` the selector's gradient in its place."""
        layouts = super().uploads(shared)
        if self.settings.selector_optimizer == "server_adam":
            layouts[GRADIENT] = layouts.pop("selector")
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
        for x, y in site.batches():
            w_g.step(site.task.loss(w_g(x), y))
            w_p.step(site.task.loss(w_p(x), y))
            self.teach(w_s, cross_entropy(w_s(x), site_label(site, x)), len(x))
        site.private["personal"] = w_p.weights()
        upload = Upload()
        upload.add("global", w_g.weights(), weight=site.images)
        upload.add("personal", site.private["personal"], weight=1)
        return self.send_selector(upload, w_s, site)

    def teach(self, w_s: Learner, loss: Tensor, images: int) -> None:
        """The selector's step on one batch (Eq. 2), or its part of a full-batch gradient."""
        if self.settings.selector_optimizer in ("server_adam", "reference_full_batch"):
            w_s.accumulate(loss * images)
        else:
            w_s.step(loss)

    def send_selector(self, upload: Upload, w_s: Learner, site: Site) -> Upload:
        """The selector's weights, or its gradient where the server takes the step."""
        if self.settings.selector_optimizer == "server_adam":
            mean_gradient = w_s.gradient() * (1 / site.images)
            return upload.add(GRADIENT, mean_gradient, weight=site.images)
        if self.settings.selector_optimizer == "reference_full_batch":
            w_s.apply()
        return upload.add("selector", w_s.weights(), weight=site.images)

    def merge(self, shared: dict[str, Weights], means: Parts) -> dict[str, Weights]:
        """Line 15: the means; with `server_adam` one Adam step on the selector's gradient."""
        if self.settings.selector_optimizer != "server_adam":
            return super().merge(shared, means)
        means = dict(means)
        gradient = means.pop(GRADIENT)
        lr = self.settings.selector_lr or self.context.training.lr
        selector, moments = adam_step(
            shared["selector"], gradient, shared[SERVER_MOMENTS], lr, self.context.training.betas
        )
        return {**shared, **means, "selector": selector, SERVER_MOMENTS: moments}

    def opinions(self, site: Site, shared: Parts) -> dict[str, Weights]:
        """The global model, and the specialist after SoftPull."""
        return {"global": shared["global"], "personal": site.private["personal"]}

    def measures(self, site: Site, shared: Parts) -> dict[str, float]:
        """How many of the site's validation images the selector assigns to it."""
        w_s = site.judge("selector", shared["selector"])
        with torch.no_grad():
            right = [(w_s(x).argmax(1) == site.index).sum() for x, _ in site.validation_batches()]
        return {"selector_accuracy": float(sum(right)) / site.validation_images}


def site_label(site: Site, x: Tensor) -> Tensor:
    """one_hot(k) of Eq. 2, as class indices: every image of a site carries the site's place."""
    return torch.full((len(x),), site.index, device=x.device)


def adam_step(
    weights: Weights, gradient: Weights, moments: Weights, lr: float, betas: tuple[float, float]
) -> tuple[Weights, Weights]:
    """One step of torch's Adam at the server; new weights and moments, the old ones untouched."""
    stepped, new = weights.clone(), moments.clone()
    values = stepped.moving
    values.grad = gradient.moving.clone()
    adam = torch.optim.Adam([values], lr=lr, betas=betas)
    adam.state[values] = {e.name: new[e.name] for e in new.layout.entries}
    adam.step()
    return stepped, new
