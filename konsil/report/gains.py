"""Does joining help this hospital? The answer in words, and what the first picture shows.

Where single images' scores are known a gain has an interval and a test. Of a hospital whose policy
lets only means out its gain is known, and not how sure it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan, nan
from statistics import mean

from konsil.evaluation.comparison import Comparison
from konsil.evaluation.results import CLIENT_AVERAGE, GLOBAL, Row, Series
from konsil.evaluation.statistics import LEVEL, Compared, Estimate, Images, holm
from konsil.report.series import ALONE, YARDSTICK, estimates_of

# Whose answer a hospital that joins gets, the best first, and how that is called.
ROLES = {
    "super": "the super model ({})",
    "personal": "the hospitals' own models ({})",
    GLOBAL: "one model for all ({})",
}
PLAIN = ("fedsm", "fedavg")  # of several methods with a role the one that is shown first
POINTS = 100  # of a score
MEAN = "the mean of the hospitals"


@dataclass(frozen=True)
class Known:
    """What is known of everybody's scores: of single images where hospitals tell them, or means."""

    sites: Sequence[str]
    candidates: Sequence[Series]
    found: Comparison | None
    means: Mapping[Series, Mapping[str, float]]  # over seeds, of hospitals that tell no more

    @classmethod
    def of(cls, found: Comparison) -> Known:
        """Where every hospital tells single images' scores."""
        return cls(list(found.compared.sites), found.candidates, found, {})

    @classmethod
    def with_means(
        cls, sites: Sequence[str], found: Comparison | None, rows: Sequence[Row], metric: str
    ) -> Known:
        """The hospitals of the federation in its order; `rows`: the results."""
        lines = estimates_of(rows, metric, "test", sites)
        means = {series: {s: e.mean for s, e in cells.items()} for series, cells in lines.items()}
        candidates = found.candidates if found else list(means)
        there = {*_told(found), *(site for cells in means.values() for site in cells)}
        return cls([site for site in sites if site in there], candidates, found, means)

    @property
    def silent(self) -> list[str]:
        """Hospitals that let only means out."""
        return [site for site in self.sites if site not in _told(self.found)]

    def estimate(self, place: int, site: str) -> Estimate:
        """Of a candidate at a hospital; without ends where only the mean is known."""
        if self.found is not None and site in self.found.compared.sites:
            return self.found.compared.estimates(site)[place]
        return Estimate(self.means.get(self.candidates[place], {}).get(site, nan), nan, nan)

    def only(self, places: Sequence[int]) -> Known:
        """These candidates alone: nobody else's intervals are computed."""
        chosen = [self.candidates[place] for place in places]
        found = self.found
        if found is not None:
            sites = {
                site: Images(own.patients, [own.values[place] for place in places], own.ill)
                for site, own in _told(found).items()
            }
            found = Comparison(chosen, found.seeds, Compared(sites), found.images, found.patients)
        return Known(self.sites, chosen, found, self.means)


def _told(found: Comparison | None) -> Mapping[str, Images]:
    if found is None or not isinstance(found.compared, Compared):  # no page is about several draws
        return {}
    return found.compared.sites


@dataclass(frozen=True)
class Shown:
    """A candidate in the first picture, by the name that a hospital understands."""

    words: str
    method: str
    place: int


@dataclass(frozen=True)
class Gain:
    """What joining changes for one hospital."""

    site: str
    estimate: Estimate  # of the difference
    p: float  # corrected by Holm for all hospitals; nan: only means are known

    @property
    def is_tested(self) -> bool:
        """Whether single images' scores are known."""
        return not isnan(self.p)

    @property
    def found(self) -> bool:
        """Whether it is called a difference."""
        return self.p < LEVEL

    @property
    def words(self) -> str:
        """What joining changes here, in points, and whether that is found."""
        value, low, high = _points(self.estimate)
        if not self.is_tested:
            return f"{self.site}: {value:+.1f} points by its means; how sure that is, is not known"
        ends = f" (95 %: {low:+.1f} to {high:+.1f})" if low == low else ""
        if not self.found:
            return f"{self.site}: no difference found, {value:+.1f} points{ends}"
        gains = "gains" if value > 0 else "loses"
        return f"{self.site} {gains} {abs(value):.1f} points{ends}"


@dataclass(frozen=True)
class Answer:
    """Whether joining helps, and on what that rests."""

    joined: Shown
    base: Shown
    gains: Sequence[Gain]
    mean: Gain  # of the mean of the hospitals
    worst: tuple[str, float]  # the hospital that whoever joins serves worst, and its score
    worst_before: tuple[str, float]
    behind: Gain | None = None  # whoever joins minus pooled images, in the mean of the hospitals

    @property
    def tested(self) -> list[Gain]:
        """Hospitals whose single images' scores are known."""
        return [gain for gain in self.gains if gain.is_tested]

    @property
    def better(self) -> list[Gain]:
        """Hospitals that are served better."""
        return [gain for gain in self.tested if gain.found and gain.estimate.value > 0]

    @property
    def worse(self) -> list[Gain]:
        """Hospitals that are served worse."""
        return [gain for gain in self.tested if gain.found and gain.estimate.value < 0]

    @property
    def count(self) -> str:
        """How many of how many are better off; by means alone where nothing else is known."""
        if self.tested:
            return f"{len(self.better)} of {len(self.tested)}"
        return f"{sum(gain.estimate.value > 0 for gain in self.gains)} of {len(self.gains)}"

    @property
    def headline(self) -> str:
        """What follows the number of those who are served better."""
        than = f"are served better by {self.joined.words} than by {self.base.words}"
        return f"hospitals {than}{'' if self.tested else ', by their means alone'}"

    def sentences(self) -> Iterator[str]:
        """What else there is to say, for all hospitals together."""
        if self.tested:
            undecided = len(self.tested) - len(self.better) - len(self.worse)
            said = [f"{len(self.worse)} served worse" if self.worse else "None is served worse"]
            said += [f"at {undecided} no difference was found"] if undecided else []
            yield f"{'; '.join(said)}. {_sentence(self.mean.words)}"
        else:
            yield (
                f"{_sentence(self.mean.words)} The hospitals tell no single images' scores here, "
                "so that nobody can say which of these differences are luck."
            )
        if self.behind is not None:
            yield f"{_sentence(self.joined.words + _behind(self.behind))}"
        yield (
            f"Served worst: {self.worst[0]} ({self.worst[1]:.3f}) by {self.joined.words}, "
            f"{self.worst_before[0]} ({self.worst_before[1]:.3f}) by {self.base.words}."
        )


def _points(estimate: Estimate) -> list[float]:
    """To a tenth, and never -0."""
    return [round(POINTS * number, 1) + 0.0 for number in estimate]


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _behind(gain: Gain) -> str:
    """How far whoever joins is from pooled images."""
    value, low, high = _points(gain.estimate)
    ends = f" (95 %: {low:+.1f} to {high:+.1f})" if low == low else ""
    where = "ahead of" if value > 0 else "behind"
    said = f" is {abs(value):.1f} points {where} pooling all images in the mean{ends}"
    return said + (": no difference found" if gain.is_tested and not gain.found else "")


def shown_in(known: Known) -> list[Shown]:
    """Who is in the first picture: alone, a model for all, who joins, and pooled images."""
    places = {one: place for place, one in enumerate(known.candidates)}

    def first(role: str) -> Series | None:
        of_role = [one for one in places if one.role == role]
        usual = [one for name in PLAIN for one in of_role if one.method == name]
        return next(iter([*usual, *of_role]), None)

    for_all = next((one for one in places if one == ("fedavg", GLOBAL)), first(GLOBAL))
    joined = next((one for role in ROLES if (one := first(role))), None)
    named = [(first(ALONE), "training alone"), (for_all, ROLES[GLOBAL])]
    named += [(joined, ROLES[joined.role])] if joined else []
    named += [(first(YARDSTICK), "pooled images, which hospitals cannot do")]
    chosen = [(one, words) for one, words in named if one is not None]
    unique = dict(reversed(chosen))  # of one who is two of them the first name
    return [
        Shown(unique[one].format(one.method), one.method, places[one])
        for one in dict.fromkeys(one for one, _ in chosen)
    ]


def answer(known: Known) -> Answer | None:
    """Who joins against who stays alone, or against the one model for all; None: nobody to hold."""
    shown = shown_in(known)
    few = known.only([one.place for one in shown])
    roles = {few.candidates[k].role: k for k in reversed(range(len(shown)))}
    joined = next((roles[role] for role in ROLES if role in roles), None)
    base = next((roles[role] for role in (ALONE, GLOBAL) if role in roles), None)
    if joined is None or base is None or joined == base:
        return None
    pair = few.only([base, joined])
    gains = _corrected([_gain(pair, site) for site in known.sites])
    pooled = roles.get(YARDSTICK)
    return Answer(
        shown[joined],
        shown[base],
        [gain for gain in gains if not isnan(gain.estimate.value)],
        _of_mean(pair),
        worst_of(few, joined),
        worst_of(few, base),
        None if pooled is None else _of_mean(few.only([pooled, joined])),
    )


def _gain(pair: Known, site: str) -> Gain:
    """The second minus the first, before any correction."""
    if site in pair.silent or pair.found is None:
        value = pair.estimate(1, site).value - pair.estimate(0, site).value
        return Gain(site, Estimate(value, nan, nan), nan)
    difference = pair.found.compared.differences(site, 0)[1]
    assert difference is not None  # only of the reference itself there is none
    return Gain(site, difference.estimate, difference.p)


def _corrected(gains: Sequence[Gain]) -> list[Gain]:
    """By Holm, for all hospitals that are tested."""
    p = iter(holm([gain.p for gain in gains if gain.is_tested]))
    return [replace(gain, p=next(p)) if gain.is_tested else gain for gain in gains]


def _of_mean(pair: Known) -> Gain:
    """In the mean of all hospitals; tested where all tell single images' scores."""
    if not pair.silent:
        return replace(_gain(pair, CLIENT_AVERAGE), site=MEAN)
    values = [pair.estimate(1, site).value - pair.estimate(0, site).value for site in pair.sites]
    there = [value for value in values if not isnan(value)]
    return Gain(MEAN, Estimate(mean(there) if there else nan, nan, nan), nan)


def worst_of(known: Known, place: int) -> tuple[str, float]:
    """The hospital that a candidate serves worst, and its score."""
    scores = {site: known.estimate(place, site).value for site in known.sites}
    there = {site: score for site, score in scores.items() if not isnan(score)} or {"": nan}
    site = min(there, key=there.__getitem__)
    return site, there[site]
