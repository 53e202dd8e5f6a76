"""What `konsil unseen` shows: whom super models ask at a foreign hospital, and gamma's effect."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.figure import Figure
from rich.markup import escape
from rich.table import Table

from konsil.colours import FURTHER_COLOURS
from konsil.evaluation.foreign import SUPER, Asked, asked_about
from konsil.evaluation.scores import read_scores
from konsil.report.series import metric_name
from konsil.report.style import FAINT, new_figure
from konsil.report.tables import new_table

MOST = 3  # of those who are asked
BySite = Mapping[str, Mapping[str, Sequence[Asked]]]  # method -> site that was left out -> seeds


def asked_by_site(scores: Path, metric: str) -> BySite:
    """What every super model does with the images of the site that it does not know."""
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in read_scores(scores).to_pylist():
        if row["role"] == SUPER and row["structure"] is None:
            key = row["method"], row["site"], row["seed"]
            # each fold has columns of its own: the models of the sites that trained
            groups.setdefault(key, []).append({n: v for n, v in row.items() if v is not None})
    found: dict[str, dict[str, list[Asked]]] = {}
    for (method, site, _), rows in groups.items():
        found.setdefault(method, {}).setdefault(site, []).append(asked_about(rows, metric))
    return found


def asked_table(method: str, by_site: Mapping[str, Sequence[Asked]], metric: str) -> Table:
    """A line a site that was left out."""
    name = metric_name(metric)
    table = new_table(f"{method}: at a hospital that took no part", "left out")
    table.add_column("asked", overflow="fold")
    for title in ("like no site", f"{name}", "global model", "gamma", "of the oracle"):
        table.add_column(title, justify="right")
    for site, seeds in by_site.items():
        oracles = [one.oracle for one in seeds]
        table.add_row(
            escape(site),
            escape(_who(seeds)),
            f"{mean(one.unfamiliar for one in seeds):.0%}",
            f"{mean(one.score for one in seeds):.3f}",
            f"{mean(one.of_global for one in seeds):.3f}",
            " ".join(f"{gamma:g}" for gamma in dict.fromkeys(oracles)),
            f"{mean(one.by_gamma[one.oracle] for one in seeds):.3f}",
        )
    table.caption = (
        "asked: who answers most of its images, mean over seeds; gamma: Algorithm 2's, the best on "
        "these very test images, which nobody can know: an oracle, and no result."
    )
    return table


def _who(seeds: Sequence[Asked]) -> str:
    """Who answers most of the images, and how many of them."""
    shares: dict[str, float] = {}
    for one in seeds:
        for who, share in one.shares.items():
            shares[who] = shares.get(who, 0.0) + share / len(seeds)
    most = sorted(shares, key=lambda who: -shares[who])[:MOST]
    rest = ", ..." if len(shares) > MOST else ""
    return ", ".join(f"{who} {shares[who]:.0%}" for who in most) + rest


def draw_gamma(method: str, by_site: Mapping[str, Sequence[Asked]], metric: str) -> Figure:
    """The score against gamma, a line a site; a ring is the oracle's, a dash what the rule has."""
    figure = new_figure(4.2)
    axes = figure.subplots()
    axes.grid(axis="y")
    for number, (site, seeds) in enumerate(by_site.items()):
        colour = FURTHER_COLOURS[number % len(FURTHER_COLOURS)]
        gammas = list(seeds[0].by_gamma)
        curve = [mean(one.by_gamma[gamma] for one in seeds) for gamma in gammas]
        axes.plot(gammas, curve, color=colour, label=f"{site}  {curve[-1]:.3f}")
        best = max(range(len(gammas)), key=lambda place: (curve[place], gammas[place]))
        axes.plot(gammas[best], curve[best], "o", mfc="none", mec=colour, markersize=9)
        rule = mean(one.score for one in seeds)
        axes.plot(1.03, rule, "_", color=colour, markersize=12, markeredgewidth=2.5)
    axes.axvline(1.0, color=FAINT, linewidth=0.8)
    axes.set_xlabel(
        "gamma of Algorithm 2: 0 always asks a specialist, 1 the global model\n"
        "ring: the oracle's gamma; dash on the right: the rule that validation images chose"
    )
    axes.set_title(f"{method}: {metric_name(metric)} at a hospital that took no part")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), title="left out, gamma = 1")
    return figure
