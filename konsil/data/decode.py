"""From the files of a federation to the arrays of its cache entry: volumes by their slices."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from konsil.data.cache import named_errors
from konsil.data.detail import best_of, mean_of
from konsil.data.findings import BadFile, Findings
from konsil.data.image_file import is_picture
from konsil.data.image_with_masks import ImageWithMasks, open_with_masks, some
from konsil.data.manifest import Manifest, Slices
from konsil.data.recipe import UNNAMED, Digests, Reading, Recipe, in_threads
from konsil.data.sources import Item
from konsil.files import write_text

Report = Callable[[str, int, int], None]
NOTES = 1  # the format of the notes on slices


# --- which slices of a volume become images -----------------------------------------------------


def into_planes(
    manifest: Manifest,
    items: Sequence[Item],
    recipe: Recipe,
    digests: Digests,
    notes: Path,
    report: Report,
) -> list[Item]:
    """Every volume replaced by its slices; pictures as they are.

    What was found is noted by content, so a volume is opened for this only once.
    """

    def look(item: Item) -> list[int]:
        reading, rule = recipe.reading(item.site), manifest.site(item.site).slices
        content = [digests[name] for name in recipe.files(item)]
        whole = json.dumps([NOTES, content, reading.identity(), rule.model_dump()])
        note = notes / f"{hashlib.sha256(whole.encode()).hexdigest()[:32]}.json"
        try:
            planes: list[int] = json.loads(note.read_text())
        except (OSError, ValueError):
            planes = chosen_planes(item, open_with_masks(manifest.root, item, reading), rule)
            with named_errors(notes):
                write_text(note, json.dumps(planes))
        return planes

    volumes = [item for item in items if not is_picture(item.image)]
    if not volumes:
        return list(items)
    found = Findings()
    planes: dict[Item, Sequence[int]] = {}
    results = in_threads(look, volumes, found)
    for done, (item, chosen) in enumerate(zip(volumes, results, strict=True), 1):
        planes[item] = chosen or ()
        report(item.site, done, len(volumes))
    found.raise_if_any(manifest.root)
    return [replace(item, plane=plane) for item in items for plane in planes.get(item, [None])]


def chosen_planes(item: Item, opened: ImageWithMasks, rule: Slices) -> list[int]:
    """The slices that a site's rule asks for. Raises BadFile if there is none."""
    planes = list(range(len(opened.raw)))
    if rule.which == "labelled" and opened.masks:
        planes = opened.labelled()
    if not planes:
        cure = "mend its mask, take the volume away, or write slices: {which: all}"
        raise BadFile("volume without a labelled slice", cure, name=item.image)
    return planes[:: rule.every]


# --- arrays -------------------------------------------------------------------------------------


class _Decoded(NamedTuple):
    """What became of one file; of one that cannot be used, nothing."""

    planes: Sequence[tuple[NDArray[np.uint8], NDArray[Any]]] = ()  # image and target of each
    values: frozenset[int] = frozenset()  # of its masks
    marked: frozenset[str] = frozenset()  # structures that are marked anywhere
    brightest: int | None = None  # of a 16-bit image, before it was scaled to 8 bit
    best: Mapping[str, float] = {}  # structure -> the best Dice at the network's size


def bytes_of(recipe: Recipe, images: int) -> int:
    """What the arrays of so many images need on the disk, headers of the files aside."""
    plane = recipe.size**2
    target = 8 if recipe.classes else len(recipe.structures) * plane
    return images * (recipe.channels * plane + target)


def write_arrays(
    folder: Path,
    root: Path,
    items: Sequence[Item],
    recipe: Recipe,
    digests: Digests,
    report: Report,
) -> dict[str, Any]:
    """Decode everything into <site>/<split>/{images,targets}.npy; what was seen at each site.

    Items are grouped by site and split. Rows are written in their order as they are decoded, so
    neither threads nor memory limit the size of a federation.
    """
    found = Findings()
    seen: dict[str, list[_Decoded]] = {item.site: [] for item in items}
    counts = Counter((item.site, item.split) for item in items)
    files = [list(own) for _, own in groupby(items, key=lambda i: (i.site, i.split, i.image))]
    decode = partial(_decode, root, recipe, digests)
    with closing(in_threads(decode, files, found, chunk=4)) as decoded:
        results = _reported(files, decoded, report)
        for (site, split), group in groupby(results, key=lambda r: (r[0].site, r[0].split)):
            with _array_files(folder / site / split, recipe, counts[site, split]) as arrays:
                for _, one in group:
                    for rows in one.planes:
                        for file, row in zip(arrays, rows, strict=True):
                            file.write(row.tobytes())
                    seen[site].append(one._replace(planes=()))
    found.raise_if_any(root)
    values = {site: set().union(*(one.values for one in own)) for site, own in seen.items()}
    check_one_value(values, recipe, found)
    found.raise_if_any(root)
    return {site: _facts(recipe.reading(site), own) for site, own in seen.items()}


def _decode(root: Path, recipe: Recipe, digests: Digests, items: list[Item]) -> _Decoded:
    """All wanted planes of one file. Raises BadFile if it cannot be used."""
    opened = open_with_masks(root, items[0], recipe.reading(items[0].site))
    for name, found in opened.digests.items():
        if found != digests[name]:
            cure = "run again when it is at rest"
            raise BadFile("file that changed while it was read", cure, name=name)
    planes = []
    for item in items:
        if recipe.classes:
            target: NDArray[Any] = np.array(recipe.classes.index(item.label), "<i8")
        else:
            target = opened.target(item.plane, recipe.size)
        planes.append((opened.image(item.plane, recipe.channels, recipe.size), target))
    values = frozenset(value for mask in opened.masks for value in mask.counts)
    areas = [area for mask in opened.masks for area in mask.areas().items()]
    brightest = int(opened.raw.max()) if opened.sixteen_bit else None
    marked = frozenset(name for name, area in areas if area)
    middle = items[len(items) // 2].plane or 0
    return _Decoded(planes, values, marked, brightest, best_of(opened, middle, recipe.size))


def _reported(
    files: list[list[Item]], decoded: Iterator[_Decoded | None], report: Report
) -> Iterator[tuple[Item, _Decoded]]:
    """An item of each file with what became of it."""
    totals, done = Counter(item.site for own in files for item in own), Counter[str]()
    for own, result in zip(files, decoded, strict=True):
        yield own[0], result or _Decoded()
        for item in own:
            done[item.site] += 1
            report(item.site, done[item.site], totals[item.site])


@contextmanager
def _array_files(folder: Path, recipe: Recipe, rows: int) -> Iterator[Sequence[BinaryIO]]:
    """The files of images and of targets, written row by row and on the disk at the end.

    (Writable memory maps would crash on a full disk.)
    """
    plane = (recipe.size, recipe.size)
    target = ("<i8", ()) if recipe.classes else ("|u1", (len(recipe.structures), *plane))
    kinds = {"images": ("|u1", (recipe.channels, *plane)), "targets": target}
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        files = [stack.enter_context((folder / f"{name}.npy").open("wb")) for name in kinds]
        for file, (kind, shape) in zip(files, kinds.values(), strict=True):
            header = {"descr": kind, "fortran_order": False, "shape": (rows, *shape)}
            np.lib.format.write_array_header_1_0(file, header)
        yield files
        for file in files:
            file.flush()
            os.fsync(file.fileno())  # on disk before the entry gets its name


def _facts(reading: Reading, seen: Sequence[_Decoded]) -> dict[str, Any]:
    marked = {name for one in seen for name in one.marked}
    empty = [name for name, _ in reading.structures if name not in marked]
    brightest = [one.brightest for one in seen if one.brightest is not None]
    return {
        "empty_structures": empty,
        "brightest_16_bit": max(brightest, default=None),
        "best_dice": mean_of(one.best for one in seen),
    }


def check_one_value(values: Mapping[str, set[int]], recipe: Recipe, found: Findings) -> None:
    """If nobody says what they mean, all masks together may hold one value beside background."""
    every = sorted(set().union(*values.values()))
    if recipe.structures != UNNAMED or len(every) <= 1:
        return
    for site, present in values.items():
        mapping = recipe.reading(site).mapping
        found.add(
            f"masks with several values, and {mapping} does not say what they mean",
            f"{site}: {some(sorted(present)) or 'none'}",
            f"write which values are which structure, for example {mapping.split()[0]}: "
            f"{{first: {every[:1]}, second: {every[1:2]}}}, or {{foreground: [{some(every)}]}} "
            "if all mean the same",
        )
