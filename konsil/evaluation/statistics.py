"""How sure a comparison is: intervals by the bootstrap over patients, differences on equal images.

Patients of every site are drawn with replacement, as often as there are patients, and all that is
compared is computed from the same draws: so a difference has an interval of its own, which is much
smaller than those of its two terms. Where images have no patients, each is drawn by itself. A
number is the mean over seeds: intervals say how far few patients can mislead, and say nothing of
other seeds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
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

    def contributions(self, place: int, reference: int, images: int | None = None) -> Array:
        """What each patient adds to the difference of two candidates' means, [patients].

        The means are over so many images, by default over these.
        """
        _, own = np.unique(self.patients, return_inverse=True)
        gained = self._means[place] - self._means[reference]
        return np.bincount(own, gained) / (images or len(own))

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
        return Averaged([(self, column)]).estimates()

    def worst(self, less: bool = False) -> list[Estimate]:
        """Of every candidate the score of the site that it serves worst; `less`: less is better."""
        return self._over_sites(np.nanmax if less else np.nanmin)

    def spread(self) -> list[Estimate]:
        """Of every candidate the best site's score minus the worst's."""
        return self._over_sites(lambda of, axis: np.nanmax(of, axis) - np.nanmin(of, axis))

    def differences(self, column: str, reference: int) -> list[Difference | None]:
        """Every candidate minus the reference; None: the reference itself."""
        return Averaged([(self, column)]).differences(reference)

    def contributions(self, column: str, place: int, reference: int) -> dict[str, Array]:
        """What each patient of each site adds to a difference of means."""
        if column in self.sites:
            return {column: self.sites[column].contributions(place, reference)}
        sizes = {site: len(own.patients) for site, own in self.sites.items()}
        if column == CLIENT_AVERAGE:  # every site counts alike, however few its patients
            sizes = {site: own * len(sizes) for site, own in sizes.items()}
        else:
            sizes = dict.fromkeys(sizes, sum(sizes.values()))
        return {s: own.contributions(place, reference, sizes[s]) for s, own in self.sites.items()}

    @cached_property
    def first_equal(self) -> list[int]:
        """Of every candidate the first that answers every image alike with every seed.

        FedSM's global model is FedAvg's: such twins are one line of a table, and one test.
        """
        values = self._all.values
        return [
            next(first for first, other in enumerate(values) if np.array_equal(one, other))
            for one in values
        ]

    def is_sure_of_nothing(self, column: str) -> bool:
        """Whether the column is one site's, and that has too few patients for an interval."""
        return column in self.sites and len(np.unique(self.sites[column].patients)) < FEWEST

    @cached_property
    def values(self) -> dict[str, Array]:
        """[candidates] of each column."""
        once = {site: np.ones((1, len(own.patients))) for site, own in self.sites.items()}
        return {column: found[0] for column, found in self._measured(once).items()}

    @cached_property
    def draws(self) -> dict[str, Array]:
        """[draws, candidates] of each column, all from the same draws of patients."""
        return self._measured({site: _drawn(site, own) for site, own in self.sites.items()})

    def _over_sites(self, of: Callable[..., Array]) -> list[Estimate]:
        values = of(np.array([self.values[site] for site in self.sites]), axis=0)
        draws = of(np.array([self.draws[site] for site in self.sites]), axis=0)
        return _with_ends(values, draws)

    @cached_property
    def _all(self) -> Images:
        return Images.pooled(list(self.sites.values()))

    def _measured(self, times: dict[str, Array]) -> dict[str, Array]:
        found = {site: own.measured(times[site]) for site, own in self.sites.items()}
        every = self._all.measured(np.concatenate(list(times.values()), axis=1))
        return found | {CLIENT_AVERAGE: _nanmean(list(found.values())), GLOBAL: every}


def first_equal_in(comparisons: Iterable[Compared]) -> list[int]:
    """Of every candidate the first that gives the same answers in all of these."""
    of_each = list(zip(*(compared.first_equal for compared in comparisons), strict=True))
    return [of_each.index(own) for own in of_each]


@dataclass(frozen=True)
class Averaged:
    """The plain mean of single columns of comparisons of the same candidates: of folds, say.

    A site that is in several of them is drawn alike in all, if it has the same patients there.
    """

    parts: Sequence[tuple[Compared, str]]  # and which column of each

    def estimates(self) -> list[Estimate]:
        """Of every candidate, with its interval."""
        return _with_ends(self._values, self._draws, self._is_sure_of_nothing)

    def differences(
        self, reference: int, among: Sequence[int] | None = None
    ) -> list[Difference | None]:
        """Every candidate minus the reference; None: the reference, and who is not `among` them.

        Who gives the same answers as another is tested once, and who gives the reference's is not.
        """
        values, draws = self._values, self._draws
        draws = draws - draws[:, [reference]]
        found = _with_ends(values - values[reference], draws, self._is_sure_of_nothing)
        asked = {*range(len(values))} if among is None else {*among}
        own = self.first_equal[reference]
        others = sorted({self.first_equal[place] for place in asked} - {own})
        tested = [self.tests(place, reference, draws[:, place]) for place in others]
        p, ranks = [list(own) for own in zip(*tested, strict=True)] or [[], []]
        tests = dict(zip(others, zip(p, holm(p), holm(ranks), strict=True), strict=True))
        tests[own] = (1.0, 1.0, 1.0 if self._is_mean else np.nan)
        return [
            Difference(found[place], *tests[first]) if place in asked - {reference} else None
            for place, first in enumerate(self.first_equal)
        ]

    @cached_property
    def first_equal(self) -> list[int]:
        """Of every candidate the first that gives the same answers in all parts."""
        return first_equal_in([part for part, _ in self.parts])

    def tests(self, place: int, reference: int, draws: Array) -> tuple[float, float]:
        """Both p before any correction; `draws` of the difference."""
        if self._is_mean:
            added = self._contributions(place, reference)
            return flipped(added), signed_rank(added)
        beyond = min((draws <= 0).sum(), (draws >= 0).sum())
        return min(1.0, 2 * (float(beyond) + 1) / (len(draws) + 1)), np.nan

    @property
    def _is_mean(self) -> bool:
        return all(own.is_mean for part, _ in self.parts for own in part.sites.values())

    def _contributions(self, place: int, reference: int) -> Array:
        """What each patient adds to the difference, whichever of the parts it is in."""
        added: dict[str, Array] = {}
        for part, column in self.parts:
            for site, own in part.contributions(column, place, reference).items():
                added[site] = added.get(site, np.zeros(1)) + own / len(self.parts)
        return np.concatenate(list(added.values()))

    @cached_property
    def _values(self) -> Array:
        return _nanmean([part.values[column] for part, column in self.parts])

    @cached_property
    def _draws(self) -> Array:
        return _nanmean([part.draws[column] for part, column in self.parts])

    @property
    def _is_sure_of_nothing(self) -> bool:
        return all(part.is_sure_of_nothing(column) for part, column in self.parts)


def _with_ends(values: Array, draws: Array, none: bool = False) -> list[Estimate]:
    with warnings.catch_warnings():  # of a site with one class no draw has an AUC
        warnings.simplefilter("ignore", RuntimeWarning)
        ends = np.nanpercentile(draws, ENDS, axis=0) * (np.nan if none else 1)
    return [Estimate(*map(float, row)) for row in zip(values, *ends, strict=True)]


def _drawn(site: str, images: Images) -> Array:
    """How often each image is drawn with its patient, [draws, images]; for everybody the same."""
    known, place = np.unique(images.patients, return_inverse=True)
    generator = np.random.Generator(np.random.PCG64(derive("patients", site, len(known))))
    times = generator.multinomial(len(known), np.full(len(known), 1 / len(known)), DRAWS)
    return times[:, place].astype(np.float64)


def _nanmean(of_sites: Sequence[Array]) -> Array:
    """The plain mean of those that have a value; nan where none has."""
    stacked = np.array(of_sites)
    there = ~np.isnan(stacked)
    sums, counts = np.where(there, stacked, 0).sum(axis=0), there.sum(axis=0)
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)


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
