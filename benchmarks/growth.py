"""How the cost of a round grows with sites, pixels and parameters: a table and log-log plots.

    python -m benchmarks.growth measure     into growth.csv, minutes on an idle machine
    python -m benchmarks.growth draw        docs/images/growth.png, and the slopes

Processor seconds and peak memory of the second round, FedAvg and FedSM in process, one thread;
each case is a process of its own and is measured three times, in turns.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from matplotlib.ticker import LogLocator, NullLocator

from benchmarks.peak import peak_of
from benchmarks.setup import FULL, Setup
from benchmarks.training import PAPERS_FEDSM
from konsil.colours import FIXED_COLOURS
from konsil.report.style import look, new_figure, write_figure

FILE = Path(__file__).with_name("growth.csv")
PICTURE = Path(__file__).parent.parent / "docs" / "images" / "growth.png"
TURNS = 3
METHODS: dict[str, Any] = {"fedavg": "fedavg", "fedsm": PAPERS_FEDSM}
SITES, PIXELS, WIDTHS = (6, 25, 100, 400), (32, 64, 128, 256), (4, 8, 16, 32, 64)
SMALL = {"name": "unet", "width": 4}  # where there are many sites: their states lie on the disk
USUAL_PIXELS, USUAL_SITES, IMAGES = 64, 6, 16
AXES = {"sites": "sites", "pixels": "pixels of a side", "parameters": "parameters"}


class Case(NamedTuple):
    """One size of one kind."""

    axis: str
    sites: int
    pixels: int
    network: dict[str, Any]


class Measured(NamedTuple):
    """What a round took."""

    axis: str
    value: float
    method: str
    seconds: float
    megabytes: float


def cases() -> Iterator[Case]:
    """Every size, each axis by itself."""
    for sites in SITES:
        yield Case("sites", sites, 32, SMALL)
    for pixels in PIXELS:
        yield Case("pixels", USUAL_SITES, pixels, {})
    for width in WIDTHS:
        yield Case("parameters", USUAL_SITES, USUAL_PIXELS, {"name": "unet", "width": width})


def measure() -> None:
    """All cases, in turns."""
    rows: list[Measured] = []
    with tempfile.TemporaryDirectory(prefix="konsil-growth-") as folder:
        setup = Setup(replace(FULL, images={}), Path(folder), lambda news: None)
        for turn in range(TURNS):
            for case in list(cases())[:: -1 if turn % 2 else 1]:
                for method in METHODS:
                    rows.append(_measured(setup, case, method))
                    print(turn, *rows[-1], flush=True)
    with open(FILE, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Measured._fields)
        writer.writerows((*row[:3], f"{row.seconds:.4f}", f"{row.megabytes:.1f}") for row in rows)


def _measured(setup: Setup, case: Case, method: str) -> Measured:
    federation = setup.many_sites(case.sites, max(SITES), IMAGES)
    plan = setup.plan(METHODS[method], case.pixels, federation=federation, network=case.network)
    context = plan.context(plan.jobs[0], plan.sites)
    size = context.initial(context.network).layout.trainable
    values = {"sites": case.sites, "pixels": case.pixels, "parameters": size}
    done = peak_of(
        {"case": "training", "plan": plan.to_json(), "folder": str(setup.folder / "round")}
    )
    return Measured(case.axis, values[case.axis], method, done["seconds"], done["peak"] / 2**20)


def read() -> dict[tuple[str, str], list[tuple[float, float, float]]]:
    """(axis, method) -> value, seconds and megabytes, medians of all turns."""
    found: dict[tuple[str, str], dict[float, list[tuple[float, float]]]] = {}
    with open(FILE, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            points = found.setdefault((row["axis"], row["method"]), {})
            numbers = float(row["seconds"]), float(row["megabytes"])
            points.setdefault(float(row["value"]), []).append(numbers)
    return {
        key: [(v, *(median(c) for c in zip(*m, strict=True))) for v, m in sorted(points.items())]
        for key, points in found.items()
    }


def readable(value: float) -> str:
    """Millions and thousands by their letter."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.{1 if value < 10 * size else 0}f}{letter}"
    return f"{value:g}"


def draw() -> None:
    """Seconds above, memory below, a column an axis; and the slope of each line's last half."""
    found = read()
    with look():
        figure = new_figure(5.0)
        panels = figure.subplots(2, len(AXES), squeeze=False)
        for column, (axis, title) in enumerate(AXES.items()):
            for row, words in enumerate(("processor seconds of a round", "peak memory, MiB")):
                panel = panels[row][column]
                for method in METHODS:
                    points = np.array(found[axis, method])
                    x, y = points[:, 0], points[:, 1 + row]
                    panel.loglog(x, y, "o-", color=FIXED_COLOURS[method], label=method)
                    half = slice(len(x) // 2 - 1, None)
                    slope = np.polyfit(np.log(x[half]), np.log(y[half]), 1)[0]
                    print(f"{axis}, {words}, {method}: slope {slope:.2f}")
                panel.grid()
                panel.set_xticks(x, [readable(value) for value in x])
                panel.xaxis.set_minor_locator(NullLocator())
                panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                panel.yaxis.set_minor_locator(NullLocator())
                panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
                panel.set_xlabel(title if row else "")
                panel.set_ylabel("" if column else words)
        panels[0][0].legend()
        write_figure(figure, PICTURE)


if __name__ == "__main__":
    {"measure": measure, "draw": draw}[sys.argv[1]]()
