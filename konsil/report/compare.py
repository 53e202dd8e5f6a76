"""What `konsil compare` prints: everybody's scores with intervals, and who is better than whom."""

import json
from collections.abc import Iterator, Sequence
from math import isnan, nan
from typing import Any, Protocol

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from konsil.evaluation.comparison import Comparison
from konsil.evaluation.draws import Redrawn
from konsil.evaluation.results import CLIENT_AVERAGE, GLOBAL, Series
from konsil.evaluation.statistics import DRAWS, Compared, Difference, Estimate
from konsil.report.series import ALONE, YARDSTICK, metric_name
from konsil.report.show import NARROWEST_NUMBER
from konsil.report.tables import new_table

MEANS = {CLIENT_AVERAGE: "client average", GLOBAL: "all images"}
WORST, SPREAD = "worst site", "spread"
SAME = "no difference found"


def print_comparison(
    console: Console, found: Comparison, metric: str, less: bool, against: str | None, column: str
) -> None:
    """All tables, and what must be known to read them. `less`: of this metric less is better."""
    reference = found.place(against) if against else reference_of(found)
    console.print(scores_table(found, metric, less))
    console.print(means_table(found, metric, less))
    if len(found.candidates) > 1:
        console.print(differences_table(found, metric, less, reference, column))
        if isinstance(found.compared, Redrawn):
            console.print(draws_table(found, found.compared, metric, reference, column))
    for line in notes(found, column):
        console.print(line, highlight=False, soft_wrap=True)


class Candidates(Protocol):
    """Whoever are compared, from whatever numbers."""

    @property
    def candidates(self) -> Sequence[Series]:
        """A line of a table each, in their order."""
        ...


def reference_of(found: Candidates) -> int:
    """What a gain is measured against: training alone, or else a model for all, or the first."""
    for role in (ALONE, GLOBAL):
        for place, one in enumerate(found.candidates):
            if one.role == role:
                return place
    return 0


def scores_table(found: Comparison, metric: str, less: bool) -> Table:
    """A line a candidate, a column a site; with six sites it fits into 80 columns."""
    compared, words = found.compared, ", less is better" if less else ""
    table = new_table(f"{metric_name(metric)} of test images{words}", "method")
    numbers = {column: compared.estimates(column) for column in compared.columns}
    for column in numbers:
        title = escape(MEANS.get(column, column))  # long names are folded, numbers never
        table.add_column(title, justify="right", overflow="fold", min_width=NARROWEST_NUMBER)
    for place, one in found.distinct():
        table.add_row(escape(one.name), *(_number(of[place].value) for of in numbers.values()))
    table.caption = escape("; ".join(_twins(found)))
    return table


def _twins(found: Comparison) -> Iterator[str]:
    """Whose answers are the same to every image, so that one line speaks for all of them."""
    for place, one in found.distinct():
        if twins := found.twins(place):
            yield f"{one.name}: also {', '.join(twin.name for twin in twins)} (the same answers)"


def means_table(found: Comparison, metric: str, less: bool) -> Table:
    """A line a candidate: both means with their intervals, who is served worst, the spread."""
    compared = found.compared
    table = new_table(f"{metric_name(metric)}: means with 95 % intervals", "method")
    for title in (*MEANS.values(), WORST, SPREAD):
        table.add_column(title, justify="right", overflow="fold")
    numbers = [*(compared.estimates(column) for column in MEANS), compared.spread()]
    for place, one in found.distinct():
        average, every, spread = (of[place] for of in numbers)
        site, score = worst_site(found, place, less)
        cells = (with_interval(average), with_interval(every), f"{_number(score)} {escape(site)}")
        table.add_row(escape(one.name), *cells, _number(spread.value))
    return table


def worst_site(found: Comparison, place: int, less: bool = False) -> tuple[str, float]:
    """The hospital that a candidate serves worst, and its score."""
    scores = {site: found.compared.estimates(site)[place].value for site in found.compared.sites}
    known = {site: score for site, score in scores.items() if not isnan(score)} or {"": nan}
    site = (max if less else min)(known, key=known.__getitem__)
    return site, known[site]


def differences_table(
    found: Comparison, metric: str, less: bool, reference: int, column: str
) -> Table:
    """Everybody minus the reference on the same images, and what a test says of it."""
    than = found.candidates[reference].name
    table = new_table(
        f"{metric_name(metric)} minus that of {than}: {MEANS.get(column, column)}", ""
    )
    differences = found.compared.differences(column, reference)
    ranked = any(not isnan(one.ranks) for one in differences if one is not None)
    for title in ("by", "95 % interval", "p", *(["Wilcoxon"] if ranked else [])):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", no_wrap=False)
    for place, one in found.distinct():
        difference = differences[place]
        if difference is not None and found.compared.first_equal[reference] != place:
            cells = _of(difference)[: None if ranked else -1]
            table.add_row(escape(one.name), *cells, verdict(difference, less))
    return table


def draws_table(
    found: Comparison, redrawn: Redrawn, metric: str, reference: int, column: str
) -> Table:
    """Everybody minus the reference in each draw of the splits."""
    than = found.candidates[reference].name
    where = MEANS.get(column, column)
    table = new_table(f"{metric_name(metric)} minus that of {than} in each draw: {where}", "")
    for seed in redrawn.draws:
        table.add_column(f"split {seed}", justify="right", no_wrap=True)
    gains = redrawn.gains(column, reference)
    for place, one in found.distinct():
        if place != redrawn.first_equal[reference]:
            table.add_row(escape(one.name), *(f"{gained:+.3f}" for gained in gains[place]))
    return table


def verdict(difference: Difference, less: bool) -> str:
    """In words: better, worse, or that nothing was found."""
    if not difference.found:
        return SAME
    return "better" if (difference.estimate.value < 0) is less else "worse"


def notes(found: Comparison, column: str) -> Iterator[str]:
    """What the intervals are about, whom they leave out, and what the test is."""
    if isinstance(found.compared, Redrawn):
        yield from _notes_on_draws(found, found.compared)
    else:
        yield from _notes_on_patients(found, found.compared, column)
    if any(one.role == YARDSTICK for one in found.candidates):
        yield f"{YARDSTICK} pools the images, which hospitals cannot do."


def _notes_on_draws(found: Comparison, redrawn: Redrawn) -> Iterator[str]:
    seeds = ", ".join(map(str, redrawn.draws))
    yield (
        f"means over {len(redrawn.draws)} draws of who is a test patient (split seeds {seeds}), "
        f"{found.images} test images of {len(redrawn.sites)} sites in all, mean over "
        f"{_of_seeds(found)}; intervals of numbers: 95 %, Student's over draws."
    )
    yield (
        "Draws share patients and are no independent repetitions: of differences interval and p "
        f"(Holm's, for all lines) are corrected by {redrawn.overlap:.2f} test images for one that "
        "trains (Nadeau and Bengio 2003); a p below .05 is a difference."
    )


def _of_seeds(found: Comparison) -> str:
    seeds = sorted({len(own) for own in found.seeds.values()})
    return f"{' or '.join(map(str, seeds))} seed{'s' if seeds != [1] else ''}"


def _notes_on_patients(found: Comparison, compared: Compared, column: str) -> Iterator[str]:
    who = f"{found.patients} patients"
    if found.patients in (0, found.images):
        who = "images (of no two is known that they are of one patient)"
    yield (
        f"{found.images} test images of {len(compared.sites)} sites, mean over {_of_seeds(found)}; "
        f"intervals: 95 %, bootstrap over {who}, {DRAWS} draws; they say nothing of other seeds."
    )
    own = compared.sites.get(column, next(iter(compared.sites.values())))
    test = "flipped signs of what patients add to it" if own.is_mean else "draws beyond 0"
    yield (
        f"p: whether the difference could be luck, by {test}; Wilcoxon: whether most patients "
        "gain (or lose), however little. Both are corrected by Holm for all lines of the table; "
        "a p below .05 is a difference."
    )


def as_json(found: Comparison, against: str | None, less: bool) -> str:
    """Every number, for machines; nan, which JSON does not have, is null."""
    compared = found.compared
    reference = found.place(against) if against else reference_of(found)
    numbers = {column: compared.estimates(column) for column in compared.columns}
    numbers |= {WORST: compared.worst(less), SPREAD: compared.spread()}
    gains = {column: compared.differences(column, reference) for column in compared.columns}
    lines = [
        {
            "method": one.method,
            "role": one.role,
            "same_as": found.candidates[compared.first_equal[place]].name,
            "seeds": list(found.seeds[one]),
            "scores": {column: as_numbers(of[place]) for column, of in numbers.items()},
            "gains": {
                column: as_numbers(gain.estimate)
                | tests_of(gain)
                | _each(compared, column, reference, place)
                for column, of in gains.items()
                if (gain := of[place]) is not None
            },
        }
        for place, one in enumerate(found.candidates)
    ]
    facts: dict[str, Any] = {"images": found.images, "patients": found.patients or None}
    if isinstance(compared, Redrawn):
        facts["split_seeds"] = list(compared.draws)
    against = found.candidates[reference].name
    return json.dumps(facts | {"against": against, "compared": lines}, indent=1)


def tests_of(gain: Difference) -> dict[str, float | None]:
    """The tests of a difference, for machines."""
    tests = {"p": gain.p, "holm": gain.corrected, "wilcoxon_holm": gain.ranks}
    return {name: None if isnan(p) else p for name, p in tests.items()}


def _each(
    compared: Compared | Redrawn, column: str, reference: int, place: int
) -> dict[str, list[float | None]]:
    """The difference in each draw of the splits, where there are several."""
    if isinstance(compared, Compared):
        return {}
    gained = compared.gains(column, reference)[place].tolist()
    return {"draws": [None if isnan(one) else one for one in gained]}


def as_numbers(estimate: Estimate) -> dict[str, float | None]:
    """A number and the ends of its interval, for machines."""
    return {k: None if isnan(v) else v for k, v in estimate._asdict().items()}


def _number(value: float) -> str:
    return "–" if isnan(value) else f"{value:.3f}"


def with_interval(estimate: Estimate) -> str:
    """A number and its interval, for people."""
    if not _has_ends(estimate):
        return _number(estimate.value)
    ends = (f"{end:.3f}".removeprefix("0") for end in (estimate.low, estimate.high))
    return f"{estimate.value:.3f} ({'–'.join(ends)})"


def _of(difference: Difference) -> Sequence[str]:
    value, low, high = difference.estimate
    ends = f"{low:+.3f} to {high:+.3f}" if _has_ends(difference.estimate) else ""
    tests = ("" if isnan(p) else f"{p:.2g}" for p in (difference.corrected, difference.ranks))
    return f"{value:+.3f}", ends, *tests


def _has_ends(estimate: Estimate) -> bool:
    return not isnan(estimate.low)
