"""Does a super model serve a hospital that took no part as well as its own hospitals?

Its folder tells what it scores on the test images of its own hospitals, with their intervals. The
patients are others, so that nothing is paired: the difference between the new hospital's score and
the mean of the model's own has the interval that follows from theirs (MOVER, Zou and Donner,
Statistics in Medicine 2008), each hospital counting alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import hypot, isnan, nan

from konsil.evaluation.foreign import SUPER
from konsil.evaluation.statistics import Estimate
from konsil.supermodel import GLOBAL, Facts
from konsil.supermodel.predict import AUTO

# what a run calls the answers that one gets by asking so: the first that its folder has scores of
ROLES = {AUTO: (SUPER, GLOBAL, "personal", "local", "centralized"),
         GLOBAL: (GLOBAL, "centralized")}  # fmt: skip
OF_ONE = ("personal", "local")  # a hospital's own model
BETTER, WORSE, ALIKE, UNKNOWN = "better", "worse", "no difference found", "nobody can say"


@dataclass(frozen=True)
class Standing:
    """A hospital's score beside those of the model's own hospitals."""

    here: Estimate
    hospitals: Mapping[str, Estimate]

    @property
    def mean(self) -> Estimate:
        """Of the model's own hospitals, each counting alike."""
        number = len(self.hospitals)
        value = sum(one.value for one in self.hospitals.values()) / number
        below = hypot(*(one.value - one.low for one in self.hospitals.values())) / number
        above = hypot(*(one.high - one.value for one in self.hospitals.values())) / number
        return Estimate(value, value - below, value + above)

    @property
    def difference(self) -> Estimate:
        """The score here minus that mean."""
        here, mean = self.here, self.mean
        value = here.value - mean.value
        low = value - hypot(here.value - here.low, mean.high - mean.value)
        return Estimate(value, low, value + hypot(here.high - here.value, mean.value - mean.low))

    @property
    def verdict(self) -> str:
        """In words: better or worse than its own hospitals, or that no difference was found."""
        found = self.difference
        if isnan(found.low) or isnan(found.high):
            return UNKNOWN
        return BETTER if found.low > 0 else WORSE if found.high < 0 else ALIKE

    @property
    def worst(self) -> str:
        """The own hospital that is served worst."""
        return min(self.hospitals, key=lambda site: self.hospitals[site].value)

    @property
    def best(self) -> str:
        """The own hospital that is served best."""
        return max(self.hospitals, key=lambda site: self.hospitals[site].value)


def standing(facts: Facts, ask: str, metric: str, here: Estimate) -> Standing | None:
    """None if the model's folder does not say what its own hospitals have."""
    told, ends = facts.scores.get("test", {}), facts.intervals.get("test", {})
    role = next((role for role in ROLES.get(ask, OF_ONE) if role in told), None)
    if role is None:
        return None
    found = {
        site: Estimate(scores[metric], *ends.get(role, {}).get(site, {}).get(metric, (nan, nan)))
        for site, scores in told[role].items()
        if metric in scores
    }
    return Standing(here, found) if found else None
