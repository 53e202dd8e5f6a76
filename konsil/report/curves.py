"""Against rounds: validation scores, and how far each site keeps to itself (lambda')."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from konsil.colours import FIXED_COLOURS, FURTHER_COLOURS
from konsil.evaluation.results import GLOBAL, Series
from konsil.report.series import YARDSTICK, metric_name
from konsil.report.style import DASHES, new_figure

SELECTOR, LAMBDA = "selector_accuracy", "lambda_prime"  # measures that are no score
Curve = dict[int, list[float]]  # round -> the values of all seeds
Curves = dict[Series, Curve]
Lambdas = dict[str, dict[str, Curve]]  # method -> site -> curve
BESIDE: Any = {
    "loc": "center left",
    "bbox_to_anchor": (1.01, 0.5),
    "title": "at the end",
    "alignment": "left",
}
KEY, MOST_LETTERS = 0.17, 34  # inches and letters a line of the key


def curves_of(results: Sequence[Mapping[str, Any]]) -> Curves:
    """Validation means over all images by method and measure, from the jobs' results."""
    curves: Curves = {}
    for result in results:
        for moment in result["history"]:
            for measure, value in moment["means"].items():
                if measure != LAMBDA:  # which has a picture of its own
                    curve = curves.setdefault(Series(result["method"], measure), {})
                    curve.setdefault(moment["round"], []).append(value)
    return curves


def lambdas_of(results: Sequence[Mapping[str, Any]]) -> Lambdas:
    """The lambda' of every method whose sites find it, from the jobs' results."""
    lambdas: Lambdas = {}
    for result in results:
        for moment in result["history"]:
            for site, measures in moment["sites"].items():
                if LAMBDA in measures:
                    curve = lambdas.setdefault(result["method"], {}).setdefault(site, {})
                    curve.setdefault(moment["round"], []).append(measures[LAMBDA])
    return lambdas


def best_so_far(result: Mapping[str, Any]) -> dict[str, Any]:
    """A job's result with each measure's best until then, which is what checkpoints are."""
    best: dict[str, float] = {}
    history = []
    for moment in result["history"]:
        for measure, value in moment["means"].items():
            best[measure] = max(value, best.get(measure, value))
        history.append(moment | {"means": {m: best[m] for m in moment["means"]}})
    return {**result, "history": history}


def draw_progress(
    results: Sequence[Mapping[str, Any]], metric: str, colours: Mapping[str, str]
) -> Figure:
    """FedSM's Fig. 2: every method against pooled training (dashed), and the best so far."""
    measured = _scores_of(results)
    best = _scores_of([best_so_far(result) for result in results])
    alike = alike_in(measured)
    figure = new_figure(max(5.6, 0.9 + KEY * sum(len(words) for words in alike.values())))
    panels = figure.subplots(2, 1, sharex=True)
    forms = {"round by round": measured, "the best so far": best}
    for axes, (title, curves) in zip(panels, forms.items(), strict=True):
        once = {series: curves[series] for series in alike}
        keys = _draw_lines(axes, once, colours, partial(_with_end, alike), _against)
        axes.set_ylim(*_range(once))
        axes.set_title(f"Validation {metric_name(metric)} (all sites' images), {title}")
    figure.legend(handles=keys, loc="outside right upper", title="best", alignment="left")
    _label_rounds(panels[-1], "round; mean over seeds, and their range")
    return figure


def _scores_of(results: Sequence[Mapping[str, Any]]) -> Curves:
    return {s: c for s, c in curves_of(results).items() if s.role != SELECTOR}


def alike_in(curves: Curves) -> dict[Series, list[str]]:
    """Whom each line stands for, in lines of words: FedSM's global model is FedAvg's."""
    groups: list[list[Series]] = []
    for series, curve in curves.items():
        group = next((one for one in groups if curves[one[0]] == curve), None)
        groups.append([series]) if group is None else group.append(series)
    found = {}
    for group in groups:
        first = next((one for one in group if one.method in FIXED_COLOURS), group[0])
        others = ", ".join(one.name if one.role != first.role else one.method
                           for one in group if one != first)  # fmt: skip
        found[first] = wrap(f"{first.name}, {others}" if others else first.name, MOST_LETTERS)
    return found


def _with_end(alike: Mapping[Series, list[str]], series: Series, end: float) -> str:
    return "\n".join(alike[series]) + f"  {end:.3f}"


def _against(series: Series) -> dict[str, Any]:
    """Pooled training dashed; a model for all thinner than what is made for a site."""
    if series.role == YARDSTICK:
        return {"linestyle": (0, (5, 2)), "linewidth": 2.0, "zorder": 3}
    return {"linewidth": 1.0 if series.role == GLOBAL else 1.8}


def draw_curves(curves: Curves, metric: str, colours: Mapping[str, str]) -> Figure:
    """One line a method and role, mean over seeds; the selector's accuracy below."""
    scores = {s: c for s, c in curves.items() if s.role != SELECTOR}
    selectors = {s: c for s, c in curves.items() if s.role == SELECTOR}
    heights = [3, 1] if selectors else [1]
    figure = new_figure(5.6 if selectors else 4.0)
    panels = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[
        :, 0
    ]
    keys = _draw_lines(panels[0], scores, colours, lambda s, end: f"{s.name}  {end:.3f}")
    panels[0].legend(handles=keys, **BESIDE)
    panels[0].set_ylim(*_range(scores))
    panels[0].set_title(f"Validation {metric_name(metric)} (all sites' images)")
    if selectors:
        keys = _draw_lines(panels[1], selectors, colours, lambda s, end: f"{s.method}  {end:.0%}")
        panels[1].legend(handles=keys, **BESIDE)
        panels[1].set_ylim(0, 1.04)
        panels[1].yaxis.set_major_formatter(PercentFormatter(1.0))
        panels[1].set_title("Selector is right")
    _label_rounds(panels[-1], "round")
    return figure


def draw_lambdas(lambdas: Lambdas, sites: Sequence[str]) -> Figure:
    """One panel a method, one line a site: mean over seeds, and their range."""
    figure = new_figure(0.6 + 2.2 * len(lambdas))
    panels = figure.subplots(len(lambdas), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (method, by_site) in zip(panels, lambdas.items(), strict=True):
        axes.grid(axis="y")
        for number, site in enumerate(s for s in sites if s in by_site):
            colour = FURTHER_COLOURS[number % len(FURTHER_COLOURS)]
            line, end = _draw_line(axes, by_site[site], colour)
            line.set_label(f"{site}  {end:.2f}")
        axes.set_ylim(-0.02, 1.02)
        axes.set_title(f"{method}: how far each site keeps to itself")
        axes.set_ylabel("lambda'")
        axes.legend(**BESIDE)
    _label_rounds(panels[-1], "round; 0 is the mean of all specialists, 1 is training alone")
    return figure


def _draw_lines(
    axes: Axes,
    curves: Curves,
    colours: Mapping[str, str],
    label: Callable[[Series, float], str],
    style: Callable[[Series], dict[str, Any]] = lambda s: {"linestyle": DASHES.get(s.role, "-")},
) -> list[Line2D]:
    """The curves; their key, in the order of their ends."""
    axes.grid(axis="y")
    ends: dict[Line2D, float] = {}
    for number, (series, curve) in enumerate(curves.items()):
        line, end = _draw_line(axes, curve, colours[series.method])
        line.set(**({"linewidth": 1.5} | style(series)))
        # Equal curves (FedSM's global model is FedAvg's) lie on each other: show each.
        followers = list(curves.values())[number + 1 :]
        line.set_linewidth(line.get_linewidth() + 2.0 * followers.count(curve))
        line.set_label(label(series, end))
        ends[line] = end
    return sorted(ends, key=lambda line: -ends[line])


def _draw_line(axes: Axes, curve: Curve, colour: str) -> tuple[Line2D, float]:
    """The mean over seeds against rounds, and behind it their range; and where it ends."""
    rounds = sorted(curve)
    low, mean, high = ([float(f(curve[r])) for r in rounds] for f in (min, np.mean, max))
    if low != high:
        axes.fill_between(rounds, low, high, color=colour, alpha=0.12, linewidth=0)
    (line,) = axes.plot(rounds, mean, color=colour)
    return line, mean[-1]


def _label_rounds(axes: Axes, text: str) -> None:
    axes.set_xlabel(text)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _range(curves: Curves) -> tuple[float, float]:
    """Room for every line from a sixth of the rounds on: the first rounds would hide the rest."""
    last = max(r for curve in curves.values() for r in curve)
    settled = [v for c in curves.values() for r, vs in c.items() if r >= last / 6 for v in vs]
    low, high = min(settled), max(v for c in curves.values() for vs in c.values() for v in vs)
    margin = max(0.01, 0.06 * (high - low))
    return max(0.0, low - margin), min(1.0 + margin / 4, high + margin)
