"""Does joining help this hospital? The answer in words, and what the first picture shows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from konsil.evaluation.comparison import Comparison
from konsil.evaluation.results import CLIENT_AVERAGE, GLOBAL
from konsil.evaluation.statistics import LEVEL, Estimate, holm
from konsil.report.compare import worst_site
from konsil.report.series import ALONE, YARDSTICK

# Whose answer a hospital that joins gets, the best first, and how that is called.
ROLES = {
    "super": "the super model ({})",
    "personal": "the hospitals' own models ({})",
    GLOBAL: "one model for all ({})",
}
POINTS = 100  # of a score


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
    p: float  # corrected by Holm for all hospitals

    @property
    def found(self) -> bool:
        """Whether it is called a difference."""
        return self.p < LEVEL

    @property
    def words(self) -> str:
        """What joining changes here, in points, and whether that is found."""
        value, low, high = (POINTS * number for number in self.estimate)
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

    @property
    def better(self) -> list[Gain]:
        """Hospitals that are served better."""
        return [gain for gain in self.gains if gain.found and gain.estimate.value > 0]

    @property
    def worse(self) -> list[Gain]:
        """Hospitals that are served worse."""
        return [gain for gain in self.gains if gain.found and gain.estimate.value < 0]

    @property
    def headline(self) -> str:
        """What follows the number of those who are served better."""
        return f"hospitals are served better by {self.joined.words} than by {self.base.words}"

    def sentences(self) -> Iterator[str]:
        """What else there is to say, for all hospitals together."""
        undecided = len(self.gains) - len(self.better) - len(self.worse)
        said = [f"{len(self.worse)} served worse" if self.worse else "None is served worse"]
        said += [f"at {undecided} no difference was found"] if undecided else []
        yield f"{'; '.join(said)}. {self.mean.words[0].upper()}{self.mean.words[1:]}."
        yield (
            f"Served worst: {self.worst[0]} ({self.worst[1]:.3f}) by {self.joined.words}, "
            f"{self.worst_before[0]} ({self.worst_before[1]:.3f}) by {self.base.words}."
        )


def shown_in(found: Comparison) -> list[Shown]:
    """Who is in the first picture: alone, a model for all, who joins, and pooled images."""
    places = {one: place for place, one in enumerate(found.candidates)}
    alone = next((one for one in places if one.role == ALONE), None)
    everybody = [one for one in places if one.role == GLOBAL]
    for_all = next((one for one in everybody if one.method == "fedavg"), None)
    for_all = for_all or next(iter(everybody), None)
    joined = next((one for role in ROLES for one in places if one.role == role), None)
    pooled = next((one for one in places if one.role == YARDSTICK), None)
    named = [(alone, "training alone"), (for_all, ROLES[GLOBAL])]
    named += [(joined, ROLES[joined.role])] if joined else []
    named += [(pooled, "pooled images, which hospitals cannot do")]
    chosen = [(one, words) for one, words in named if one is not None]
    unique = dict(reversed(chosen))  # of one who is two of them the first name
    return [
        Shown(unique[one].format(one.method), one.method, places[one])
        for one in dict.fromkeys(one for one, _ in chosen)
    ]


def answer(found: Comparison) -> Answer | None:
    """Who joins against who stays alone, or against the one model for all; None: nobody to hold."""
    shown = {found.candidates[one.place]: one for one in shown_in(found)}
    hold = [one for one in shown if one.role != YARDSTICK]
    joined = next((one for role in ROLES for one in hold if one.role == role), None)
    base = next((one for role in (ALONE, GLOBAL) for one in hold if one.role == role), None)
    if joined is None or base is None or joined == base:
        return None
    place, reference = shown[joined].place, shown[base].place
    differences = {
        site: found.compared.differences(site, reference)[place] for site in found.compared.sites
    }
    known = {site: one for site, one in differences.items() if one is not None}
    corrected = holm([one.p for one in known.values()])
    gains = [
        Gain(site, one.estimate, p) for (site, one), p in zip(known.items(), corrected, strict=True)
    ]
    average = found.compared.differences(CLIENT_AVERAGE, reference)[place]
    assert average is not None  # only of the reference itself there is none
    mean = Gain("the mean of the hospitals", average.estimate, average.p)
    worst = worst_site(found, place), worst_site(found, reference)
    return Answer(shown[joined], shown[base], gains, mean, *worst)
