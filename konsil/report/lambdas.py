"""How far each site keeps to itself: lambda' round by round, where sites find it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from konsil.colours import FURTHER_COLOURS
from konsil.report.style import draw_rounds, new_figure

LAMBDA = "lambda_prime"
Paths = dict[str, dict[str, dict[int, list[float]]]]  # method -> site -> round -> all seeds


def lambdas_of(results: Sequence[Mapping[str, Any]]) -> Paths:
    """The lambda' of every method whose sites find it, from the jobs' results."""
    paths: Paths = {}
    for result in results:
        for moment in result["history"]:
            for site, measures in moment["sites"].items():
                if LAMBDA in measures:
                    path = paths.setdefault(result["method"], {}).setdefault(site, {})
                    path.setdefault(moment["round"], []).append(measures[LAMBDA])
    return paths


def draw_lambdas(paths: Paths, sites: Sequence[str]) -> Figure:
    """One panel a method, one line a site: mean over seeds, and their range."""
    figure = new_figure(0.6 + 2.2 * len(paths))
    panels = figure.subplots(len(paths), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (method, by_site) in zip(panels, paths.items(), strict=True):
        axes.grid(axis="y")
        for number, site in enumerate(s for s in sites if s in by_site):
            path, colour = by_site[site], FURTHER_COLOURS[number % len(FURTHER_COLOURS)]
            draw_rounds(axes, path, colour, label=f"{site}  {np.mean(path[max(path)]):.2f}")
        axes.set_ylim(-0.02, 1.02)
        axes.set_title(f"{method}: how far each site keeps to itself")
        axes.set_ylabel("lambda'")
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), title="at the end")
    panels[-1].set_xlabel("round; 0 is the mean of all specialists, 1 is training alone")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure
