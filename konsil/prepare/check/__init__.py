"""A look at all data before training: what is there, what is wrong, what is odd.

Errors are what `open_federation` refuses; warnings are what it allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from konsil.config import FederationConfig, TaskConfig
from konsil.data.decode import check_one_value
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
from konsil.prepare.check.facts import SiteFacts, facts_of
from konsil.prepare.check.look import Report, Seen, look_at
from konsil.prepare.check.remarks import remarks

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
    images: tuple[Item, ...] = field(default=(), repr=False)  # of these, with their splits

    @property
    def ok(self) -> bool:
        """Whether training would start."""
        return not self.errors

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "path": str(self.path),
            "ok": self.ok,
            "task": self.task,
            "labels": list(self.labels),
            "sites": {site: asdict(facts) for site, facts in self.sites.items()},
            "errors": [asdict(problem) for problem in self.errors],
            "warnings": [
                {"kind": note.kind, "site": note.site, "text": note.text} for note in self.warnings
            ],
            "copies": [copy.to_json() for copy in self.copies],
        }


def check_federation(
    path: Path, sites: Sequence[str] | None = None, report: Report | None = None
) -> CheckResult:
    """Open every file that a federation file leads to. Nothing is raised for what it finds.

    `path` is a federation file or its folder; `report(site, done, total)` is called as files are
    opened.
    """
    try:
        manifest = read_manifest(path)
        chosen = choose_sites(manifest.content.sites, sites, manifest.path)
        source = FileSource(
            manifest, FederationConfig(file=manifest.path), TaskConfig(name=manifest.task)
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
        seen, unreadable = look_at(self.source, listing, report)
        recipe = self._recipe(listing.items)
        images = self._draw([image for one in seen for image in one.images])
        labels = recipe.labels if recipe is not None else self.manifest.labels or []
        facts = {site: self._facts(site, seen, images, listing, labels) for site in sites}
        copies = find_copies(seen, {(i.site, i.patient): i.split for i in images})
        warnings = [Note("left out", text) for text in listing.notes]
        if recipe is not None:
            check_one_value(_values(seen), recipe, self.found)
            decoded = {site: self._decoded(site, seen, own) for site, own in facts.items()}
            warnings += site_notes(images, recipe, decoded)
        warnings += remarks(seen, facts)
        warnings += [*notes_on(copies, seen), *shared_patients(images, listing)]
        return CheckResult(
            path=self.manifest.path,
            task=self.manifest.task,
            labels=tuple(labels),
            sites=facts,
            errors=(*_problems(self.found), *_problems(unreadable), *self.refusals),
            warnings=tuple(warnings),
            copies=tuple(copies),
            seen=tuple(seen),
            images=tuple(images),
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

    def _recipe(self, items: Sequence[Item]) -> Recipe | None:
        recipe = None
        with self._refusing():
            recipe = self.source.recipe(items) if items else None
        return recipe

    def _draw(self, images: Sequence[Item]) -> list[Item]:
        """The images with their splits, as training will draw them."""
        by_class = self.manifest.task == "classification"
        drawn: list[Item] = []
        for site in dict.fromkeys(image.site for image in images):
            own = [image for image in images if image.site == site]
            with self._refusing():
                own = draw_splits(own, *self.source.split, by_class)
                check_none_empty(own)
            drawn += own
        return drawn

    def _facts(
        self,
        site: str,
        seen: Sequence[Seen],
        images: Sequence[Item],
        listing: Listing,
        labels: Sequence[str],
    ) -> SiteFacts:
        return facts_of(
            [one for one in seen if one.item.site == site],
            [image for image in images if image.site == site],
            patients_known=site in listing.real_patients,
            classes=labels if self.manifest.task == "classification" else (),
            colours=self.manifest.reading(site).colours,
        )

    def _decoded(self, site: str, seen: Sequence[Seen], own: SiteFacts) -> dict[str, Any]:
        """What decoding for training would note of a site."""
        brightest = [  # of the 16-bit pictures that are not stretched to a window
            int(one.high)
            for one in seen
            if one.item.site == site and one.spacing is None and one.pixel.startswith("16-bit")
        ]
        windowed = self.manifest.reading(site).window is not None
        return {
            "empty_structures": [name for name, area in own.areas.items() if not area],
            "brightest_16_bit": None if windowed else max(brightest, default=None),
        }

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """What cannot be done is noted, and the check goes on."""
        try:
            yield
        except KonsilError as error:
            self.refusals.append(Problem(str(error)))


def _problems(found: Findings) -> list[Problem]:
    return [Problem(what, tuple(places), cure) for what, places, cure in found.kinds()]


def _values(seen: Sequence[Seen]) -> dict[str, set[int]]:
    values: dict[str, set[int]] = {}
    for one in seen:
        values.setdefault(one.item.site, set()).update(one.values)
    return values
