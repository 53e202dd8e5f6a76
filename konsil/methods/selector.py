"""How FedSM's selector learns which site an image comes from (Algorithm 1, lines 6, 11, 13, 15).

Every site sees one class only, its own. That is what makes this hard: whoever steps along its own
gradient learns to say its own name, and the mean of such selectors says the name of the largest
site. The rules below differ in what a site does with a batch, what it sends, and what the server
makes of the means; FedSM itself is the same with all of them.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from konsil.data import Images
from konsil.errors import ConfigError
from konsil.ingredients.context import (
    SERVER_ONLY,
    Means,
    Shared,
    TrainedNetwork,
    Upload,
    moments_of,
)
from konsil.ingredients.optimizers import OptimizerPolicy, moments_layout
from konsil.ingredients.piece import Piece
from konsil.ingredients.site import Site
from konsil.networks import Network, NetworkSpec, networks_for
from konsil.networks.encoder import encoder_weights
from konsil.supermodel.discriminant import (
    HEAD_WEIGHT,
    ImageMeans,
    linear_discriminant,
    means_layout,
    wrong_means,
)
from konsil.weights import Layout, Weights, digest_of

# All images that a site's selector learns from, with their labels; made when asked for.
Examples = Callable[[], Iterable[tuple[Tensor, Tensor]]]

SELECTOR = "selector"
GRADIENT = "selector.gradient"
SERVER_MOMENTS = f"{SERVER_ONLY}{moments_of(SELECTOR)}"
IMAGE_MEANS = "selector.means"
SERVER_MEANS = f"{SERVER_ONLY}{IMAGE_MEANS}"


class Selector(Piece):
    """Algorithm 1: one step a batch along the cross-entropy of Eq. 2, the mean of the weights.

    It trains only if the optimiser's moments are averaged with the weights (`average`); with
    moments that stay at the site or are forgotten it is known to fail.
    """

    best_by: tuple[tuple[str, str], ...] = ((SELECTOR, "selector_accuracy"),)
    usual_network = "small"
    solved_after: ClassVar[bool] = False

    def __init__(
        self,
        policy: OptimizerPolicy,
        network: str | None = None,
        lr: float | None = None,
        further_outputs: int = 0,
        epochs: int | None = None,
    ) -> None:
        """Outputs: one a site (Eq. 2 has no label for the global model), and further ones."""
        self.policy, self.network, self.lr = policy, network or self.usual_network, lr
        self.further_outputs, self.epochs = further_outputs, epochs

    def check(self) -> None:
        """Refuse what is no network for classification."""
        known = networks_for("classes")
        if self.network not in known:
            raise ConfigError(f"selector = {self.network!r}: one of {', '.join(known)}")

    @property
    def spec(self) -> NetworkSpec:
        """Its network. It sees the raw image: brightness tells sites apart."""
        network = self.context.network
        return NetworkSpec(
            name=self.network,
            in_channels=network.in_channels,
            outputs=len(self.context.sites) + self.further_outputs,
            image_size=network.image_size,
        )

    def networks(self) -> dict[str, TrainedNetwork]:
        return {SELECTOR: TrainedNetwork(self.spec, self.policy, self.lr)}

    def start(self) -> dict[str, Weights]:
        # never the pretrained ones, even if the experiment's network is of the same kind
        return {SELECTOR: self.context.drawn(self.spec)}

    def begin(self, site: Site, shared: Shared) -> None:
        self.site = site
        self.w_s = site.learner(SELECTOR, shared[SELECTOR])

    def on_batch(self, x: Tensor, y: Tensor) -> None:
        """Line 11: every image of a site carries the site's place as its label."""
        self.learn(x, site_label(self.site, x))

    def weights(self, shared: Shared) -> Weights:
        """The selector, as it goes into the super model."""
        return shared[SELECTOR]

    def learn(self, x: Tensor, labels: Tensor) -> None:
        """What a batch with these labels teaches."""
        self.w_s.step(cross_entropy(self.w_s(x), labels))

    def end(self, upload: Upload) -> None:
        """Line 13: what the site sends of it."""
        site = self.site
        labelled = ((x, site_label(site, x)) for x, _ in site.in_order(site.training))
        self.send(upload, site.images, lambda: labelled)

    def send(self, upload: Upload, images: int, examples: Examples) -> None:
        """The selector, weighted by so many images."""
        upload.add(SELECTOR, self.w_s.weights(), weight=images)

    def measures(self, site: Site, shared: Shared) -> dict[str, float]:
        """How many of the site's validation images the selector assigns to it."""
        w_s = site.eval_network(SELECTOR, shared[SELECTOR])
        images = site.in_order(site.validation)
        with torch.no_grad():
            right = sum((w_s(x).argmax(1) == site.index).sum() for x, _ in images)
        return {"selector_accuracy": float(right) / len(site.validation)}


class ReferenceFullBatch(Selector):
    """The published code: one step a round, along the sum of all gradients of the epoch."""

    def learn(self, x: Tensor, labels: Tensor) -> None:
        """Add this batch's gradient, summed over its images."""
        self.w_s.accumulate(cross_entropy(self.w_s(x), labels, reduction="sum"))

    def send(self, upload: Upload, images: int, examples: Examples) -> None:
        """Take the one step, then send the selector."""
        self.w_s.apply()
        super().send(upload, images, examples)


class AdamAtServer(ReferenceFullBatch):
    """Sites send the mean gradient; the server takes one Adam step a round.

    The same as full-batch Adam on pooled images, bit by bit of arithmetic but for rounding.
    """

    def start(self) -> dict[str, Weights]:
        """And Adam's moments, which stay at the server."""
        parts = super().start()
        # of Adam, whatever the sites' optimiser is
        moments = Weights.zeros(moments_layout(parts[SELECTOR].layout, "adam"))
        return parts | {SERVER_MOMENTS: moments}

    def uploads(self, layouts: dict[str, Layout]) -> None:
        """A gradient in the selector's place."""
        layouts[GRADIENT] = layouts.pop(SELECTOR)

    def send(self, upload: Upload, images: int, examples: Examples) -> None:
        """The mean gradient over the site's images."""
        upload.add(GRADIENT, self.w_s.gradient() * (1 / images), weight=images)

    def merge(self, shared: Shared, means: Means, new: Shared) -> None:
        """One step of Adam along the mean gradient over all images."""
        w_s, moments, training = shared[SELECTOR], shared[SERVER_MOMENTS], self.context.training
        lr = self.lr or training.lr
        stepped = adam_step(w_s, means[GRADIENT], moments, lr, training.betas)
        new[SELECTOR], new[SERVER_MOMENTS] = stepped


class ClosedForm(Selector):
    """Fixed features and a linear discriminant: solved exactly from sums, in one round.

    No gradient, hence no one-class problem: sites send means over their images of features and of
    their products, the server adds them up and solves for the linear layer. What a site reveals
    is the mean of its images' features, as every selector that can tell it apart does.
    """

    usual_network = "features"

    def check(self) -> None:
        """Refuse a network with another way to features."""
        super().check()
        if self.network != self.usual_network:
            raise ConfigError(
                f"selector = {self.network}: closed_form solves for the "
                "linear layer on fixed features; leave selector out, or choose features"
            )

    def start(self) -> dict[str, Weights]:
        """And all rounds' means, added up at the server: a site that is away still counts."""
        parts = super().start()
        return parts | {SERVER_MEANS: Weights.zeros(_means_layout(parts[SELECTOR]))}

    def uploads(self, layouts: dict[str, Layout]) -> None:
        """Means of features in the selector's place."""
        layouts[IMAGE_MEANS] = _means_layout(Weights.zeros(layouts.pop(SELECTOR)))

    def learn(self, x: Tensor, labels: Tensor) -> None:
        """Nothing is learnt batch by batch: `end` looks at all images once."""

    def end(self, upload: Upload) -> None:
        """Means over the site's training images."""
        site, weights = self.site, self.w_s.weights()
        described = self._described(site, site.training, "train", weights)
        labelled = ((features, site_label(site, features)) for features in described)
        self._add(upload, site.images, weights, labelled)

    def send(self, upload: Upload, images: int, examples: Examples) -> None:
        """Means over these examples."""
        net, weights = self.w_s.bound.net, self.w_s.weights()
        assert isinstance(net, Network)
        described = ((net.features(x), labels) for x, labels in examples())
        self._add(upload, images, weights, described)

    def measures(self, site: Site, shared: Shared) -> dict[str, float]:
        w_s = site.eval_network(SELECTOR, shared[SELECTOR])
        described = self._described(site, site.validation, "val", shared[SELECTOR])
        with torch.no_grad():
            right = sum((w_s.from_features(x).argmax(1) == site.index).sum() for x in described)
        return {"selector_accuracy": float(right) / len(site.validation)}

    @torch.no_grad()
    def _described(self, site: Site, images: Images, split: str, weights: Weights) -> list[Tensor]:
        """The features of a split's images, batch by batch: with the same filters the same."""
        filters = weights.flat[weights.layout.statistics]

        def find() -> list[Tensor]:
            net = site.eval_network(SELECTOR, weights)
            return [net.features(x) for x, _ in site.in_order(images)]

        return site.once("features", split, digest_of(filters), find=find)

    @staticmethod
    def _add(
        upload: Upload, images: int, weights: Weights, described: Iterable[tuple[Tensor, Tensor]]
    ) -> None:
        seen = ImageMeans(_means_layout(weights))
        for features, labels in described:
            seen.add(features, labels)
        upload.add(IMAGE_MEANS, seen.result(), weight=images)

    def wrong_upload(self, site: str, upload: Upload) -> str:
        """Means that no images have would spoil the solution without being seen in it."""
        if IMAGE_MEANS not in upload.parts:
            return ""
        part, images = upload.parts[IMAGE_MEANS], upload.weights[IMAGE_MEANS]
        own = [self.context.sites.index(site)]
        wrong = wrong_means(part, images, range(self.spec.outputs) if self.further_outputs else own)
        return wrong and f"{IMAGE_MEANS}: {wrong}"

    def merge(self, shared: Shared, means: Means, new: Shared) -> None:
        """The linear layer that tells the sites apart, given all that was seen so far."""
        new[SERVER_MEANS] = shared[SERVER_MEANS] + means[IMAGE_MEANS]
        new[SELECTOR] = linear_discriminant(shared[SELECTOR], new[SERVER_MEANS])


class EncoderSelector(Selector):
    """The global model's own first layers and a linear discriminant, solved after training.

    Nothing of it is trained or sent in the rounds. When the models are there, every site sends
    once the means over its training images of what the global model's first layers see
    (`konsil/networks/encoder.py`) and of their products; the server solves, and validation images
    choose how much to shrink (`konsil/federation/assembly.py`).
    """

    best_by = ()
    usual_network = "encoder"
    solved_after = True

    def check(self) -> None:
        """Refuse what has no meaning for a selector that is not trained."""
        network = None if self.network == self.usual_network else self.network
        given = {"selector": network, "selector_lr": self.lr, "selector_epochs": self.epochs}
        for setting, value in given.items():
            if value is not None:
                raise ConfigError(
                    f"{setting} = {value}: selector_optimizer encoder is solved after training; "
                    f"leave {setting} out"
                )
        if self.further_outputs:
            raise ConfigError(
                "selector_optimizer = encoder: it tells sites apart, and this method's selector "
                "names models; choose average_moments or closed_form"
            )

    @property
    def spec(self) -> NetworkSpec:
        """Its network, which holds a copy of the global model's."""
        return replace(super().spec, arguments={"of": self.context.network.to_json()})

    def weights(self, shared: Shared) -> Weights:
        """The global model's layers under a linear layer that knows nothing yet."""
        return encoder_weights(self.spec, shared["global"])

    # In the rounds a piece that does nothing:
    networks, start, begin, on_batch = Piece.networks, Piece.start, Piece.begin, Piece.on_batch
    end, measures = Piece.end, Piece.measures


SelectorOptimizer = Literal[
    "average_moments",  # one step a batch; Adam's moments are averaged with the weights
    "server_adam",  # the sites send the mean gradient; the server takes one Adam step a round
    "encoder",  # a linear discriminant on the global model's features, solved after training
    "closed_form",  # a linear discriminant on fixed features, solved exactly from means
    "reference_full_batch",  # the published code: one step a round on summed gradients
    "literal_persist_known_to_fail",  # Algorithm 1 to the letter: moments stay at the site ...
    "literal_reset_known_to_fail",  # ... or are forgotten; neither trains one-class sites
]
SELECTORS: dict[SelectorOptimizer, tuple[type[Selector], OptimizerPolicy]] = {
    "encoder": (EncoderSelector, "reset"),
    "average_moments": (Selector, "average"),
    "server_adam": (AdamAtServer, "reset"),
    "closed_form": (ClosedForm, "reset"),
    "reference_full_batch": (ReferenceFullBatch, "average"),
    "literal_persist_known_to_fail": (Selector, "persist"),
    "literal_reset_known_to_fail": (Selector, "reset"),
}


def _means_layout(selector: Weights) -> Layout:
    return means_layout(*selector[HEAD_WEIGHT].shape)


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
