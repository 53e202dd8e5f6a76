"""How sure a comparison is: intervals by the bootstrap over patients, differences on equal images.

Patients of every site are drawn with replacement, as often as there are patients, and all that is
compared is computed from the same draws: so a difference has an interval of its own, which is much
smaller than those of its two terms. Where images have no patients, each is drawn by itself. A
number is the mean over seeds: intervals say how far few patients can mislead, and say nothing of
other seeds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from konsil.evaluation.results import CLIENT_AVERAGE, GLOBAL
from konsil.randomness import derive

DRAWS = 2000
FLIPS, AT_ONCE = 10_000, 500  # of signs
ENDS = (2.5, 97.5)  # percentiles
LEVEL = 0.05  # of tests, after Holm's correction
FEWEST = 2  # patients: one has no interval
NOTHING = 1e-12  # a gain that is rounding
Array = NDArray[np.float64]
Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Images:
    """What several candidates score on the same images, of one site or of all."""

    patients: Whole  # [images], numbers
    values: Sequence[Array]  # of each candidate [seeds, images]: scores, or what an AUC ranks by
    ill: NDArray[np.bool_] | None = None  # [images]: then it is an AUC, and no mean

    @property
    def is_mean(self) -> bool:
        """Whether the metric is the mean of single images' values."""
        return self.ill is None

    def measured(self, times: Array) -> Array:
        """The metric [draws, candidates] where each image is there so often, [draws, images]."""
        if self.ill is None:
            return times @ self._means.T / times.sum(axis=1, keepdims=True)
        aucs = [[_auc(one, self.ill, times) for one in seeds] for seeds in self.values]
        return np.stack([np.mean(of_seeds, axis=0) for of_seeds in aucs], axis=1)

    def contributions(self, place: int, reference: int) -> Array:
        """What each patient adds to the difference of two candidates' means, [patients]."""
        _, own = np.unique(self.patients, return_inverse=True)
        gained = self._means[place] - self._means[reference]
        return np.bincount(own, gained) / len(own)

    @cached_property
    def _means(self) -> Array:
        """[candidates, images], over seeds."""
        return np.array([seeds.mean(axis=0) for seeds in self.values])

    @staticmethod
    def pooled(parts: Sequence[Images]) -> Images:
        """All images of several sites; a patient's number means something at its site alone."""
        of_candidates = zip(*(part.values for part in parts), strict=True)
        values = [np.concatenate(of_sites, axis=1) for of_sites in of_candidates]
        shifts = np.cumsum([0, *(part.patients.max() + 1 for part in parts[:-1])])
        patients = [part.patients + shift for part, shift in zip(parts, shifts, strict=True)]
        ill = [part.ill for part in parts if part.ill is not None]
        return Images(np.concatenate(patients), values, np.concatenate(ill) if ill else None)


def _auc(ranked_by: Array, ill: NDArray[np.bool_], times: Array) -> Array:
    """The area under the ROC curve for every draw, a tie counting half; nan of one class alone."""
    order = np.argsort(ranked_by, kind="stable")
    starts = np.flatnonzero(np.diff(ranked_by[order], prepend=np.nan) != 0)  # groups of ties
    of_ill, of_healthy = (
        np.add.reduceat(times[:, order] * which[order], starts, axis=1) for which in (ill, ~ill)
    )
    below = np.cumsum(of_healthy, axis=1) - of_healthy / 2
    pairs = of_ill.sum(axis=1) * of_healthy.sum(axis=1)
    ordered = (of_ill * below).sum(axis=1)
    return np.divide(ordered, pairs, out=np.full(len(times), np.nan), where=pairs > 0)


class Estimate(NamedTuple):
    """A number and the ends of its 95 % interval; nan where patients are too few to say."""

    value: float
    low: float
    high: float


class Difference(NamedTuple):
    """A candidate minus the reference, on the same images."""

    estimate: Estimate
    p: float  # whether the metrics differ: of a mean by flipped signs, of an AUC by the draws
    corrected: float  # by Holm, for all candidates of the column
    ranks: float  # whether most patients gain, by Wilcoxon's signed ranks and Holm; nan: an AUC

    @property
    def found(self) -> bool:
        """Whether the two are called different."""
        return self.corrected < LEVEL


@dataclass(frozen=True)
class Compared:
    """Several candidates on the test images of the same sites."""

    sites: Mapping[str, Images]

    @property
    def columns(self) -> list[str]:
        """The sites, and both ways to a mean."""
        return [*self.sites, CLIENT_AVERAGE, GLOBAL]

    def estimates(self, column: str) -> list[Estimate]:
        """Of every candidate, with its interval."""
        return self._with_ends(self.values[column], self._draws[column], column)

    def worst(self, less: bool = False) -> list[Estimate]:
        """Of every candidate the score of the site that it serves worst; `less`: less is better."""
        return self._over_sites(np.nanmax if less else np.nanmin)

    def spread(self) -> list[Estimate]:
        """Of every candidate the best site's score minus the worst's."""
        return self._over_sites(lambda of, axis: np.nanmax(of, axis) - np.nanmin(of, axis))

    def differences(self, column: str, reference: int) -> list[Difference | None]:
        """Every candidate minus the reference; None: the reference itself."""
        values, draws = self.values[column], self._draws[column]
        draws = draws - draws[:, [reference]]
        found = self._with_ends(values - values[reference], draws, column)
        others = [place for place in range(len(values)) if place != reference]
        tested = [self._tests(column, place, reference, draws[:, place]) for place in others]
        p, ranks = [list(own) for own in zip(*tested, strict=True)] or [[], []]
        tests = dict(zip(others, zip(p, holm(p), holm(ranks), strict=True), strict=True))
        return [
            Difference(estimate, *tests[place]) if place in tests else None
            for place, estimate in enumerate(found)
        ]

    def _over_sites(self, of: Callable[..., Array]) -> list[Estimate]:
        values = of(np.array([self.values[site] for site in self.sites]), axis=0)
        draws = of(np.array([self._draws[site] for site in self.sites]), axis=0)
        return self._with_ends(values, draws)

    @cached_property
    def _all(self) -> Images:
        return Images.pooled(list(self.sites.values()))

    @cached_property
    def values(self) -> dict[str, Array]:
        """What every candidate scores in each column, [candidates]."""
        once = {site: np.ones((1, len(own.patients))) for site, own in self.sites.items()}
        return {column: found[0] for column, found in self._measured(once).items()}

    @cached_property
    def _draws(self) -> dict[str, Array]:
        """[draws, candidates] of each column, all from the same draws of patients."""
        return self._measured({site: _drawn(site, own) for site, own in self.sites.items()})

    def _measured(self, times: dict[str, Array]) -> dict[str, Array]:
        found = {site: own.measured(times[site]) for site, own in self.sites.items()}
        every = self._all.measured(np.concatenate(list(times.values()), axis=1))
        return found | {CLIENT_AVERAGE: _nanmean(list(found.values())), GLOBAL: every}

    def _with_ends(self, values: Array, draws: Array, column: str = "") -> list[Estimate]:
        one = column in self.sites and len(np.unique(self.sites[column].patients)) < FEWEST
        with warnings.catch_warnings():  # of a site with one class no draw has an AUC
            warnings.simplefilter("ignore", RuntimeWarning)
            ends = np.nanpercentile(draws, ENDS, axis=0) * (np.nan if one else 1)
        return [Estimate(*map(float, row)) for row in zip(values, *ends, strict=True)]

    def _tests(self, column: str, place: int, reference: int, draws: Array) -> tuple[float, float]:
        """Both p before any correction."""
        parts = [self.sites[column]] if column in self.sites else [self._all]
        if column == CLIENT_AVERAGE:  # every site counts alike, however few its patients
            parts = list(self.sites.values())
        if parts[0].is_mean:
            added = np.concatenate([own.contributions(place, reference) for own in parts])
            return flipped(added), signed_rank(added)
        beyond = min((draws <= 0).sum(), (draws >= 0).sum())
        return min(1.0, 2 * (float(beyond) + 1) / (len(draws) + 1)), np.nan


def _drawn(site: str, images: Images) -> Array:
    """How often each image is drawn with its patient, [draws, images]; for everybody the same."""
    known, place = np.unique(images.patients, return_inverse=True)
    generator = np.random.Generator(np.random.PCG64(derive("patients", site, len(known))))
    times = generator.multinomial(len(known), np.full(len(known), 1 / len(known)), DRAWS)
    return times[:, place].astype(np.float64)


def _nanmean(of_sites: Sequence[Array]) -> Array:
    """The plain mean of the sites that have a value."""
    stacked = np.array(of_sites)
    there = ~np.isnan(stacked)
    return np.where(there, stacked, 0).sum(axis=0) / np.maximum(there.sum(axis=0), 1)


def flipped(contributions: Array) -> float:
    """Fisher and Pitman's p of a sum: how often it is as far from 0 if each part's sign is a coin.

    That is what it would be if it were all the same which of two methods has answered a patient.
    """
    parts = contributions[np.abs(contributions) > NOTHING]
    generator = np.random.Generator(np.random.PCG64(derive("signs", len(parts))))
    as_far, reached = 0, abs(parts.sum()) - NOTHING
    for _ in range(FLIPS // AT_ONCE):
        signs = generator.integers(0, 2, (AT_ONCE, len(parts))) * 2 - 1
        as_far += int((np.abs(signs @ parts) >= reached).sum())
    return (as_far + 1) / (FLIPS + 1)


def signed_rank(gains: Array) -> float:
    """Wilcoxon's p for gains around 0; 1 where nobody gains or loses anything."""
    from scipy.stats import wilcoxon

    gains = gains[np.abs(gains) > NOTHING]
    return float(wilcoxon(gains).pvalue) if len(gains) else 1.0


def holm(p: Sequence[float]) -> list[float]:
    """Holm's correction: the k-th smallest of n times n - k + 1, and never below one before it."""
    if any(np.isnan(p)):
        return [np.nan] * len(p)
    corrected, largest = [0.0] * len(p), 0.0
    for rank, place in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        largest = max(largest, min(1.0, p[place] * (len(p) - rank)))
        corrected[place] = largest
    return corrected
