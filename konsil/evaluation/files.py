"""A super model on labelled image files: how well it answers, at its own size and at the files'.

The files are those of a federation file, whose sites need not have taken part. What comes out
names no file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from konsil.config import TaskConfig
from konsil.data.decode import chosen_planes
from konsil.data.findings import BadFile, Findings
from konsil.data.image_file import is_picture
from konsil.data.image_with_masks import ImageWithMasks, open_with_masks
from konsil.data.origin import FileSource
from konsil.data.sources import Item
from konsil.errors import DataError
from konsil.evaluation import Columns, joined
from konsil.supermodel import SuperModel
from konsil.supermodel.predict import AUTO, Prediction, predict_opened
from konsil.tasks import Task, make_task

Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class SiteScores:
    """How a super model answers the images of one site."""

    site: str
    images: int
    scores: dict[str, float]  # at the network's size, as a run's results have them
    own_size: dict[str, float]  # on the masks as they are; {} of classes
    asked: dict[str, int]  # who answered: images
    unfamiliar: int  # images like those of no site


def score_files(
    model: SuperModel,
    source: FileSource,
    ask: str = AUTO,
    report: Report = lambda site, done, total: None,
) -> list[SiteScores]:
    """Every labelled image of a federation asked about; a site after the other."""
    items = source.listing(None).items
    task = make_task(TaskConfig(name=model.facts.task), model.facts.labels)
    _check_labels(model, source.recipe(items).labels)
    found = Findings()
    scored: dict[str, list[_Scored]] = {item.site: [] for item in items}
    totals, done = Counter(item.site for item in items), Counter[str]()
    for item in items:
        try:
            scored[item.site].append(_score(model, source, item, ask, task))
        except BadFile as bad:
            found.add_file(bad.name or item.image, bad)
        done[item.site] += 1
        report(item.site, done[item.site], totals[item.site])
    found.raise_if_any(source.manifest.path)
    return [_of_site(site, own, task) for site, own in scored.items()]


@dataclass(frozen=True)
class _Scored:
    columns: dict[str, Tensor]
    own_size: dict[str, Tensor]
    asked: list[str]
    unfamiliar: int


def _score(model: SuperModel, source: FileSource, item: Item, ask: str, task: Task) -> _Scored:
    reading = source.manifest.reading(item.site)
    opened = open_with_masks(source.root, item, reading)
    planes = [0]
    if not is_picture(item.image):
        planes = chosen_planes(item, opened, source.manifest.site(item.site).slices)
    shown = replace(opened, pictures=[opened.pictures[plane] for plane in planes])
    answer = predict_opened(model, shown, ask, reading.of_image)
    unfamiliar = int(answer.route.unfamiliar.sum())
    if model.facts.targets == "classes":
        y = torch.tensor([model.facts.labels.index(item.label)])
        return _Scored(task.columns(answer.logits, y), {}, answer.asked, unfamiliar)
    size = model.facts.network["image_size"]
    order = _order(model, opened)
    y = torch.from_numpy(np.stack([opened.target(plane, size)[order] for plane in planes]))
    own = list(_at_own_size(answer, opened, planes, order, task))
    at_own_size = {name: torch.cat([one[name] for one in own]) for name in own[0]}
    return _Scored(task.columns(answer.logits, y), at_own_size, answer.asked, unfamiliar)


def _at_own_size(
    answer: Prediction, opened: ImageWithMasks, planes: Sequence[int], order: list[int], task: Task
) -> Iterator[dict[str, Tensor]]:
    """The columns of each plane on its own pixels."""
    for number, plane in enumerate(planes):
        layers = [one for mask in opened.masks for one in mask.planes(mask.values[plane])]
        y = torch.from_numpy(np.stack(layers)[order])[None]
        said = torch.from_numpy(answer.at_own_size(number))[None] - 0.5
        yield task.columns(said, y)


def _order(model: SuperModel, opened: ImageWithMasks) -> list[int]:
    """Where each of the model's structures is among the file's."""
    names = [name for mask in opened.masks for name, _ in mask.structures]
    return [names.index(label) for label in model.facts.labels]


def _check_labels(model: SuperModel, labels: Sequence[str]) -> None:
    wanted = model.facts.labels
    missing = [label for label in wanted if label not in labels]
    if missing or (model.facts.targets == "classes" and len(labels) > len(wanted)):
        raise DataError(
            f"the model answers {', '.join(wanted)}, these images are labelled "
            f"{', '.join(labels)}: give them the same names in the federation file"
        )


def _of_site(site: str, scored: Sequence[_Scored], task: Task) -> SiteScores:
    columns: Columns = joined([one.columns for one in scored])
    own = task.summarise(joined([one.own_size for one in scored])) if scored[0].own_size else {}
    return SiteScores(
        site=site,
        images=sum(len(one.asked) for one in scored),
        scores=task.summarise(columns),
        own_size=own,
        asked=dict(Counter(who for one in scored for who in one.asked).most_common()),
        unfamiliar=sum(one.unfamiliar for one in scored),
    )
