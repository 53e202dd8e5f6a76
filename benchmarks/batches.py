"""Images on their way into training: batches against MONAI's and against plain numpy."""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks.measure import Figure, Goal, Outcome, Ratio, Side, interleave, warm_up
from benchmarks.setup import Setup
from konsil.data import Images, training_data
from konsil.data.augment import RANGES, augment
from konsil.federation.compute import keep_freed_memory

if TYPE_CHECKING:
    from benchmarks.monai_side import MonaiEpoch

BATCH = 8
SHORT = 10  # epochs a turn where one is a matter of milliseconds


def batches_vs_monai(setup: Setup) -> Outcome:
    """Training batches from Konsil's cache over MONAI's datasets with the same transforms."""
    keep_freed_memory()  # as every process that trains does; both sides gain
    torch.set_num_threads(1)
    outcome = Outcome(notes=_notes(setup))
    for size in dict.fromkeys((setup.scale.size, setup.scale.small_size)):
        plan = setup.plan("fedavg", size)
        images = training_data(plan.data_folder, plan.sites).train
        for augmented in (True, False):
            outcome.figures += _against_monai(setup, images, augmented)
        outcome.figures.append(_against_numpy(setup, images))
    return outcome


def _against_monai(setup: Setup, images: Images, augmented: bool) -> list[Figure]:
    from benchmarks.monai_side import MonaiEpoch, Way

    ways = {
        "CacheDataset": Way("CacheDataset", augmented),
        "PersistentDataset": Way("PersistentDataset", augmented),
        "CacheDataset with metadata": Way("CacheDataset", augmented, metadata=True),
    }
    sides: dict[str, Side] = {
        "Konsil": _epochs(lambda: _konsil_epoch(images, augmented), augmented)
    }
    with tempfile.TemporaryDirectory(dir=setup.folder) as folder:
        for name, way in ways.items():
            epoch = MonaiEpoch(way, images, BATCH, Path(folder))
            check_same_images(images, epoch)
            sides[name] = _epochs(epoch, augmented)
        warm_up(sides, setup.progress)
        times = interleave(sides, setup.scale.repeats, setup.progress)
    kind = "light augmentation" if augmented else "no augmentation"
    size = images.images.shape[-1]
    return [
        Figure(
            f"MONAI {name} / Konsil's cache, {kind}, {size} x {size}",
            Ratio.of(times[name], times["Konsil"]),
            None if way.metadata else Goal("at least", 3),
        )
        for name, way in ways.items()
    ]


def _epochs(epoch: Side, augmented: bool) -> Side:
    """A turn: without augmentation one epoch is too short to be measured."""
    return epoch if augmented else lambda: sum(epoch() for _ in range(SHORT))


def _konsil_epoch(images: Images, augmented: bool) -> float:
    """Processor seconds of an epoch, as `Site.indexed_batches` makes it."""
    noise = torch.Generator().manual_seed(0)
    began = process_time()
    for index in torch.randperm(len(images), generator=noise).split(BATCH):
        x, y = images.batch(index)
        if augmented:
            augment(x, y, noise, RANGES["light"])
    return process_time() - began


def check_same_images(images: Images, monai: MonaiEpoch) -> None:
    """Both sides give the same pixels, or, augmented, pixels and masks of the same kind."""
    x, y = (part[0] for part in images.batch(torch.tensor([len(images) - 1])))
    their_x, their_y = monai.item(len(images) - 1)
    same = x.shape == their_x.shape and y.shape == their_y.shape
    if monai.way.augmented:
        same &= set(their_y.unique().tolist()) <= {0.0, 1.0} and not torch.equal(x, their_x)
        same &= bool(0 <= their_x.min() <= their_x.max() <= 1)
    else:
        same &= torch.equal(x, their_x) and torch.equal(y, their_y)
    if not same:
        raise AssertionError("MONAI's side does not make of the images what Konsil's makes")


def _against_numpy(setup: Setup, images: Images) -> Figure:
    """Random batches from the memory map, over indexing of plain arrays in memory."""
    pixels, masks = images.images.numpy().copy(), images.targets.numpy().copy()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))

    def konsil() -> float:
        began = process_time()
        for index in order.split(BATCH) * SHORT:
            images.batch(index)
        return process_time() - began

    def numpy() -> float:
        began = process_time()
        for index in order.split(BATCH) * SHORT:
            x, _ = (part[index.numpy()].astype(np.float32) for part in (pixels, masks))
            x /= 255
        return process_time() - began

    sides: dict[str, Side] = {"Konsil": konsil, "numpy": numpy}
    warm_up(sides, setup.progress)
    times = interleave(sides, setup.scale.repeats, setup.progress)
    size = images.images.shape[-1]
    what = f"random access through the memory map / numpy arrays in memory, {size} x {size}"
    return Figure(what, Ratio.of(times["Konsil"], times["numpy"]), Goal("at most", 1.2))


def _notes(setup: Setup) -> list[str]:
    counts = setup.scale.images
    return [
        f"epochs over {sum(counts.values()) // 2} images of 3 channels and 2 structures, random "
        f"order, batches of {BATCH}; one thread, processor time, caches filled before",
        "MONAI: its loader in the same process (num_workers 0), tensors without metadata unless "
        "said otherwise, which is its faster way; PersistentDataset's files are in the page cache",
    ]
