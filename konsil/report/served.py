"""The first picture: what each hospital gets alone, from one model for all, by joining, pooled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan

from matplotlib.figure import Figure

from konsil.colours import FIXED_COLOURS, FURTHER_COLOURS
from konsil.evaluation.statistics import Estimate
from konsil.report.gains import Known, Shown, shown_in
from konsil.report.style import INK, new_figure

ROOM = 0.02  # of the scale, beyond the outermost interval
LANE = 0.16  # inches between two marks of a hospital
ON_A_PAGE = "var(--ink)"  # who pools images is drawn in ink, which is light on a dark screen


@dataclass(frozen=True)
class Bar:
    """A candidate's mark at one hospital, in per cent of the scale."""

    words: str
    colour: str
    place: float
    low: float
    width: float
    text: str


class Served:
    """Everybody in the first picture, at every hospital."""

    def __init__(self, known: Known) -> None:
        self.shown = shown_in(known)
        self._known = known.only([one.place for one in self.shown])
        self.colours = _colours(self.shown)
        self._estimates = {
            site: [self._known.estimate(k, site) for k in range(len(self.shown))]
            for site in known.sites
        }

    @property
    def scale(self) -> tuple[float, float]:
        """From the lowest end of an interval to the highest, with a little room."""
        ends = [end for of in self._estimates.values() for one in of for end in _ends(one)]
        low, high = min(ends, default=0.0), max(ends, default=1.0)
        room = max(ROOM * (high - low), 1e-3)
        return low - room, high + room

    @property
    def bars(self) -> dict[str, list[Bar]]:
        """A hospital's marks, one a candidate; hospitals in the order of the federation."""
        low, high = self.scale
        bars: dict[str, list[Bar]] = {}
        for site, estimates in self._estimates.items():
            for one, estimate in zip(self.shown, estimates, strict=True):
                if ends := _ends(estimate):
                    begin, place, end = (
                        100 * (value - low) / (high - low)
                        for value in (min(ends), estimate.value, max(ends))
                    )
                    text, colour = in_words(one.words, estimate), self.colours[one.words]
                    bar = Bar(one.words, colour, place, begin, end - begin, text)
                    bars.setdefault(site, []).append(bar)
        return bars

    def draw(self, metric: str) -> Figure:
        """The same for papers and talks."""
        lanes = len(self.shown)
        figure = new_figure(1.2 + len(self._estimates) * (LANE * lanes + 0.18))
        axes = figure.subplots()
        axes.grid(axis="x")
        for row, estimates in enumerate(self._estimates.values()):
            for lane, (one, estimate) in enumerate(zip(self.shown, estimates, strict=True)):
                height = row + 0.8 * ((lane + 0.5) / lanes - 0.5)
                colour = self.colours[one.words].replace(ON_A_PAGE, INK)
                axes.plot(_ends(estimate)[1:], [height] * (len(_ends(estimate)) - 1), color=colour)
                label = one.words if row == 0 else None
                axes.plot([estimate.value], [height], "o", color=colour, label=label)
        axes.set_yticks(range(len(self._estimates)), list(self._estimates))
        axes.set_ylim(len(self._estimates) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.set_title(f"{metric} of each hospital's test images, 95 % intervals over patients")
        figure.legend(loc="outside lower center", ncols=2)
        return figure


def in_words(who: str, estimate: Estimate) -> str:
    """Who scores what, and between which ends."""
    ends = f", 95 %: {estimate.low:.3f} to {estimate.high:.3f}" if len(_ends(estimate)) > 1 else ""
    return f"{who}: {estimate.value:.3f}{ends}"


def _colours(shown: Sequence[Shown]) -> Mapping[str, str]:
    further = iter(FURTHER_COLOURS)
    found: dict[str, str] = {}
    for one in shown:
        own = ON_A_PAGE if one.method == "centralized" else FIXED_COLOURS.get(one.method)
        taken = own is None or own in found.values()
        found[one.words] = next(further) if taken or own is None else own
    return found


def _ends(estimate: Estimate) -> list[float]:
    """The number, and where they are known both ends of its interval."""
    return [number for number in estimate if not isnan(number)]
