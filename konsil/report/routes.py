"""A picture of whom a super model asks: who answers whose images, and which images fall back."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from konsil.data import Images, test_images
from konsil.evaluation import batches
from konsil.federation.plan import Job, Plan
from konsil.report.style import FAINT, new_figure
from konsil.supermodel import GLOBAL, Route, SuperModel

SHOWN = 8  # images
SMALL = 8  # points
LETTERS = 12  # of a name above a column


@dataclass(frozen=True)
class RoutedImage:
    """A test image and what the super model made of it."""

    site: str
    image: np.ndarray
    specialists: float  # their share in its answer
    confidence: float
    likely: str  # the site that it is most like, or `global`
    unfamiliar: bool

    @property
    def why(self) -> str:
        """Why the global model answers, or how sure the selector is."""
        if self.unfamiliar:
            return "like no site"
        return f"{self.likely}? {self.confidence:.0%} sure"


@dataclass(frozen=True)
class Routes:
    """What a super model does with the test images of every site."""

    shares: np.ndarray  # [sites, 1 + sites]: what the models count in answers, on average
    images: list[RoutedImage]


def routes_of(run_folder: Path, plan: Plan, job: Job) -> Routes:
    """Ask the super model of a finished job whom it would ask."""
    folder, device = run_folder / job.name / "supermodel", plan.experiment.compute.device
    model = SuperModel.load(folder, device)
    shares, found = [], []
    for site in plan.sites:
        images = test_images(plan.data_folder, site)
        routed = [model.route(x) for x, _ in batches(images, model.device)]
        shares.append(torch.cat([route.shares for route in routed]).mean(dim=0).cpu().numpy())
        found += _images(model, site, images, routed)
    return Routes(np.stack(shares), found)


def _images(model: SuperModel, site: str, images: Images, routed: list[Route]) -> list[RoutedImage]:
    names = [*model.facts.sites, GLOBAL]  # -1: the selector names the global model
    columns = zip(
        *(
            torch.cat([getattr(route, name) for route in routed]).tolist()
            for name in ("confidence", "site", "unfamiliar")
        ),
        torch.cat([1 - route.shares[:, 0] for route in routed]).tolist(),
        strict=True,
    )
    return [
        RoutedImage(
            site=site,
            image=images.images[number].permute(1, 2, 0).numpy().squeeze(),
            specialists=specialists,
            confidence=confidence,
            likely=names[likely],
            unfamiliar=unfamiliar,
        )
        for number, (confidence, likely, unfamiliar, specialists) in enumerate(columns)
    ]


def fallen_back(images: list[RoutedImage]) -> list[RoutedImage]:
    """Images that no specialist answers: what is like no site first, then the least certain."""
    alone = [image for image in images if image.specialists == 0]
    return sorted(alone, key=lambda image: (not image.unfamiliar, image.confidence))


def draw_routes(routes: Routes, sites: tuple[str, ...], title: str) -> Figure:
    """Shares as a table of colours, and some of the images that the global model answers."""
    figure = new_figure(height=1.6 + 0.32 * len(sites) + 1.9)
    parts: Any = figure.subfigures(2, 1, height_ratios=[1.2 + 0.32 * len(sites), 1.9])
    above, below = parts
    _draw_shares(above.add_subplot(), routes.shares, sites, title)
    back = fallen_back(routes.images)
    text = f"The global model alone answers {len(back)} of {len(routes.images)} test images"
    shown = back or sorted(routes.images, key=lambda image: image.confidence)
    text += ", such as" if back else "; the selector is least sure of"
    below.suptitle(f"{text}:", x=0.01, ha="left", fontsize=SMALL + 1)
    for place, axes in enumerate(np.atleast_1d(below.subplots(1, SHOWN))):
        axes.set_axis_off()
        if place < len(shown):
            image = shown[place]
            axes.imshow(image.image, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            axes.set_title(image.site, fontsize=SMALL, fontweight="bold", loc="center")
            axes.text(0.5, -0.06, image.why, transform=axes.transAxes, ha="center", va="top",
                      fontsize=SMALL - 1.5, color=FAINT)  # fmt: skip
    return figure


def _draw_shares(axes: Axes, shares: np.ndarray, sites: tuple[str, ...], title: str) -> None:
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for row, column in np.ndindex(*shares.shape):
        share = shares[row, column]
        if share > 0:
            colour = "white" if share > 0.6 else "black"
            axes.text(column, row, f"{share:.0%}", ha="center", va="center", color=colour,
                      fontsize=SMALL)  # fmt: skip
    names = [GLOBAL, *sites]
    short = [n if len(n) <= LETTERS else f"{n[: LETTERS - 1]}…" for n in names]
    axes.set_xticks(range(len(names)), short, fontsize=SMALL)
    axes.set_yticks(range(len(sites)), [f"images of {site}" for site in sites], fontsize=SMALL)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(title)
