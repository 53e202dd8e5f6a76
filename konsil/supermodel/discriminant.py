"""A linear discriminant from means of features and of their products.

With one class a site, E[phi], E[phi phi^T] and the share of every class over all images are all
that Fisher's discriminant needs, and all three are means: a server that only ever takes means can
solve it exactly.
"""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from konsil.weights import Layout, Weights

SHRINKAGE = 0.05  # of the within-site correlation towards none: more features than images is fine
UNSEEN = -1e3  # logit of a site that has not answered yet, beside the likeliest of the others
ROUNDING, TINY = 1e-6, 1e-12  # relative and absolute, of variances
HEAD_WEIGHT, HEAD_BIAS = "net.head.weight", "net.head.bias"


def means_layout(sites: int, features: int) -> Layout:
    """For K sites and d features: products [d, d], features by site [K, d], shares [K]."""
    return Layout.build(
        [
            ("products", (features, features), "trainable", "body"),
            ("features", (sites, features), "trainable", "body"),
            ("shares", (sites,), "trainable", "body"),
        ]
    )


class ImageMeans:
    """Means over the images of one site: of products, and by class of features and counts."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.sums = {e.name: torch.zeros(e.shape, dtype=torch.float64) for e in layout.entries}

    @torch.no_grad()
    def add(self, features: Tensor, labels: Tensor) -> None:
        """A batch of features [B, d] and their classes [B]."""
        values, labels = features.double().cpu(), labels.cpu()
        self.sums["products"] += values.T @ values
        for label in labels.unique().tolist():
            of_class = values[labels == label]
            self.sums["features"][label] += of_class.sum(dim=0)
            self.sums["shares"][label] += len(of_class)

    def result(self) -> Weights:
        """The means, as a part that can be averaged by images."""
        means, images = Weights.zeros(self.layout), self.sums["shares"].sum()
        for name, total in self.sums.items():
            means[name].copy_(total / images)
        return means


def wrong_means(means: Weights, images: float, classes: Collection[int]) -> str:
    """Why these are no means over so many images of these classes; empty if they can be.

    Shares are counts of images divided by their number, bit for bit: one that is almost nothing
    would make a centre of anything.
    """
    features, shares = means["features"], means["shares"]
    counts = (shares.double() * images).round()
    exact = torch.equal((counts / counts.sum()).float(), shares)
    if counts.min() < 0 or counts.sum() != images or not exact:
        return f"shares that are no counts of {images:g} images"
    if any(share and k not in classes for k, share in enumerate(shares.tolist())):
        return "shares of classes that its images cannot have"
    return "features of classes without images" if features[counts == 0].any() else ""


@dataclass(frozen=True)
class Spread:
    """What the means say of the sites that were seen: centres, and how images scatter round them.

    Correlations within sites are shrunk towards none, so that there may be more features than
    images. No eigenvalue of theirs is then below the shrinkage, but for rounding: means travel as
    float32. What is computed of them is float64.
    """

    seen: Tensor  # [sites], which of them have images
    centres: Tensor  # [seen, d]
    deviation: Tensor  # [d], within sites
    values: Tensor  # [d], eigenvalues of the correlations within sites
    vectors: Tensor  # [d, d], their eigenvectors in columns

    @classmethod
    def of(cls, means: Weights, shrinkage: float = SHRINKAGE) -> "Spread":
        """From means over all images."""
        products, features, shares = (means[n].double() for n in ("products", "features", "shares"))
        seen, total = shares > 0, shares.sum()
        centres = features[seen] / shares[seen, None]
        overall, weights = features.sum(dim=0) / total, shares[seen] / total
        within = products / total - torch.outer(overall, overall)
        within -= ((centres - overall).T * weights) @ (centres - overall)
        # a thousandth of its size is what float32 leaves of a feature that hardly varies
        smallest = ROUNDING * products.diagonal().clamp(min=0) / total + TINY
        deviation = torch.maximum(within.diagonal(), smallest).sqrt()
        values, vectors = torch.linalg.eigh(within / torch.outer(deviation, deviation))
        values = ((1 - shrinkage) * values + shrinkage).clamp(min=max(shrinkage, ROUNDING))
        return cls(seen, centres, deviation, values, vectors)

    def whitened(self, features: Tensor) -> Tensor:
        """Features in whose units images scatter alike in every direction, [n, d].

        Of all such, those that are most like the features themselves.
        """
        return (features / self.deviation) @ (self.vectors / self.values.sqrt()) @ self.vectors.T


def linear_discriminant(selector: Weights, means: Weights, shrinkage: float = SHRINKAGE) -> Weights:
    """The selector with the linear layer that Fisher's discriminant gives.

    Logits are mu_k^T S^-1 phi - mu_k^T S^-1 mu_k / 2, with S the covariance within sites. Every
    site counts alike (no log-prior): a large hospital must not swallow a small one's images.
    """
    spread = Spread.of(means, shrinkage)
    # Any origin gives the same probabilities. With this one the logits' mean is the same for every
    # image, so that the largest of them is never far below: a site that is unseen stays unlikely.
    overall = spread.centres.mean(dim=0)
    centres = spread.centres - overall
    inverse = (spread.vectors / spread.values) @ spread.vectors.T
    directions = (centres / spread.deviation) @ inverse / spread.deviation
    offsets = -(directions * (centres / 2 + overall)).sum(dim=1)
    return _with_head(selector, spread.seen, directions, offsets)


def head_of(selector: Weights) -> Weights:
    """The linear layer alone, as a part that can be sent."""
    weight, bias = selector[HEAD_WEIGHT], selector[HEAD_BIAS]
    head = Weights.zeros(head_layout(*weight.shape))
    head["weight"].copy_(weight)
    head["bias"].copy_(bias)
    return head


def head_layout(sites: int, features: int) -> Layout:
    """Of a linear layer without its network."""
    shapes = (("weight", (sites, features)), ("bias", (sites,)))
    return Layout.build((name, shape, "trainable", "head") for name, shape in shapes)


def _with_head(selector: Weights, seen: Tensor, directions: Tensor, offsets: Tensor) -> Weights:
    result = selector.clone()
    weight, bias = result[HEAD_WEIGHT], result[HEAD_BIAS]
    weight.zero_()
    bias.fill_(float(offsets.mean()) + UNSEEN)
    weight[seen] = directions.float()
    bias[seen] = offsets.float()
    return result
