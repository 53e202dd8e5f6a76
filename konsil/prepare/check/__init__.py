"""A look at all data before training: what is there, what is wrong, what is odd.

Errors are what `open_federation` refuses; warnings are what it allows.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from konsil.config import FederationConfig, TaskConfig
from konsil.data.decode import check_one_value
from konsil.data.detail import mean_of
from konsil.data.findings import Findings
from konsil.data.listing import Listing, list_manifest
from konsil.data.manifest import read_manifest
from konsil.data.notes import Note, shared_patients, site_notes
from konsil.data.origin import FileSource
from konsil.data.recipe import Recipe
from konsil.data.sources import Item, choose_sites
from konsil.data.splits import check_none_empty, draw_splits
from konsil.errors import KonsilError
from konsil.prepare.check.copies import Copy, find_copies, notes_on
from konsil.prepare.check.look import Report, Seen, look_at
from konsil.prepare.check.sites import SiteFacts, facts_of, remarks

IMAGE_SIZE = FederationConfig.model_fields["image_size"].default
__all__ = ["CheckResult", "Problem", "check_federation"]


@dataclass(frozen=True)
class Problem:
    """A kind of error, every place where it occurs, and the cure."""

    what: str
    places: tuple[str, ...] = ()
    cure: str = ""


@dataclass(frozen=True)
class CheckResult:
    """What a check found."""

    path: Path
    task: str = ""  # "" if the federation file cannot be read
    labels: tuple[str, ...] = ()  # structures or classes
    sites: dict[str, SiteFacts] = field(default_factory=dict)
    errors: tuple[Problem, ...] = ()
    warnings: tuple[Note, ...] = ()
    copies: tuple[Copy, ...] = ()
    seen: tuple[Seen, ...] = field(default=(), repr=False)  # every file that could be used

    @property
    def ok(self) -> bool:
        """Whether training would start."""
        return not self.errors

    @property
    def images(self) -> list[Item]:
        """What training would get, with the splits as it draws them."""
        return [image for one in self.seen for image in one.images]

    def to_json(self) -> dict[str, Any]:
        """All of it as plain data, for --json."""
        return {
            "path": str(self.path),
            "ok": self.ok,
            "task": self.task,
            "labels": list(self.labels),
            "sites": {site: asdict(facts) for site, facts in self.sites.items()},
            "errors": [asdict(problem) for problem in self.errors],
            "warnings": [asdict(note) for note in self.warnings],
            "copies": [copy.to_json() for copy in self.copies],
        }


def check_federation(
    path: Path,
    sites: Sequence[str] | None = None,
    report: Report | None = None,
    image_size: int = IMAGE_SIZE,
) -> CheckResult:
    """Open every file that a federation file leads to. Nothing is raised for what it finds.

    `path` is a federation file or its folder; `report(site, done, total)` is called as files are
    opened; `image_size` is what an experiment will give images.
    """
    try:
        manifest = read_manifest(path)
        chosen = choose_sites(manifest.content.sites, sites, manifest.path)
        source = FileSource(
            manifest,
            FederationConfig(file=manifest.path, image_size=image_size),
            TaskConfig(name=manifest.task),
        )
    except KonsilError as error:
        return CheckResult(path, errors=(Problem(str(error)),))
    return _Check(source).run(chosen, report)


class _Check:
    """One check; mistakes of all its steps are collected."""

    def __init__(self, source: FileSource) -> None:
        self.source, self.manifest = source, source.manifest
        self.found = Findings()
        self.refusals: list[Problem] = []

    def run(self, sites: Sequence[str], report: Report | None) -> CheckResult:
        listing = self._list(sites)
        seen = look_at(self.source, listing.items, self.found, report)
        recipe: Recipe | None = None
        with self._refusing():
            recipe = self.source.recipe(listing.items) if listing.items else None
        seen = self._drawn(seen)
        at = {site: [one for one in seen if one.item.site == site] for site in sites}
        labels = recipe.labels if recipe is not None else self.manifest.labels or []
        facts = {site: self._facts(site, own, listing, labels) for site, own in at.items()}
        copies = find_copies(seen)
        images = [image for one in seen for image in one.images]
        warnings = [Note("left out", text) for text in listing.notes]
        if recipe is not None:
            there = {site: own for site, own in at.items() if own}
            values = {site: {v for one in own for v in one.values} for site, own in there.items()}
            check_one_value(values, recipe, self.found)
            warnings += site_notes(images, recipe, _decoded(at, facts))
        warnings += [*remarks(at, facts), *notes_on(copies, seen)]
        warnings += shared_patients(images, listing)
        errors = [Problem(what, tuple(places), cure) for what, places, cure in self.found.kinds()]
        return CheckResult(
            path=self.manifest.path,
            task=self.manifest.task,
            labels=tuple(labels),
            sites=facts,
            errors=(*errors, *self.refusals),
            warnings=tuple(warnings),
            copies=tuple(copies),
            seen=tuple(seen),
        )

    def _list(self, sites: Sequence[str]) -> Listing:
        """Site by site, so that a list that cannot be read hides no other site's mistakes."""
        whole = Listing([], [], frozenset())
        for site in sites:
            with self._refusing():
                own = list_manifest(self.manifest, [site], self.found)
                whole = Listing(
                    whole.items + own.items,
                    whole.notes + own.notes,
                    whole.real_patients | own.real_patients,
                )
        return whole

    def _drawn(self, seen: Sequence[Seen]) -> list[Seen]:
        """The files with their splits, as training will draw them."""
        by_class = self.manifest.task == "classification"
        drawn: list[Seen] = []
        for _, group in groupby(seen, lambda one: one.item.site):
            own = list(group)
            images = [image for one in own for image in one.images]
            with self._refusing():
                images = draw_splits(images, *self.source.split, by_class)
                check_none_empty(images)
            splits = {image.image: image.split for image in images}
            drawn += [
                replace(one, item=replace(one.item, split=splits[one.item.image])) for one in own
            ]
        return drawn

    def _facts(
        self, site: str, seen: Sequence[Seen], listing: Listing, labels: Sequence[str]
    ) -> SiteFacts:
        classes = labels if self.manifest.task == "classification" else ()
        colours = self.manifest.reading(site).colours
        return facts_of(seen, site in listing.real_patients, classes, colours)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """What cannot be done is noted, and the check goes on."""
        try:
            yield
        except KonsilError as error:
            self.refusals.append(Problem(str(error)))


def _decoded(at: Mapping[str, Sequence[Seen]], facts: Mapping[str, SiteFacts]) -> dict[str, Any]:
    """What decoding for training would note of every site."""
    return {
        site: {
            "empty_structures": [k for k, area in facts[site].areas.items() if not area],
            "brightest_16_bit": max((int(o.high) for o in own if o.sixteen_bit), default=None),
            "best_dice": mean_of(one.best for one in own),
        }
        for site, own in at.items()
    }
