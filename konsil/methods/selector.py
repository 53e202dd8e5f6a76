"""How FedSM's selector learns which site an image comes from.

Every site sees one class only, its own. That is what makes this hard: whoever steps along its own
gradient learns to say its own name, and the mean of such selectors says the name of the largest
site. The rules below differ in what a site does with a batch, what it sends, and what the server
makes of the means; FedSM itself is the same with all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from konsil.ingredients.context import SERVER_ONLY, Upload, moments_of
from konsil.ingredients.learner import Learner, OptimizerPolicy, moments_layout
from konsil.ingredients.site import Site
from konsil.methods.discriminant import ImageMeans, linear_discriminant, means_layout, wrong_means
from konsil.networks import Network
from konsil.weights import Layout, Parts, Weights

# All images that a site's selector learns from, with their labels; made when asked for.
Examples = Callable[[], Iterable[tuple[Tensor, Tensor]]]

SELECTOR = "selector"
GRADIENT = "selector.gradient"
SERVER_MOMENTS = f"{SERVER_ONLY}{moments_of(SELECTOR)}"
IMAGE_MEANS = "selector.means"
SERVER_MEANS = f"{SERVER_ONLY}{IMAGE_MEANS}"


class PerBatch:
    """Algorithm 1: one step a batch, the mean of the weights.

    It trains only if the optimiser's moments are averaged with the weights (`average`); with
    moments that stay at the site or are forgotten it is known to fail.
    """

    def __init__(self, policy: OptimizerPolicy) -> None:
        self.policy = policy

    def start(self, parts: dict[str, Weights]) -> None:
        """Nothing beside the selector."""

    def uploads(self, layouts: dict[str, Layout]) -> None:
        """What is sent down comes back."""

    def see(self, w_s: Learner, x: Tensor, labels: Tensor) -> None:
        """One step along the cross-entropy of Eq. 2."""
        w_s.step(cross_entropy(w_s(x), labels))

    def send(self, upload: Upload, w_s: Learner, images: int, examples: Examples) -> None:
        """The selector, weighted by images."""
        upload.add(SELECTOR, w_s.weights(), weight=images)

    def wrong(self, upload: Upload, classes: Collection[int]) -> str:
        """Why no site with images of these classes sends this; empty if one can."""
        return ""

    def merge(self, shared: Parts, means: dict[str, Weights]) -> None:
        """The mean is the new selector."""


class ReferenceFullBatch(PerBatch):
    """The published code: one step a round, along the sum of all gradients of the epoch."""

    def __init__(self) -> None:
        super().__init__("average")

    def see(self, w_s: Learner, x: Tensor, labels: Tensor) -> None:
        """Add this batch's gradient, summed over its images."""
        w_s.accumulate(cross_entropy(w_s(x), labels, reduction="sum"))

    def send(self, upload: Upload, w_s: Learner, images: int, examples: Examples) -> None:
        """Take the one step, then send the selector."""
        w_s.apply()
        super().send(upload, w_s, images, examples)


class ServerAdam(ReferenceFullBatch):
    """Sites send the mean gradient; the server takes one Adam step a round.

    The same as full-batch Adam on pooled images, bit by bit of arithmetic but for rounding.
    """

    def __init__(self, lr: float, betas: tuple[float, float]) -> None:
        super().__init__()
        self.policy = "reset"
        self.lr, self.betas = lr, betas

    def start(self, parts: dict[str, Weights]) -> None:
        """Adam's moments, which stay at the server."""
        # of Adam, whatever the sites' optimiser is
        parts[SERVER_MOMENTS] = Weights.zeros(moments_layout(parts[SELECTOR].layout, "adam"))

    def uploads(self, layouts: dict[str, Layout]) -> None:
        """A gradient in the selector's place."""
        layouts[GRADIENT] = layouts.pop(SELECTOR)

    def send(self, upload: Upload, w_s: Learner, images: int, examples: Examples) -> None:
        """The mean gradient over the site's images."""
        upload.add(GRADIENT, w_s.gradient() * (1 / images), weight=images)

    def merge(self, shared: Parts, means: dict[str, Weights]) -> None:
        """One step of Adam along the mean gradient over all images."""
        means[SELECTOR], means[SERVER_MOMENTS] = adam_step(
            shared[SELECTOR],
            means.pop(GRADIENT),
            shared[SERVER_MOMENTS],
            self.lr,
            self.betas,
        )


class ClosedForm(PerBatch):
    """Fixed features and a linear discriminant: solved exactly from sums, in one round.

    No gradient, hence no one-class problem: sites send means over their images of features and of
    their products, the server adds them up and solves for the linear layer. What a site reveals
    is the mean of its images' features, as every selector that can tell it apart does.
    """

    def __init__(self) -> None:
        super().__init__("reset")

    def start(self, parts: dict[str, Weights]) -> None:
        """All rounds' means, added up at the server: a site that is away still counts."""
        parts[SERVER_MEANS] = Weights.zeros(means_layout(parts[SELECTOR]))

    def uploads(self, layouts: dict[str, Layout]) -> None:
        """Means of features in the selector's place."""
        weights = Weights.zeros(layouts.pop(SELECTOR))
        layouts[IMAGE_MEANS] = means_layout(weights)

    def see(self, w_s: Learner, x: Tensor, labels: Tensor) -> None:
        """Nothing is learnt batch by batch: `send` looks at all images once."""

    def send(self, upload: Upload, w_s: Learner, images: int, examples: Examples) -> None:
        """Means over the site's examples."""
        assert isinstance(w_s.bound.net, Network)
        seen = ImageMeans(means_layout(w_s.weights()))
        for x, labels in examples():
            seen.add(w_s.bound.net.features(x), labels)
        upload.add(IMAGE_MEANS, seen.result(), weight=images)

    def wrong(self, upload: Upload, classes: Collection[int]) -> str:
        """Means that no images have would spoil the solution without being seen in it."""
        if IMAGE_MEANS not in upload.parts:
            return ""
        part, images = upload.parts[IMAGE_MEANS], upload.weights[IMAGE_MEANS]
        wrong = wrong_means(part, images, classes)
        return wrong and f"{IMAGE_MEANS}: {wrong}"

    def merge(self, shared: Parts, means: dict[str, Weights]) -> None:
        """The linear layer that tells the sites apart, given all that was seen so far."""
        total = shared[SERVER_MEANS] + means.pop(IMAGE_MEANS)
        means[SERVER_MEANS] = total
        means[SELECTOR] = linear_discriminant(shared[SELECTOR], total)


def site_label(site: Site, x: Tensor) -> Tensor:
    """one_hot(k) of Eq. 2, as class indices: every image of a site carries the site's place."""
    return torch.full((len(x),), site.index, device=x.device)


def adam_step(
    weights: Weights, gradient: Weights, moments: Weights, lr: float, betas: tuple[float, float]
) -> tuple[Weights, Weights]:
    """One step of torch's Adam at the server; new weights and moments, the old ones untouched."""
    stepped, new = weights.clone(), moments.clone()
    values = stepped.trainable
    values.grad = gradient.trainable.clone()
    adam = torch.optim.Adam([values], lr=lr, betas=betas)
    adam.state[values] = {e.name: new[e.name] for e in new.layout.entries}
    adam.step()
    return stepped, new
