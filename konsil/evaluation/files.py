"""A super model on labelled image files: how well it answers, at its own size and at the files'.

The files are those of a federation file, whose sites need not have taken part. What comes out
names no file and no patient. At the network's size images are read, put into batches and answered
as a run does it with its test images: where these are the same, the values are, bit for bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from konsil.config import TaskConfig
from konsil.data import Images
from konsil.data.decode import chosen_planes
from konsil.data.findings import BadFile, Findings
from konsil.data.image_file import is_picture
from konsil.data.image_with_masks import ImageWithMasks, open_with_masks
from konsil.data.origin import FileSource
from konsil.data.sources import Item
from konsil.data.splits import draw_splits
from konsil.errors import DataError
from konsil.evaluation import EVALUATION_BATCH, Columns
from konsil.evaluation.foreign import OF_ONES_OWN_SITE, columns_alone
from konsil.evaluation.intervals import intervals_of
from konsil.evaluation.routing import CONFIDENCES, PROBABILITY, routed_columns
from konsil.evaluation.scores import asked_of
from konsil.supermodel import SuperModel
from konsil.supermodel.predict import AUTO, Prediction, predict_opened
from konsil.tasks import Task, make_task

Report = Callable[[str, int, int], None]
Values = Mapping[str, Sequence[float]]  # of single images, by column
OWN = "own_"  # before a column: on the masks as they are
VOLUME = "volume_dice"  # of patients, put together from their slices


@dataclass(frozen=True)
class SiteScores:
    """How a super model answers the images of one site."""

    site: str
    images: int
    patients: int
    scores: dict[str, float]  # at the network's size, as a run's results have them
    own_size: dict[str, float]  # on the masks as they are; {} of classes
    intervals: dict[str, list[float]]  # 95 %, over patients; own_...: of own_size
    asked: dict[str, int]  # who answered: images
    unfamiliar: int  # images like those of no site
    notes: list[str]  # what a person should know
    columns: Values = field(repr=False)  # of single images; own_...: on the masks as they are
    numbers: Sequence[int] = field(repr=False)  # the patient of each, numbered as they come


def score_files(
    model: SuperModel,
    source: FileSource,
    ask: str = AUTO,
    report: Report = lambda site, done, total: None,
    split: str | None = None,
) -> list[SiteScores]:
    """Every labelled image of a federation asked about; a site after the other.

    `split`: only those of this split, as the federation file's rules divide them.
    """
    items = source.listing(None).items
    task = make_task(TaskConfig(name=model.facts.task), model.facts.labels)
    _check_labels(model, source.recipe(items).labels)
    work = _work(source, items, split)
    found, scored = Findings(), []
    for site in dict.fromkeys(item.site for item in items):
        own = [one for one in work if one[0].site == site]
        files = _opened(source, own, found, report)
        scored.append(_of_site(_Site(model, source, site, ask, task), files))
    found.raise_if_any(source.manifest.path)
    return [one for one in scored if one is not None]


def answered_columns(model: SuperModel, images: Images, task: Task, site: str) -> Columns:
    """Per-image values of the super model by its own rule: all that a run knows of a test image."""
    found = routed_columns(model, images, task, site, detailed=True)
    unknown = set() if site in model.facts.sites else {OF_ONES_OWN_SITE}
    if not model.facts.selector:  # nobody has looked at the images
        unknown |= {OF_ONES_OWN_SITE, *CONFIDENCES}
        unknown |= {name for name in found if name.startswith(PROBABILITY)}
    return {name: values for name, values in found.items() if name not in unknown}


# --- which images, in which order -----------------------------------------------------------------

Work = tuple[Item, list[int] | None]  # a file, and which of its planes if that is known


def _work(source: FileSource, items: Sequence[Item], split: str | None) -> list[Work]:
    """The files in the order in which a run evaluates them."""
    ordered = sorted(items, key=lambda item: item.image)
    if split is None:
        return [(item, None) for item in ordered]
    planes = [replace(item, plane=n) for item in ordered for n in _planes_of(source, item)]
    drawn = draw_splits(planes, *source.split, by_class=source.manifest.task == "classification")
    chosen: dict[str, list[int]] = {}
    for one in drawn:
        if one.split == split:
            chosen.setdefault(f"{one.site}/{one.image}", []).append(one.plane or 0)
    if not chosen:
        raise DataError(f"{source.manifest.path}: no image of the split {split}")
    keys = [f"{item.site}/{item.image}" for item in ordered]
    return [(item, chosen[k]) for k, item in zip(keys, ordered, strict=True) if k in chosen]


def _planes_of(source: FileSource, item: Item) -> list[int]:
    if is_picture(item.image):
        return [0]
    opened = open_with_masks(source.root, item, source.manifest.reading(item.site))
    return chosen_planes(item, opened, source.manifest.site(item.site).slices)


def _opened(
    source: FileSource, work: Sequence[Work], found: Findings, report: Report
) -> Iterator[tuple[Item, ImageWithMasks, list[int]]]:
    """Each file with its masks and the planes that count; one that cannot be used is noted."""
    for done, (item, planes) in enumerate(work, 1):
        try:
            opened = open_with_masks(source.root, item, source.manifest.reading(item.site))
            if planes is None:
                rule = source.manifest.site(item.site).slices
                planes = [0] if is_picture(item.image) else chosen_planes(item, opened, rule)
            yield item, opened, planes
        except BadFile as bad:
            found.add_file(bad.name or item.image, bad)
        report(item.site, done, len(work))


# --- one site -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Site:
    """What is asked about the images of a site, and how they are read."""

    model: SuperModel
    source: FileSource
    site: str
    ask: str
    task: Task

    def pair(
        self, item: Item, opened: ImageWithMasks, plane: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.generic]]:
        """A plane as the network sees it, and what is right."""
        network, labels = self.model.facts.network, self.model.facts.labels
        size = network["image_size"]
        x = opened.image(plane, network["in_channels"], size)
        if self.model.facts.targets == "classes":
            return x, np.array(labels.index(item.label), "<i8")
        return x, opened.target(plane, size)[self.order(opened)]

    def order(self, opened: ImageWithMasks) -> list[int]:
        """Where each of the model's structures is among the file's."""
        names = [name for mask in opened.masks for name, _ in mask.structures]
        return [names.index(label) for label in self.model.facts.labels]

    def columns(self, images: Images) -> Columns:
        """Per-image values at the network's size: a run's own."""
        if self.ask != AUTO:
            return columns_alone(self.model, self.ask, images, self.task)
        return answered_columns(self.model, images, self.task, self.site)

    def at_own_size(
        self, opened: ImageWithMasks, planes: list[int]
    ) -> tuple[list[Columns], Sequence[str]]:
        """The columns of each plane on its own pixels, and what a person should know."""
        reading = self.source.manifest.reading(self.site)
        shown = replace(opened, pictures=[opened.pictures[plane] for plane in planes])
        answer = predict_opened(self.model, shown, self.ask, reading.of_image)
        if self.model.facts.targets == "classes":
            return [], answer.notes
        order = self.order(opened)
        found = [self._on_pixels(answer, opened, *both, order) for both in enumerate(planes)]
        return found, answer.notes

    def _on_pixels(
        self, answer: Prediction, opened: ImageWithMasks, number: int, plane: int, order: list[int]
    ) -> Columns:
        layers = [one for mask in opened.masks for one in mask.planes(mask.values[plane])]
        y = torch.from_numpy(np.stack(layers)[order])[None]
        said = torch.from_numpy(answer.at_own_size(number))[None] - 0.5
        return {f"{OWN}{n}": v.numpy() for n, v in self.task.columns(said, y).items()}


def _of_site(
    asked: _Site, files: Iterator[tuple[Item, ImageWithMasks, list[int]]]
) -> SiteScores | None:
    """All of a site's files; None if there is none, or none that can be used."""
    at_size: list[Columns] = []
    at_own: list[Columns] = []
    waiting: list[tuple[NDArray[np.uint8], NDArray[np.generic]]] = []
    patients: list[str] = []
    notes: dict[str, None] = {}
    for item, opened, planes in files:
        own, said = asked.at_own_size(opened, planes)
        at_own += own
        notes |= dict.fromkeys(said)
        for plane in planes:
            patients.append(item.patient)
            waiting.append(asked.pair(item, opened, plane))
            if len(waiting) == EVALUATION_BATCH:  # the batches of a run, in bounded memory
                at_size.append(asked.columns(_images(waiting)))
                waiting.clear()
    if waiting:
        at_size.append(asked.columns(_images(waiting)))
    if not at_size:
        return None
    known = {name: number for number, name in enumerate(dict.fromkeys(patients))}
    numbers = [known[name] for name in patients]
    return _summary(asked, _stacked(at_size), _stacked(at_own), numbers, list(notes))


def _images(pairs: Sequence[tuple[NDArray[np.uint8], NDArray[np.generic]]]) -> Images:
    x, y = (torch.from_numpy(np.stack(own)) for own in zip(*pairs, strict=True))
    return Images(x, y)


def _stacked(parts: Sequence[Columns]) -> Columns:
    if not parts:
        return {}
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _summary(
    asked: _Site, columns: Columns, own: Columns, numbers: list[int], notes: list[str]
) -> SiteScores:
    """Means, their intervals over patients, and who answered."""
    task, model = asked.task, asked.model
    plain = {name: values.tolist() for name, values in (columns | own).items()}
    volumes = volume_dice(plain, numbers)
    who = asked_of(plain, model.facts.sites) if asked.ask == AUTO else [asked.ask] * len(numbers)
    of_own = {name.removeprefix(OWN): values for name, values in own.items()}
    scores = task.summarise(columns)
    scores |= {VOLUME: float(np.mean(volumes))} if volumes else {}
    known = [*task.metrics, *task.further]
    names = [*known, *(f"{OWN}{name}" for name in task.metrics)]
    return SiteScores(
        site=asked.site,
        images=len(numbers),
        patients=max(numbers) + 1,
        scores=scores,
        own_size=task.summarise(of_own) if own else {},
        intervals=intervals_of(plain, names, numbers) | intervals_of({VOLUME: volumes}, [VOLUME]),
        asked=dict(Counter(who).most_common()),
        unfamiliar=int(sum(plain.get("unfamiliar", []))),
        notes=notes,
        columns=plain,
        numbers=numbers,
    )


def volume_dice(columns: Values, patients: Sequence[int]) -> list[float]:
    """Dice of every patient, slices put together: the mean over structures of 2 overlap / area.

    A structure that neither mask has is found: 1. Empty where each patient has one image, or none
    has masks.
    """
    areas = {name: own for name, own in columns.items() if name.startswith("_area")}
    if not areas or len(set(patients)) == len(patients):
        return []
    of_structures = []
    for name, own in areas.items():
        overlap = np.bincount(patients, columns[name.replace("_area", "_overlap", 1)])
        area = np.bincount(patients, own)
        of_structures.append(np.divide(2 * overlap, area, out=np.ones(len(area)), where=area > 0))
    return [float(value) for value in np.mean(of_structures, axis=0)]


def _check_labels(model: SuperModel, labels: Sequence[str]) -> None:
    wanted = model.facts.labels
    missing = [label for label in wanted if label not in labels]
    if missing or (model.facts.targets == "classes" and len(labels) > len(wanted)):
        raise DataError(
            f"the model answers {', '.join(wanted)}, these images are labelled "
            f"{', '.join(labels)}: give them the same names in the federation file"
        )
