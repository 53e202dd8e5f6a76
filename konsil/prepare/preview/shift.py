"""How far the sites are from each other, from brightness and colour alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    chosen = _drawn(items, seed)
    return Measured(
        [items[k] for k in chosen],
        np.concatenate([one.statistics for one in seen])[chosen].astype(np.float64),
        np.concatenate([one.thumbnails for one in seen])[chosen],
    )


def _drawn(items: Sequence[Item], seed: int) -> list[int]:
    if len(items) <= MOST_IMAGES:
        return list(range(len(items)))
    by_site: dict[str, list[int]] = {}
    for k, item in enumerate(items):
        by_site.setdefault(item.site, []).append(k)
    share = MOST_IMAGES // len(by_site)
    kept: list[int] = []
    for own in by_site.values():
        kept += sorted(own, key=lambda k: derive(seed, items[k].site, items[k].name))[:share]
    return sorted(kept)


@dataclass(frozen=True)
class Shift:
    """What is known of how sites differ."""

    data: Measured
    distances: Floats  # [sites, sites]
    map: Map
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
    return Shift(data, distances(data), embed(data), guess_sites(data, seed))


# --- distances ----------------------------------------------------------------------------------


def distances(data: Measured) -> Floats:
    """How many standard deviations lie between two sites' means, [sites, sites].

    The deviation is that within sites; over all statistics the root of the mean square is taken.
    """
    numbers = data.site_numbers
    count = len(data.sites)
    means = np.stack([data.statistics[numbers == k].mean(axis=0) for k in range(count)])
    variances = np.stack([data.statistics[numbers == k].var(axis=0) for k in range(count)])
    within = np.sqrt(variances.mean(axis=0)).clip(min=1e-6)
    scaled = means / within
    gaps: Floats = scaled[:, None] - scaled[None]
    return np.sqrt((gaps**2).mean(axis=2))


# --- the map ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Map:
    """Every image as a point."""

    points: Floats  # [n, 2]
    explained: float  # part of all variation that the two directions show


def embed(data: Measured) -> Map:
    """The first two principal components of statistics and thumbnails, which count alike."""
    statistics = _standardised(data.statistics)
    shapes, _ = _components(_coarse(data.thumbnails), SHAPES)
    both = np.hstack([statistics, shapes / max(np.sqrt(shapes.var(axis=0).sum()), 1e-9)])
    points, explained = _components(both, 2)
    return Map(points, explained)


def _coarse(thumbnails: NDArray[np.uint8]) -> Floats:
    """Thumbnails of `COARSE` pixels a side, a row each."""
    count, side, _ = thumbnails.shape
    blocks = thumbnails.reshape(count, COARSE, side // COARSE, COARSE, side // COARSE)
    coarse: Floats = blocks.mean(axis=(2, 4)).reshape(count, -1) / 255
    return coarse


def _standardised(values: Floats) -> Floats:
    """Every column with the same variance, all columns together with 1."""
    spread = values.std(axis=0).clip(min=1e-6)
    return (values - values.mean(axis=0)) / spread / np.sqrt(values.shape[1])


def _components(values: Floats, count: int) -> tuple[Floats, float]:
    """Principal components [n, at most count] and the part of the variance in them."""
    from sklearn.decomposition import PCA

    pca = PCA(min(count, *values.shape), svd_solver="full")
    with np.errstate(invalid="ignore"):  # images that are all alike have no variance to explain
        points: Floats = pca.fit_transform(values)
    return points, float(np.nan_to_num(pca.explained_variance_ratio_).sum())


# --- guessing the site --------------------------------------------------------------------------


@dataclass(frozen=True)
class SiteGuess:
    """How well a logistic model names the site of images of patients it has not seen."""

    accuracy: float  # balanced: every site counts alike
    chance: float
    parts: int  # of the cross-validation
    guesses: Floats  # [sites, sites]: of a site's images, the part that was taken for which

    @property
    def skill(self) -> float:
        """0 for guessing, 1 for knowing."""
        return (self.accuracy - self.chance) / (1 - self.chance)


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
    fewest = min(
        len({item.patient for item in data.items if item.site == site}) for site in data.sites
    )
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
