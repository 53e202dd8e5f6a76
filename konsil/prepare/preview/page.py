"""The page: one HTML file that needs nothing from outside and runs no script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from konsil.colours import FIXED_COLOURS, FURTHER_COLOURS
from konsil.data.sources import SPLITS, Item
from konsil.prepare.check import CheckResult
from konsil.prepare.check.facts import SiteFacts
from konsil.prepare.preview.charts import (
    all_histograms,
    box,
    densities,
    own_histogram,
    scatter,
    stack,
)
from konsil.prepare.preview.css import CSS
from konsil.prepare.preview.sheets import Picture, structure_colour
from konsil.prepare.preview.shift import (
    COARSE,
    Map,
    Measured,
    SiteGuess,
    statistics_named,
)
from konsil.prepare.preview.words import problems_in_words, what_it_means

# Nothing but pictures inside the page itself: a browser refuses whatever else might slip in.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
COLOURS = (*(FIXED_COLOURS[name] for name in ("fedavg", "fedsm", "fedsoup")), *FURTHER_COLOURS)
PRIVATE = (
    "This page shows images of patients. Keep it where the images themselves are kept, and send "
    "it to nobody who may not see them."
)


@dataclass(frozen=True)
class Content:
    """Everything that goes onto the page."""

    result: CheckResult
    data: Measured
    distances: Any  # [sites, sites]
    map: Map
    guess: SiteGuess | None
    sheets: Mapping[str, Sequence[Picture]]

    @property
    def colours(self) -> dict[str, str]:
        """A colour for every site."""
        return {s: COLOURS[k % len(COLOURS)] for k, s in enumerate(self.result.sites)}


def render(content: Content) -> str:
    """The whole file."""
    facts = content.result.sites
    images = sum(own.images for own in facts.values())
    title = f"{len(facts)} site{'' if len(facts) == 1 else 's'}, {images:,} images"
    sections = [
        ("sites", "The sites", _sites(content)),
        ("shift", "How far the sites are apart", _shift(content)),
        ("greys", "Intensities", _greys(content)),
        ("labels", "Labels", _labels(content)),
        ("images", "Images", _images(content)),
    ]
    links = "".join(f'<a href="#{key}">{name}</a>' for key, name, _ in sections)
    body = "".join(
        f'<section id="{key}"><h2>{name}</h2>{inner}</section>' for key, name, inner in sections
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="robots" content="noindex">'
        f"<title>Federation preview: {title}</title><style>{CSS}</style></head><body>"
        f"<header><h1>Federation preview</h1><p>{title}, {content.result.task}.</p>"
        f'<p class="note private"><strong>{PRIVATE}</strong></p>{_problems(content.result)}'
        f"<nav>{links}</nav></header><main>{body}</main></body></html>\n"
    )


def _problems(result: CheckResult) -> str:
    errors, warnings = problems_in_words(result)
    boxes = []
    for kind, name, lines in (("bad", "Errors", errors), ("odd", "Warnings", warnings)):
        if lines:
            listed = "".join(f"<li>{escape(line)}</li>" for line in lines)
            boxes.append(f'<div class="note {kind}"><strong>{name}</strong><ul>{listed}</ul></div>')
    if boxes:
        boxes.append(
            '<p class="faint">File names and patients are not written into this page: '
            "<code>konsil data check</code> shows them.</p>"
        )
    return "".join(boxes)


# --- the table of sites -------------------------------------------------------------------------


def _sites(content: Content) -> str:
    facts = content.result.sites
    spacing = any(own.spacing for own in facts.values())
    labels = content.result.labels
    areas = content.result.task == "segmentation"
    head = ["site", "images", "patients", " / ".join(SPLITS), "size"]
    head += ["spacing (mm)"] if spacing else []
    head += [f"{name} (% of image)" if areas else name for name in labels]
    rows = [
        [
            _named(site, content),
            f"{own.images:,}",
            f"{own.patients:,}" if own.patients_known else "not known",
            _splits(own),
            _size(own),
            *([_spacing(own)] if spacing else []),
            *(_label(own, name, areas) for name in labels),
        ]
        for site, own in facts.items()
    ]
    return _table(head, rows)


def _splits(own: SiteFacts) -> str:
    if own.splits is None:
        return "–"
    return " / ".join(str(own.splits[split]["images"]) for split in SPLITS)


def _size(own: SiteFacts) -> str:
    if own.size is None:
        return "–"
    most = f"{own.size[0]} × {own.size[1]}"
    return most if own.smallest == own.largest else f"mostly {most}"


def _spacing(own: SiteFacts) -> str:
    if own.spacing is None:
        return "–"
    between, row, column = own.spacing
    return f"{row:.2f} × {column:.2f}, {between:.1f} apart"


def _label(own: SiteFacts, name: str, areas: bool) -> str:
    if areas:
        return f"{100 * own.areas[name]:.1f}" if name in own.areas else "–"
    count = own.classes.get(name, 0)
    return f"{count} ({count / max(own.images, 1):.0%})"


# --- shift --------------------------------------------------------------------------------------


def _shift(content: Content) -> str:
    if len(content.data.sites) < 2:
        return "<p>One site: there is nothing to compare it with.</p>"
    matrix = (
        "<h3>Distances</h3>"
        + _heat(content.data.sites, content.distances, content, "{:.1f}", _largest(content))
        + '<p class="faint">Standard deviations (within a site) between the mean statistics of '
        "two sites, root mean square over all statistics. Below 0.2 is little, above 0.8 is a "
        "lot.</p>"
    )
    left = _taken_for(content) + matrix
    return f'{_guess(content)}<div class="beside"><div>{left}</div><div>{_map(content)}</div></div>'


def _largest(content: Content) -> float:
    return max(float(np.max(content.distances)), 1e-9)


def _guess(content: Content) -> str:
    guess, columns = content.guess, content.data.statistics.shape[1]
    if guess is None:
        return (
            "<p>Whether the site can be told from the intensities was not measured: every site "
            "needs two patients for that.</p>"
        )
    known = all(own.patients_known for own in content.result.sites.values())
    caveat = (
        ""
        if known
        else (
            " Patients are not known at every site: if images of one patient lie on both sides of "
            "the cross-validation, the number is too high."
        )
    )
    return (
        f'<p class="big">{guess.accuracy:.0%} <small>of the images give their site away; guessing '
        f"would find {guess.chance:.0%}</small></p>"
        f"<p>{escape(what_it_means(guess))}</p>"
        f'<p class="faint">A logistic model that sees nothing but {statistics_named(columns)} of '
        "an image names its site; tested on patients that it has not seen, every site counting "
        f"alike (balanced accuracy; {guess.parts}-fold cross-validation by patient).{caveat}</p>"
    )


def _taken_for(content: Content) -> str:
    if content.guess is None:
        return ""
    table = _heat(content.data.sites, content.guess.guesses, content, "{:.0%}", 1.0)
    return (
        f"<h3>Which site is taken for which</h3>{table}"
        '<p class="faint">A row is a site, a column what the model says.</p>'
    )


def _map(content: Content) -> str:
    items, colours = content.data.items, content.colours
    drawn = len(items) < len(content.result.images)
    few = f" An even draw of {len(items):,} images." if drawn else ""
    words = [_dot(item, content.result.task) for item in items]
    dots = scatter(content.map.points, [colours[item.site] for item in items], words)
    return (
        f"<h3>Every image as a dot</h3>{_legend(content)}{dots}"
        '<p class="faint">Images that look alike in brightness, colour and coarse shape lie close '
        "together: the first two principal components of the statistics and of "
        f"{COARSE} × {COARSE} thumbnails ({content.map.explained:.0%} of all variation). It knows "
        f"nothing of the sites.{few}</p>"
    )


def _dot(item: Item, task: str) -> str:
    """What hovering over a dot says; nothing that leads to a patient."""
    label = item.label if task == "classification" else ""
    return ", ".join(word for word in (item.site, item.split, label) if word)


# --- intensities --------------------------------------------------------------------------------


def _greys(content: Content) -> str:
    sums: dict[str, Any] = {}
    for one in content.result.seen:
        share = one.histogram / max(one.histogram.sum(), 1) * one.count
        sums[one.item.site] = sums.get(one.item.site, 0) + share
    ordered = {site: sums[site] for site in content.result.sites if site in sums}
    curves = densities(ordered)
    colours = content.colours
    multiples = "".join(
        f"<figure>{own_histogram(site, curves, colours)}<figcaption>{escape(site)}</figcaption>"
        "</figure>"
        for site in curves
    )
    return (
        f'{_legend(content)}<div class="beside"><figure>{all_histograms(curves, colours)}'
        "<figcaption>How often each grey level from 0 (black) to 255 (white) occurs, as the "
        "network will see the images. Peaks at the ends are cut off.</figcaption></figure>"
        f'<div class="multiples">{multiples}</div></div>'
        '<p class="faint">Dashed: the mean of all sites.</p>'
    )


# --- labels -------------------------------------------------------------------------------------


def _labels(content: Content) -> str:
    if content.result.task == "classification":
        return _balance(content)
    return "".join(_areas(content, k, name) for k, name in enumerate(content.result.labels))


def _areas(content: Content, number: int, name: str) -> str:
    values = {
        site: np.array([o.areas.get(name, 0.0) for o in content.result.seen if o.item.site == site])
        for site in content.result.sites
    }
    every = np.concatenate(list(values.values()))
    largest = max(float(np.percentile(every, 99.5)) * 1.05, 1e-6)
    rows = "".join(
        f"<span>{_named(site, content)}</span>{box(own, largest, content.colours[site])}"
        for site, own in values.items()
        if len(own)
    )
    scale = f'<span></span><div class="scale"><span>0 %</span><span>{largest:.0%}</span></div>'
    of = "volume" if any(own.volumes for own in content.result.sites.values()) else "image"
    return (
        f"<h3>Area of {_chip(number, name)}, part of the image</h3>"
        f'<div class="ranges">{rows}{scale}</div>'
        f'<p class="faint">A box holds the middle half of the {of}s, its line the median; the '
        "thin line runs from the 5th to the 95th percentile.</p>"
    )


def _balance(content: Content) -> str:
    names = content.result.labels
    shades = {
        name: f"color-mix(in srgb,var(--ink) {15 + round(65 * k / max(len(names) - 1, 1))}%,"
        "var(--paper))"
        for k, name in enumerate(names)
    }
    legend = "".join(
        f'<span><span class="dot" style="background:{shade}"></span>{escape(name)}</span>'
        for name, shade in shades.items()
    )
    rows = "".join(
        f"<span>{_named(site, content)}</span>"
        + stack({name: own.classes.get(name, 0) for name in names}, shades)
        for site, own in content.result.sites.items()
    )
    return f'<div class="legend">{legend}</div><div class="ranges">{rows}</div>'


# --- images -------------------------------------------------------------------------------------


def _images(content: Content) -> str:
    legend = "".join(f"{_chip(k, name)}" for k, name in enumerate(content.result.labels))
    masks = content.result.task == "segmentation"
    toggle = '<label class="toggle"><input type="checkbox" id="outlines" checked> outlines</label>'
    head = f'<div class="legend">{legend}{toggle}</div>' if masks else ""
    sheets = "".join(_sheet(site, own, content) for site, own in content.sheets.items())
    return (
        '<p class="faint">Drawn at random, of every patient one image before the second of '
        f"any; the same images every time.</p>{head}{sheets}"
    )


def _sheet(site: str, pictures: Sequence[Picture], content: Content) -> str:
    figures = "".join(_figure(site, picture) for picture in pictures)
    shown = f"{len(pictures)} of {content.result.sites[site].images:,}"
    return (
        f'<h3>{_named(site, content)} <span class="faint">{shown}</span></h3>'
        f'<div class="sheet" data-site="{escape(site, quote=True)}">{figures}</div>'
    )


def _figure(site: str, picture: Picture) -> str:
    width, height = picture.size
    caption = f"<figcaption>{escape(picture.caption)}</figcaption>" if picture.caption else ""
    over = f'<img class="outlines" src="{picture.outlines}" alt="">' if picture.outlines else ""
    return (
        f'<figure><img src="{picture.image}" width="{width}" height="{height}" '
        f'alt="an image of {escape(site, quote=True)}">{over}{caption}</figure>'
    )


# --- parts --------------------------------------------------------------------------------------


def _named(site: str, content: Content) -> str:
    colour = content.colours[site]
    return f'<span class="dot" style="background:{colour}"></span>{escape(site)}'


def _legend(content: Content) -> str:
    names = "".join(f"<span>{_named(site, content)}</span>" for site in content.result.sites)
    return f'<div class="legend">{names}</div>'


def _chip(number: int, name: str) -> str:
    colour = structure_colour(number)
    return (
        f'<span class="on-images"><span class="line" style="background:{colour}"></span>'
        f"{escape(name)}</span>"
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells of rows are HTML already."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _heat(sites: Sequence[str], values: Any, content: Content, form: str, largest: float) -> str:
    """A matrix whose large cells are shaded."""
    top = "".join(f'<th class="up"><span>{escape(site)}</span></th>' for site in sites)
    body = ""
    for site, row in zip(sites, values, strict=True):
        cells = "".join(_heat_cell(float(v), form, largest) for v in row)
        body += f"<tr><td>{_named(site, content)}</td>{cells}</tr>"
    head = f"<thead><tr><th></th>{top}</tr></thead>"
    return f'<div class="wide"><table>{head}<tbody>{body}</tbody></table></div>'


def _heat_cell(value: float, form: str, largest: float) -> str:
    strength = round(55 * min(value / largest, 1))
    shade = f"color-mix(in srgb,var(--heat) {strength}%,transparent)"
    return f'<td class="heat" style="background:{shade}">{form.format(value)}</td>'
