"""Validation score against rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from konsil.report.lambdas import LAMBDA
from konsil.report.series import Series, metric_name
from konsil.report.style import DASHES, draw_rounds, new_figure

SELECTOR = "selector_accuracy"
Curves = dict[Series, dict[int, list[float]]]  # round -> the values of all seeds


def curves_of(results: Sequence[Mapping[str, Any]]) -> Curves:
    """Validation means over all images by method and measure, from the jobs' results."""
    curves: Curves = {}
    for result in results:
        for moment in result["history"]:
            for measure, value in moment["means"].items():
                if measure == LAMBDA:  # no score: it has a picture of its own
                    continue
                rounds = curves.setdefault(Series(result["method"], measure), {})
                rounds.setdefault(moment["round"], []).append(value)
    return curves


def draw_curves(curves: Curves, metric: str, colours: Mapping[str, str]) -> Figure:
    """One line a method and role, mean over seeds; the selector's accuracy below."""
    scores = {s: c for s, c in curves.items() if s.role != SELECTOR}
    selectors = {s: c for s, c in curves.items() if s.role == SELECTOR}
    figure = new_figure(5.6 if selectors else 4.0)
    panels = figure.subplots(
        2 if selectors else 1,
        1,
        sharex=True,
        squeeze=False,
        height_ratios=[3, 1] if selectors else None,
    )[:, 0]
    _draw_lines(panels[0], scores, colours, lambda s, end: f"{s.name}  {end:.3f}")
    panels[0].set_ylim(*_range(scores))
    panels[0].set_title(f"Validation {metric_name(metric)} (all sites' images)")
    if selectors:
        _draw_lines(panels[1], selectors, colours, lambda s, end: f"{s.method}  {end:.0%}")
        panels[1].set_ylim(0, 1.04)
        panels[1].yaxis.set_major_formatter(PercentFormatter(1.0))
        panels[1].set_title("Selector is right")
    panels[-1].set_xlabel("round")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _draw_lines(
    axes: Axes, curves: Curves, colours: Mapping[str, str], label: Callable[[Series, float], str]
) -> None:
    """Curves with a key in the order of their ends."""
    axes.grid(axis="y")
    ends: dict[Line2D, tuple[float, str]] = {}
    for series, curve in curves.items():
        style = DASHES.get(series.role, "-")
        line = draw_rounds(axes, curve, colours[series.method], linestyle=style)
        # Equal curves (FedSM's global model is FedAvg's) lie on each other: show each.
        followers = list(curves)[list(curves).index(series) + 1 :]
        line.set_linewidth(1.5 + 2.0 * sum(curves[f] == curve for f in followers))
        end = float(np.mean(curve[max(curve)]))
        ends[line] = (end, label(series, end))
    ordered = sorted(ends, key=lambda line: -ends[line][0])
    place: Any = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "alignment": "left"}
    axes.legend(ordered, [ends[line][1] for line in ordered], title="at the end", **place)


def _range(curves: Curves) -> tuple[float, float]:
    """Room for every line from a sixth of the rounds on: the first rounds would hide the rest."""
    last = max(r for curve in curves.values() for r in curve)
    settled = [v for c in curves.values() for r, vs in c.items() if r >= last / 6 for v in vs]
    low, high = min(settled), max(v for c in curves.values() for vs in c.values() for v in vs)
    margin = max(0.01, 0.06 * (high - low))
    return max(0.0, low - margin), min(1.0 + margin / 4, high + margin)
