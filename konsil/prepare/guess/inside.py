"""What a look into the files adds to a draft: structures, patients, colours, windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from konsil.data.intensity import OF_VOLUMES
from konsil.data.notes import DARK
from konsil.prepare.guess.content import ImageFacts, look_at_images, look_at_masks
from konsil.prepare.guess.draft import Draft, SiteDraft, some_of
from konsil.prepare.guess.patients import add_patients
from konsil.prepare.guess.structures import add_structures, names_from_dataset
from konsil.prepare.guess.tables import Table, as_list, patients_in
from konsil.prepare.guess.walk import Contents

HOUNSFIELD = -500  # below this only CT goes
SPLIT = {"train": 0.5, "val": 0.25, "test": 0.25, "seed": 0}


def look_inside(
    root: Path,
    contents: Contents,
    tables: Sequence[Table],
    draft: Draft,
    report: Callable[[str, int, int], None] | None,
) -> None:
    """Open a sample of every site's files and write down what follows from it."""
    masks, images = {}, {}
    for done, site in enumerate(draft.sites, 1):
        masks[site.name] = {name: look_at_masks(root, own) for name, own in site.masks.items()}
        images[site.name] = look_at_images(root, site.images, site.settings.get("series"))
        if report is not None:
            report("sites looked into", done, len(draft.sites))
    if draft.task == "segmentation":
        add_structures(draft, masks, names_from_dataset(root, contents.datalists))
    _add_patients(tables, draft)
    draft.top["channels"] = 3 if any(facts.coloured for facts in images.values()) else 1
    draft.top["split"] = SPLIT
    draft.comments["split"] = ["Drawn by patient within each site."]
    for site in draft.sites:
        _add_reading(draft, site, images[site.name])


def _add_patients(tables: Sequence[Table], draft: Draft) -> None:
    truths = patients_in(tables, draft)
    for site in add_patients(draft, truths):
        table = truths[site.name][0]
        if as_list(tables, site):
            draft.found.append(f"{site.name}: the patients are in {table}, not in file names")
        else:
            draft.to_do.append(
                f"{site.name}: {table} knows the patients, but no pattern in the file names agrees "
                "with it: give a `list` with the columns image, label, patient"
            )


def _add_reading(draft: Draft, site: SiteDraft, facts: ImageFacts) -> None:
    """Windows, slices and which volume of several."""
    settings: dict[str, Any] = site.settings
    if facts.unreadable:
        draft.to_do.append(f"{site.name}: images that cannot be read: {some_of(facts.unreadable)}")
    if facts.brightest is not None and facts.brightest < DARK:
        settings["window"] = [0, 2 ** facts.brightest.bit_length() - 1]
        draft.comments["window"] = ["16-bit pictures that use fewer bits. (!) Check the range."]
    if facts.volumes:
        settings["window"] = {"percentiles": [OF_VOLUMES.low, OF_VOLUMES.high]}
        settings["slices"] = {"view": facts.view, "which": "labelled", "every": 1}
        draft.comments["window"] = ["Of every volume; or darkest and brightest, as in [0, 2048]."]
        draft.comments["slices"] = ["Planes that become images: axial, coronal or sagittal."]
    if facts.darkest < HOUNSFIELD:
        draft.to_do.append(
            f"{site.name}: looks like CT: a window in Hounsfield units, such as [-160, 240] for "
            "soft tissue, keeps more than percentiles"
        )
    if facts.channel is not None:
        settings["channel"] = facts.channel
        draft.comments["channel"] = ["(!) The files hold several volumes; this is the first."]
        draft.to_do.append(f"{site.name}: files of several volumes: check `channel`")
    if "series" in settings:
        draft.comments["series"] = ["(!) Folders with several series: chosen by description."]
        draft.to_do.append(f"{site.name}: folders hold several series: check `series`")
