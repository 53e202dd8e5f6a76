"""The page: one HTML file that needs nothing from outside and runs no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from konsil.colours import FIXED_COLOURS, FURTHER_COLOURS, structure_colour
from konsil.data.sources import Item
from konsil.prepare.check import CheckResult
from konsil.prepare.check.look import PERCENTILES
from konsil.prepare.preview.charts import MAP_HEIGHT, WIDE, Areas, ceiling, densities, dots, line
from konsil.prepare.preview.sheets import Picture
from konsil.prepare.preview.shift import COARSE, Shift
from konsil.prepare.preview.words import problems_in_words, what_it_means

COLOURS = (*(FIXED_COLOURS[name] for name in ("fedavg", "fedsm", "fedsoup")), *FURTHER_COLOURS)


def render(
    result: CheckResult, shift: Shift | None, sheets: Mapping[str, Sequence[Picture]]
) -> str:
    """The whole file; `shift` is None if there is one site only."""
    pages = Environment(
        loader=PackageLoader("konsil.prepare.preview"),
        autoescape=True,  # names of sites and classes are anybody's
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return pages.get_template("page.html").render(
        _values(result, shift),
        sheets=sheets,
        coarse=COARSE,
        map_height=MAP_HEIGHT,
        percentiles=PERCENTILES,
        structure_colour=structure_colour,
        what_it_means=what_it_means,
        wide=WIDE,
    )


def _values(result: CheckResult, shift: Shift | None) -> dict[str, Any]:
    sites = result.sites
    colours = {site: COLOURS[k % len(COLOURS)] for k, site in enumerate(sites)}
    errors, warnings = problems_in_words(result)
    curves = _curves(result)
    images = sum(own.images for own in sites.values())
    return {
        "title": f"{len(sites)} site{'' if len(sites) == 1 else 's'}, {images:,} images",
        "result": result,
        "sites": sites,
        "segmentation": result.task == "segmentation",
        "volumes": any(own.volumes for own in sites.values()),
        "colours": colours,
        "errors": errors,
        "warnings": warnings,
        "shift": shift,
        "dots": _dots(shift, result.task, colours) if shift else [],
        "curves": curves,
        "mean_curve": np.mean(list(curves.values()), axis=0),
        "line": lambda curve, *size: line(curve, ceiling(curves), *size),
        "areas_of": partial(_areas, result),
    }


def _dots(shift: Shift, task: str, colours: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    """Place, colour and words of every image; nothing that leads to a patient."""
    items = shift.data.items
    return [
        (x, y, colours[items[k].site], _what_it_is(items[k], task))
        for k, x, y in dots(shift.map.points)
    ]


def _what_it_is(item: Item, task: str) -> str:
    label = item.label if task == "classification" else ""
    return ", ".join(word for word in (item.site, item.split, label) if word)


def _curves(result: CheckResult) -> dict[str, Any]:
    """How often each grey occurs at a site; every image counts alike."""
    sums: dict[str, Any] = {}
    for one in result.seen:
        share = one.histogram / max(one.histogram.sum(), 1) * one.count
        sums[one.item.site] = sums.get(one.item.site, 0) + share
    return densities({site: sums[site] for site in result.sites if site in sums})


def _areas(result: CheckResult, structure: str) -> Areas:
    by_site: dict[str, list[float]] = {site: [] for site in result.sites}
    for one in result.seen:
        by_site[one.item.site].append(one.areas.get(structure, 0.0))
    return Areas.of({site: np.array(areas) for site, areas in by_site.items()})
