"""Does joining help us? Every site's test scores, and the gain over going alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from konsil.evaluation.results import CLIENT_AVERAGE, GLOBAL, Series
from konsil.report.series import ALONE, YARDSTICK, Estimate, Estimates, metric_name
from konsil.report.style import FAINT, INK, MARKERS, new_figure

LANE = 0.085  # inches between two methods of a site
MOST_TICKS = 5  # intervals of the gains' axis: their numbers are long
SUMMARIES = {CLIENT_AVERAGE: "client average", GLOBAL: "all images"}


def draw_sites(
    lines: Estimates, sites: Sequence[str], metric: str, colours: Mapping[str, str]
) -> Figure:
    """A band a site with a mark for every method: the score, and beside it the gain."""
    rows = [*sites, *SUMMARIES]
    reference = reference_of(lines)
    figure = new_figure(1.6 + len(rows) * (LANE * len(lines) + 0.16))
    panels = figure.subplots(1, 2 if reference else 1, sharey=True, squeeze=False)[0]
    _draw_marks(panels[0], rows, lines, colours)
    panels[0].set_title(f"Test {metric_name(metric)}")
    panels[0].set_yticks(range(len(rows)), [SUMMARIES.get(row, row) for row in rows])
    if any(len(e.values) > 1 for cells in lines.values() for e in cells.values()):
        panels[0].set_xlabel("mean over seeds; line: lowest to highest seed")
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    if reference:
        gains = gains_over(lines, reference)
        _draw_marks(panels[1], rows, gains, colours)
        panels[1].axvline(0, color=INK, linewidth=1)
        panels[1].xaxis.set_major_locator(MaxNLocator(MOST_TICKS))
        panels[1].xaxis.set_major_formatter(lambda gain, _: f"{gain:+.3g}" if gain else "0")
        panels[1].set_title(f"Gain over {reference.name}")
        panels[1].set_xlabel(f"right of the line: better than {reference.name}")
    keys = [Line2D([], [], label=s.name, **_mark(s, colours)) for s in lines]
    figure.legend(handles=keys, loc="outside lower center", ncols=min(len(lines), 4))
    return figure


def reference_of(lines: Estimates) -> Series | None:
    """What a gain is measured against: training alone, or else FedAvg's kind of model."""
    found = [series for role in (ALONE, GLOBAL) for series in lines if series.role == role]
    return found[0] if found and len(lines) > 1 else None


def gains_over(lines: Estimates, reference: Series) -> Estimates:
    """The difference to the reference seed by seed; the reference itself is left out."""
    base = lines[reference]
    return {
        series: {c: difference(estimate, base[c]) for c, estimate in cells.items() if c in base}
        for series, cells in lines.items()
        if series != reference
    }


def difference(estimate: Estimate, base: Estimate) -> Estimate:
    """Of the seeds that both have; without any, of the means."""
    seeds = [seed for seed in estimate.by_seed if seed in base.by_seed]
    if not seeds:
        return Estimate({0: estimate.mean - base.mean})
    return Estimate({seed: estimate.by_seed[seed] - base.by_seed[seed] for seed in seeds})


def _draw_marks(
    axes: Axes, rows: Sequence[str], lines: Estimates, colours: Mapping[str, str]
) -> None:
    axes.grid(axis="x")
    axes.tick_params(axis="y", length=0)
    for place in range(0, len(rows), 2):
        axes.axhspan(place - 0.5, place + 0.5, color="#F5F5F5", zorder=0)
    axes.axhline(len(rows) - len(SUMMARIES) - 0.5, color=FAINT, linewidth=0.8)
    for lane, (series, cells) in enumerate(lines.items()):
        shift = 0.8 * ((lane + 0.5) / len(lines) - 0.5)
        mark = _mark(series, colours)
        for place, row in enumerate(rows):
            if row in cells:
                height, values = place + shift, cells[row].values
                if min(values) < max(values):
                    ends, colour = [min(values), max(values)], mark["color"]
                    axes.plot(ends, [height, height], color=colour, linewidth=1, alpha=0.5)
                axes.plot([cells[row].mean], [height], **mark)


def _mark(series: Series, colours: Mapping[str, str]) -> dict[str, Any]:
    thin = series.role in (ALONE, YARDSTICK)  # a stroke, no area
    return {
        "color": colours[series.method],
        "marker": MARKERS.get(series.role, "o"),
        "markersize": 7 if thin else 5,
        "markeredgewidth": 2.2 if thin else 1.2,
        # hollow: the one model for all; filled: the answer that is made for the site
        "markerfacecolor": "white" if series.role == GLOBAL else None,
        "linestyle": "none",
    }
