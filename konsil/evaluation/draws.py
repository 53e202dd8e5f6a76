"""The same comparison on several draws of who is a test patient: means, intervals, differences.

Draws overlap: a patient who is tested in one trains in another, so that draws agree more than
independent repetitions would. Differences are corrected for that as Nadeau and Bengio do (Inference
for the generalization error, Machine Learning 52, 2003): the variance of the mean of J draws is
taken to be (1/J + n_test/n_train) of the variance between draws, instead of 1/J.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import nan, sqrt

import numpy as np

from konsil.evaluation.statistics import (
    NOTHING,
    Array,
    Compared,
    Difference,
    Estimate,
    first_equal_in,
    holm,
)


@dataclass(frozen=True)
class Redrawn:
    """Several candidates on every draw's test images, of the same sites."""

    draws: Mapping[int, Compared]  # by split seed
    overlap: float  # test images for one that trains: what Nadeau and Bengio correct by

    @property
    def sites(self) -> Sequence[str]:
        """The sites, which every draw has."""
        return list(self._first.sites)

    @property
    def columns(self) -> list[str]:
        """The sites, and both ways to a mean."""
        return self._first.columns

    def estimates(self, column: str) -> list[Estimate]:
        """Of every candidate the mean over draws, with Student's interval over draws."""
        return [student(of_draws) for of_draws in self.of_draws(column)]

    def worst(self, less: bool = False) -> list[Estimate]:
        """Of every candidate the score of whom it serves worst in a draw, the mean over draws."""
        return self._over_sites(np.nanmax if less else np.nanmin)

    def spread(self) -> list[Estimate]:
        """Of every candidate the best site's score minus the worst's, the mean over draws."""
        return self._over_sites(lambda of, axis: np.nanmax(of, axis) - np.nanmin(of, axis))

    def differences(self, column: str, reference: int) -> list[Difference | None]:
        """Every candidate minus the reference, draw by draw; None: the reference itself.

        Who gives the same answers as another is tested once, and who gives the reference's is not.
        """
        gains, own = self.gains(column, reference), self.first_equal[reference]
        others = sorted({*self.first_equal} - {own})
        tested = {place: _tested(gains[place], self.overlap) for place in (*others, own)}
        corrected = dict(zip(others, holm([tested[place][1] for place in others]), strict=True))
        return [
            None
            if place == reference
            else Difference(*tested[first], corrected.get(first, 1.0), nan)
            for place, first in enumerate(self.first_equal)
        ]

    @cached_property
    def first_equal(self) -> list[int]:
        """Of every candidate the first that gives the same answers in all draws."""
        return first_equal_in(self.draws.values())

    def of_draws(self, column: str) -> Array:
        """What every candidate scores in every draw, [candidates, draws]."""
        return np.array([own.values[column] for own in self.draws.values()]).T

    def gains(self, column: str, reference: int) -> Array:
        """By how much every candidate scores more than the reference, [candidates, draws]."""
        values = self.of_draws(column)
        return values - values[[reference]]

    @cached_property
    def _first(self) -> Compared:
        return next(iter(self.draws.values()))

    def _over_sites(self, of: Callable[..., Array]) -> list[Estimate]:
        values = np.array([self.of_draws(site) for site in self.sites])
        return [student(of_draws) for of_draws in of(values, axis=0)]


def student(values: Array, overlap: float = 0.0) -> Estimate:
    """A mean and its 95 % interval by Student's t; without ends of fewer than two values."""
    mean = float(values.mean())
    if len(values) < 2:
        return Estimate(mean, nan, nan)
    from scipy.special import stdtrit

    half = float(stdtrit(len(values) - 1, 0.975)) * _error(values, overlap)
    return Estimate(mean, mean - half, mean + half)


def _error(values: Array, overlap: float) -> float:
    """The standard error of the mean of draws that share patients."""
    return float(values.std(ddof=1)) * sqrt(1 / len(values) + overlap)


def _tested(gained: Array, overlap: float) -> tuple[Estimate, float]:
    """The corrected resampled t-test of what is gained in every draw."""
    estimate, draws = student(gained, overlap), len(gained)
    if draws < 2:
        return estimate, nan
    if abs(estimate.value) < NOTHING:
        return estimate, 1.0
    from scipy.special import stdtr

    error = _error(gained, overlap)
    return estimate, 2 * float(stdtr(draws - 1, -abs(estimate.value) / error)) if error > 0 else 0.0
