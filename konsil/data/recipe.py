"""What the files of a federation are turned into, and the fingerprint of the result."""

import hashlib
import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, TypeVar

from konsil.data.findings import BadFile, Findings
from konsil.data.readers import Codes, Window
from konsil.data.reading import ImageReading
from konsil.data.sources import SUFFIXES, Item
from konsil.data.volumes import View, is_volume, parts_of

THREADS = min(8, os.cpu_count() or 1)  # PIL and hashing release the lock; results do not depend
FORMAT = 1  # of the arrays; a change of the readers that changes pixels raises it

T = TypeVar("T")
R = TypeVar("R")
Digests = Mapping[str, str]  # file, relative to the federation's folder -> sha256 of its bytes
UNNAMED: tuple[tuple[str, Codes], ...] = (("foreground", None),)  # masks that nobody explains


@dataclass(frozen=True)
class Reading:
    """How the files of one site are read."""

    structures: tuple[tuple[str, Codes], ...] = ()
    background: int = 0
    colours: bool = False  # mask values are colours, as 0xRRGGBB
    window: Window | None = None  # None: all of the pixel type, or volumes' usual one
    view: View = "axial"  # volumes: how they are sliced
    channel: int | None = None  # volumes of several: which
    series: str | None = None  # DICOM folders of several: which, by its description
    check_geometry: bool = True  # a volume's mask must lie where the volume lies
    mapping: str = field(default="task.structures", compare=False)  # its name in messages

    @property
    def of_image(self) -> ImageReading:
        """How the image alone is read."""
        return ImageReading(self.window, self.view, self.channel, self.series)

    def identity(self) -> dict[str, Any]:
        """What can change a pixel."""
        return {key: value for key, value in asdict(self).items() if key != "mapping"}


@dataclass(frozen=True)
class Recipe:
    """How files become arrays. Either structures or classes are given."""

    channels: int
    size: int
    structures: tuple[tuple[str, Codes], ...] = ()
    classes: tuple[str, ...] = ()
    readings: Mapping[str, Reading] = field(default_factory=dict)  # where a site has its own

    def reading(self, site: str) -> Reading:
        """How a site's files are read."""
        return self.readings.get(site, Reading(self.structures))

    @property
    def labels(self) -> list[str]:
        """Structure names, or class names."""
        return [name for name, _ in self.structures] or list(self.classes)

    def files(self, item: Item) -> list[str]:
        """The files (or folders of a series) that an item is made of."""
        return [item.image, *mask_files(item)] if self.structures else [item.image]


def mask_files(item: Item) -> list[str]:
    """The masks of an item, in the order of its structures."""
    return [path for _, path in item.masks] or [item.label]


def hash_files(root: Path, names: Sequence[str]) -> Digests:
    """The sha256 of every file: content decides what is cached, never a date or a path."""
    found = Findings()
    digests = list(in_threads(lambda name: digest(root / name), names, found, chunk=16))
    found.raise_if_any(root)
    return {name: str(one) for name, one in zip(names, digests, strict=True)}


def in_threads(
    work: Callable[[T], R], things: Sequence[T], found: Findings, chunk: int = 1
) -> Generator[R | None]:
    """What `work` gives for each thing, in their order; None for a bad file, which is noted."""

    def safely(thing: T) -> R | BadFile:
        try:
            return work(thing)
        except BadFile as bad:
            bad.name = bad.name or str(thing)
            return bad

    with ThreadPool(THREADS) as pool:
        for result in pool.imap(safely, things, chunksize=chunk):
            if isinstance(result, BadFile):
                found.add_file(result.name, result)
                yield None
            else:
                yield result


def digest(path: Path) -> str:
    """The sha256 of a file; of a volume in several files, over the name and sha256 of each."""
    picture = path.suffix.lower() in SUFFIXES
    parts = parts_of(path) if not picture and is_volume(path) else [path]
    try:
        digests = [hashlib.sha256(part.read_bytes()) for part in parts]
    except OSError as error:
        cure = "check its permissions"
        raise BadFile("file that cannot be opened", cure, str(error.strerror)) from None
    if len(parts) == 1:
        return digests[0].hexdigest()
    named = zip(parts, digests, strict=True)  # names count: masks may be paired by them
    return hashlib.sha256(b"".join(p.name.encode() + d.digest() for p, d in named)).hexdigest()


def fingerprint(recipe: Recipe, items: Sequence[Item], digests: Digests) -> str:
    """A sha256 that changes exactly if the arrays, their order or their sites change."""
    rows: list[list[Any]] = []
    for item in items:
        masks = [digests[path] for path in mask_files(item)] if recipe.structures else [item.label]
        label = masks if item.masks else masks[0]
        plane = [] if item.plane is None else [item.plane]
        rows.append([item.site, item.split, digests[item.image], label, *plane])
    structures = [[name, codes and sorted(set(codes))] for name, codes in recipe.structures]
    whole = [FORMAT, recipe.channels, recipe.size, structures, recipe.classes, rows]
    plain = Reading(recipe.structures)
    special = {s: r.identity() for s, r in sorted(recipe.readings.items()) if r != plain}
    if special:  # sites that are read in the plain way have the fingerprint of a plain folder
        whole.append(special)
    return hashlib.sha256(json.dumps(whole).encode()).hexdigest()
