"""Validation score against rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from konsil.report.series import Series
from konsil.report.style import DASHES, new_figure

SELECTOR = "selector_accuracy"
Curves = dict[Series, dict[int, list[float]]]  # round -> the values of all seeds


def curves_of(results: Sequence[Mapping[str, Any]]) -> Curves:
    """Validation means over all images by method and measure, from the jobs' results."""
    curves: Curves = {}
    for result in results:
        for moment in result["history"]:
            for measure, value in moment["means"].items():
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
    _draw_lines(panels[0], scores, colours, by_final=True)
    panels[0].set_ylim(*_range(scores))
    panels[0].set_title(f"Validation {metric} (all sites' images)")
    if selectors:
        _draw_lines(panels[1], selectors, colours, by_final=False)
        panels[1].set_ylim(0, 1.04)
        panels[1].yaxis.set_major_formatter(PercentFormatter(1.0))
        panels[1].set_title("Selector names the right site")
    panels[-1].set_xlabel("round")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _draw_lines(axes: Axes, curves: Curves, colours: Mapping[str, str], by_final: bool) -> None:
    axes.grid(axis="y")
    finals = {}
    for series, curve in curves.items():
        rounds = sorted(curve)
        means = [float(np.mean(curve[r])) for r in rounds]
        style = {"color": colours[series.method], "linestyle": DASHES.get(series.role, "-")}
        (line,) = axes.plot(rounds, means, linewidth=1.6, **style)
        low, high = ([f(curve[r]) for r in rounds] for f in (min, max))
        if low != high:
            axes.fill_between(rounds, low, high, color=style["color"], alpha=0.12, linewidth=0)
        name = series.name if by_final else series.method
        finals[line] = (means[-1], f"{name}  {means[-1]:.3f}")
    ordered = sorted(finals, key=lambda line: -finals[line][0])
    axes.legend(
        ordered,
        [finals[line][1] for line in ordered],
        title="after the last round" if by_final else None,
        loc="center left",
        bbox_to_anchor=(1.01, 0.5),
        alignment="left",
    )


def _range(curves: Curves) -> tuple[float, float]:
    """Room for every line from a sixth of the rounds on: the first rounds would hide the rest."""
    last = max(r for curve in curves.values() for r in curve)
    settled = [v for c in curves.values() for r, vs in c.items() if r >= last / 6 for v in vs]
    low, high = min(settled), max(v for c in curves.values() for vs in c.values() for v in vs)
    margin = max(0.01, 0.06 * (high - low))
    return max(0.0, low - margin), min(1.0 + margin / 4, high + margin)
