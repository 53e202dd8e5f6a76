"""Is an image like those of any site? From the same means as the discriminant.

Two stories are compared: the image comes from the site whose centre is nearest, or from a hospital
that nobody has seen, whose centre is drawn as those of the sites are. In units of the scatter
within sites the first is N(c_k, I) and the second N(m, I + B), with B the scatter of the sites'
centres. The distance alone (Mahalanobis) would count directions in which hospitals do not differ as
much as those in which they do, and find half as many foreign images (docs/recipe.md).
"""

import torch
from torch import Tensor

from konsil.supermodel.discriminant import Spread
from konsil.weights import Layout, Weights

SHRINKAGE = 0.1  # of the correlations within sites
INDEPENDENT = 0.7  # how much of the sites' scatter is taken feature by feature: sites are few
# Largest values that validation images are counted above, to find the one that few exceed.
LIMITS = (0.0, *(round(0.01 * 1.1**i, 5) for i in range(75)))
FALSE_ALARMS = 0.01  # of the validation images, each site counting alike


def novelty_layout(sites: int, features: int) -> Layout:
    """What has to be known of `sites` to judge an image by so many features."""
    square = (features, features)
    return Layout.build(
        [
            ("whiten", square, "statistic", "body"),
            ("centres", (sites, features), "statistic", "body"),
            ("new", square, "statistic", "body"),
        ]
    )


def novelty_of(means: Weights) -> Weights:
    """What tells images of no site, from means of the selector's features over all sites."""
    spread = Spread.of(means, SHRINKAGE)
    own = torch.eye(len(spread.values), dtype=torch.float64)
    whiten = spread.whitened(own).T
    centres = spread.centres @ whiten.T
    apart = centres - centres.mean(dim=0)
    between = apart.T @ apart / max(1, len(centres) - 1)
    alone = torch.diag(between.diagonal())
    between = (1 - INDEPENDENT) * between + INDEPENDENT * alone
    values, vectors = torch.linalg.eigh(own + between)
    new = (vectors / values.clamp(min=1).sqrt()).T
    result = Weights.zeros(novelty_layout(*centres.shape))
    for name, value in (("whiten", whiten), ("centres", centres), ("new", new)):
        result[name].copy_(value)
    return result


def novelty(known: Weights, features: Tensor) -> Tensor:
    """How much better "a hospital never seen" explains each image than its nearest site, a feature.

    About 0 for images like those of a site.
    """
    whiten, centres, new = (known[name].to(features) for name in ("whiten", "centres", "new"))
    placed = features @ whiten.T
    nearest = torch.stack([(placed - centre).square().sum(dim=1) for centre in centres]).amin(dim=0)
    foreign = ((placed - centres.mean(dim=0)) @ new.T).square().sum(dim=1)
    return (nearest - foreign) / features.shape[1]


def choose_limit(above: dict[str, list[int]], images: dict[str, int]) -> float:
    """The smallest limit that one validation image in a hundred exceeds, each site alike."""
    for place, limit in enumerate(LIMITS):
        if sum(above[s][place] / images[s] for s in above) / len(above) <= FALSE_ALARMS:
            return limit
    return LIMITS[-1]
