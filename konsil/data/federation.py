"""A federation: found, checked, split and decoded before round 1."""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import PIL

from konsil.config import FederationConfig, TaskConfig
from konsil.data.cache import folder_once
from konsil.data.decode import Report, bytes_of, into_planes, write_arrays
from konsil.data.notes import warnings_about
from konsil.data.origin import find_source
from konsil.data.reading import ImageReading
from konsil.data.recipe import fingerprint, hash_files
from konsil.data.sources import SPLITS, Item
from konsil.data.splits import check_none_empty, draw_splits
from konsil.files import write_text


@dataclass(frozen=True)
class Federation:
    """What is known about the sites' data; the arrays are opened by `training_data`."""

    sites: list[str]  # the roster
    labels: list[str]  # structure names, or class names
    channels: int
    counts: dict[str, dict[str, int]]  # site -> split -> images
    patients: dict[str, dict[str, int]]  # site -> split -> patients
    warnings: list[str]
    fingerprint: str  # changes exactly if the numbers can change
    folder: Path  # the cache entry: <site>/{train,val,test}/{images,targets}.npy
    items: tuple[Item, ...]
    readings: dict[str, ImageReading] = field(default_factory=dict)  # how each site's are read

    def test_patients(self, site: str) -> list[int]:
        """The patients of a site's test images in their order, numbered as they come."""
        names = [item.patient for item in self.items if (item.site, item.split) == (site, "test")]
        known = {name: number for number, name in enumerate(dict.fromkeys(names))}
        return [known[name] for name in names]

    def write_splits(self, path: Path) -> None:
        """Which image went where, as a CSV that federation.csv (of pictures with one mask each)
        or split.file of a federation file reads again.
        """
        text = io.StringIO(newline="")
        table = csv.writer(text)
        columns = 6 if any(item.plane is not None for item in self.items) else 5
        table.writerow(["site", "image", "label", "patient", "split", "slice"][:columns])
        for item in self.items:
            label = item.label or " ".join(f"{name}={path}" for name, path in item.masks)
            row = [item.site, item.image, label, item.patient, item.split, item.plane]
            table.writerow(row[:columns])
        write_text(path, text.getvalue())


def open_federation(
    config: FederationConfig, task: TaskConfig, report: Report | None = None
) -> Federation:
    """Find the files, check everything, draw the splits, and decode what is not cached yet.

    `report(site, done, total)` is called while images are decoded. Raises DataError.
    """
    report = report or (lambda *done: None)
    source = find_source(config, task)
    listing = source.listing(config.sites)
    recipe = source.recipe(listing.items)
    names = dict.fromkeys(name for item in listing.items for name in recipe.files(item))
    digests = hash_files(source.root, list(names))
    notes = config.cache_folder / "planes"
    items = into_planes(source.manifest, listing.items, recipe, digests, notes, report)
    items = draw_splits(items, *source.split, by_class=bool(recipe.classes))
    check_none_empty(items)
    sites = config.sites or sorted({item.site for item in items})
    items.sort(key=lambda i: (sites.index(i.site), SPLITS.index(i.split), i.image, i.plane or 0))

    identity = fingerprint(recipe, items, digests)
    # Another version of the decoder may give other pixels for the same files.
    folder = config.cache_folder / f"{identity[:32]}-{_decoders(items)}"
    facts = folder_once(
        folder,
        lambda entry: write_arrays(entry, source.root, items, recipe, digests, report),
        size=bytes_of(recipe, len(items)),
        limit=config.cache_limit_bytes,
    )
    odd = warnings_about(items, recipe, facts, digests, listing)
    return Federation(
        sites=list(sites),
        labels=recipe.labels,
        channels=recipe.channels,
        counts=_count(sites, ((i.site, i.split) for i in items)),
        patients=_count(sites, (who[:2] for who in {(i.site, i.split, i.patient) for i in items})),
        warnings=[*listing.notes, *(note.text for note in odd)],
        fingerprint=identity,
        folder=folder,
        items=tuple(items),
        readings={site: recipe.reading(site).of_image for site in sites},
    )


def _decoders(items: Sequence[Item]) -> str:
    """The libraries that decode these items."""
    name = f"pillow{PIL.__version__}"
    if any(item.plane is not None for item in items):
        name += f"-nibabel{version('nibabel')}-simpleitk{version('simpleitk')}"
    return name


def _count(sites: Sequence[str], places: Iterable[tuple[str, str]]) -> dict[str, dict[str, int]]:
    counts = Counter(places)
    return {site: {split: counts[site, split] for split in SPLITS} for site in sites}
