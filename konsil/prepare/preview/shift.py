"""How far the sites are from each other, from brightness and colour alone."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from konsil.data.sources import Item
from konsil.prepare.check.look import STATISTICS, Seen
from konsil.randomness import derive

MOST_IMAGES = 3000  # that the models are made from; of more, so many are drawn
PARTS = 5  # of the cross-validation
COARSE = 16  # pixels a side of the thumbnails in the map
SHAPES = 20  # numbers that stand for a thumbnail there
ALIKE, DIFFERENT = 0.1, 0.5  # of the way from guessing the site to knowing it
Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Measured:
    """The images that shift is measured on, a row each."""

    items: list[Item]
    statistics: Floats  # [n, F]
    thumbnails: NDArray[np.uint8]  # [n, 32, 32]

    @property
    def sites(self) -> list[str]:
        """In the order of the data."""
        return list(dict.fromkeys(item.site for item in self.items))

    @property
    def site_numbers(self) -> NDArray[np.int64]:
        """The place of each image's site in that order."""
        place = {site: number for number, site in enumerate(self.sites)}
        return np.array([place[item.site] for item in self.items])


def measured(seen: Sequence[Seen], seed: int) -> Measured:
    """All images, or an even draw from the sites if there are too many."""
    items = [item for one in seen for item in one.images]
    chosen = list(range(len(items)))
    if len(items) > MOST_IMAGES:
        share = MOST_IMAGES // len({item.site for item in items})
        order = [derive(seed, item.site, item.name) for item in items]
        by_site = groupby(chosen, key=lambda k: items[k].site)
        chosen = sorted(k for _, own in by_site for k in sorted(own, key=order.__getitem__)[:share])
    return Measured(
        [items[k] for k in chosen],
        np.concatenate([one.statistics for one in seen])[chosen].astype(np.float64),
        np.concatenate([one.thumbnails for one in seen])[chosen],
    )


@dataclass(frozen=True)
class SiteGuess:
    """How well a logistic model names the site of images of patients it has not seen."""

    accuracy: float  # balanced: every site counts alike
    chance: float
    parts: int  # of the cross-validation
    guesses: Floats  # [sites, sites]: of a site's images, the part that was taken for which

    def in_words(self) -> str:
        """What the accuracy means."""
        skill = (self.accuracy - self.chance) / (1 - self.chance)
        if skill < ALIKE:
            return (
                "The sites can hardly be told apart by their intensities: what differs between "
                "them, if anything, is what the images show, or how it was labelled."
            )
        if skill < DIFFERENT:
            return (
                "The sites differ in their intensities, but overlap: a model that was trained at "
                "one site will find many, not all, images of another unfamiliar."
            )
        return (
            "Most images carry the mark of their site: scanner, protocol or camera. A model that "
            "was trained at one site meets unfamiliar intensities at another, so methods that "
            "adapt to the site (FedSM, FedBN, fine-tuning) have something to gain here. It does "
            "not say that a common model must fail."
        )


@dataclass(frozen=True)
class Shift:
    """What is known of how sites differ."""

    data: Measured
    distances: Floats  # [sites, sites]
    points: Floats  # [n, 2]: every image on a map
    explained: float  # the part of all variation that the map shows
    guess: SiteGuess | None

    @property
    def coloured(self) -> bool:
        """Whether the statistics are of red, green and blue instead of grey."""
        return self.data.statistics.shape[1] > len(STATISTICS)


def measure_shift(seen: Sequence[Seen], seed: int) -> Shift | None:
    """Everything there is to know of it; None of a single site."""
    data = measured(seen, seed)
    if len(data.sites) < 2:
        return None
    return Shift(data, distances(data), *embed(data), guess_sites(data, seed))


def distances(data: Measured) -> Floats:
    """How many standard deviations lie between two sites' means, [sites, sites].

    The deviation is that within sites; over all statistics the root of the mean square is taken.
    """
    own = [data.statistics[data.site_numbers == k] for k in range(len(data.sites))]
    within = np.sqrt(np.mean([values.var(axis=0) for values in own], axis=0)).clip(min=1e-6)
    means = np.stack([values.mean(axis=0) for values in own]) / within
    gaps: Floats = means[:, None] - means[None]
    return np.sqrt((gaps**2).mean(axis=2))


def embed(data: Measured) -> tuple[Floats, float]:
    """The first two principal components of statistics and thumbnails, which count alike.

    A point [n, 2] for every image, and the part of all variation that they show.
    """
    values = data.statistics - data.statistics.mean(axis=0)
    values = values / data.statistics.std(axis=0).clip(min=1e-6) / np.sqrt(values.shape[1])
    count, side, _ = data.thumbnails.shape
    blocks = data.thumbnails.reshape(count, COARSE, side // COARSE, COARSE, side // COARSE)
    shapes, _ = _components(blocks.mean(axis=(2, 4)).reshape(count, -1) / 255, SHAPES)
    shapes /= max(np.sqrt(shapes.var(axis=0).sum()), 1e-9)
    return _components(np.hstack([values, shapes]), 2)


def _components(values: Floats, count: int) -> tuple[Floats, float]:
    """Principal components [n, at most count] and the part of the variance in them."""
    from sklearn.decomposition import PCA

    pca = PCA(min(count, *values.shape), svd_solver="full")
    with np.errstate(invalid="ignore"):  # images that are all alike have no variance to explain
        points: Floats = pca.fit_transform(values)
    return points, float(np.nan_to_num(pca.explained_variance_ratio_).sum())


def guess_sites(data: Measured, seed: int) -> SiteGuess | None:
    """Cross-validated by patient; None if there are too few sites or patients for that."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import confusion_matrix
    from sklearn.model_selection import StratifiedGroupKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    truth = data.site_numbers
    patients = [f"{item.site}\0{item.patient}" for item in data.items]
    fewest = min(Counter(site for site, _ in {(i.site, i.patient) for i in data.items}).values())
    parts = min(PARTS, fewest)
    if len(data.sites) < 2 or parts < 2:
        return None
    model = make_pipeline(
        StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=300, tol=1e-3)
    )
    folds = StratifiedGroupKFold(parts, shuffle=True, random_state=seed)
    with threadpool_limits(1):  # the matrices are small: threads only wait for each other
        guessed = cross_val_predict(model, data.statistics, truth, groups=patients, cv=folds)
    table = confusion_matrix(truth, guessed, normalize="true")
    return SiteGuess(float(table.diagonal().mean()), 1 / len(data.sites), parts, table)
