"""Tiny federations of images, and whole runs on them in seconds."""

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from konsil.config import PLAIN, check_experiment
from konsil.data import open_federation
from konsil.evaluation.results import Row
from konsil.federation.engines import Engine, InProcessEngine
from konsil.federation.messages import Failure, Reply, Request
from konsil.federation.plan import Job, Plan
from konsil.federation.runner import Run
from konsil.federation.server import Record, Server
from konsil.federation.site_worker import site_folder
from konsil.federation.state import SiteState, StateFiles
from konsil.weights import Parts

SIZE = 32  # pixels a side


def write_squares(folder: Path, sites: dict[str, int]) -> None:
    """Sites with so many images each, and masks: a bright square on grey, each site lighter."""
    for place, site, number, rng in _images(sites):
        image = rng.normal(60 + 50 * place, 8, (SIZE, SIZE, 3)).clip(0, 255)
        mask = np.zeros((SIZE, SIZE))
        top, left = rng.integers(2, SIZE // 2, 2)
        mask[top : top + 12, left : left + 12] = 255
        image[mask > 0] += 60
        _save(folder / site / "images" / f"{number:03d}.png", image)
        _save(folder / site / "masks" / f"{number:03d}.png", mask)


def write_shades(folder: Path, sites: dict[str, int]) -> None:
    """Sites with so many images each, of two classes: dark ones and light ones."""
    for place, site, number, rng in _images(sites):
        ill = number % 2
        image = rng.normal(80 + 70 * ill + 20 * place, 10, (SIZE, SIZE, 3))
        _save(folder / site / ("ill" if ill else "healthy") / f"{number:03d}.png", image)


def _images(sites: dict[str, int]) -> Iterator[tuple[int, str, int, np.random.Generator]]:
    """Every image to be made: its site's place and name, its own number, and what to draw with."""
    for place, (site, count) in enumerate(sites.items()):
        rng = np.random.default_rng(place)
        for number in range(count):
            yield place, site, number, rng


def _save(path: Path, pixels: NDArray[np.float64]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)


def plan_of(folder: Path, **blocks: Any) -> Plan:
    """The plan of a tiny experiment on a folder of sites; `blocks` replace blocks of its file.

    Training is plain (no augmentation, one learning rate) but for what the block says.
    """
    raw: dict[str, Any] = {
        "name": "tiny",
        "federation": {"folder": str(folder), "image_size": SIZE},
        "network": {"name": "unet", "width": 2},
        "training": {"batch_size": 3},
        "methods": ["fedavg"],
        "rounds": 2,
    }
    raw |= blocks
    experiment = check_experiment(raw | {"training": PLAIN | raw["training"]}, "test")
    return Plan.of(experiment, open_federation(experiment.federation, experiment.task))


def _job(plan: Plan, title: str) -> Job:
    return plan.job(f"{title}/seed0") if title else plan.jobs[0]


def server(
    plan: Plan,
    folder: Path,
    title: str = "",
    engine: Engine | None = None,
    notify: Callable[..., None] = lambda event, **facts: None,
) -> Server:
    """The server of a plan's job (the first one unless a title is given), in process."""
    return Server(plan, _job(plan, title), engine or InProcessEngine(plan, folder), folder, notify)


def train(plan: Plan, folder: Path, title: str = "", engine: Engine | None = None) -> Record:
    """All rounds of a job, without the evaluation at the end."""
    return server(plan, folder, title, engine).train()


def state_of(plan: Plan, folder: Path, site: str, title: str = "") -> SiteState:
    """What a site has on its disk."""
    job_folder = folder / _job(plan, title).name
    return SiteState.load(site_folder(job_folder, site) / StateFiles.NAMES[0], plan.hash)


def whole_run(plan: Plan, folder: Path, resume: bool = False) -> list[Row]:
    """Training and evaluation of every job, as `konsil run` does them."""
    run = Run(plan, folder)
    run.prepare(resume, lambda path: None)
    return run.go()


def what_remains(folder: Path) -> dict[str, bytes]:
    """Every file of a finished run whose bytes must not depend on how it went."""
    may_differ = ("events.jsonl", "plan.yaml", "splits.csv", ".lock")
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in may_differ and path.suffix not in (".png", ".svg")
    }


def same_parts(a: Parts, b: Parts) -> bool:
    """Same names and same bits."""
    return a.keys() == b.keys() and all(a[name].equals(b[name]) for name in a)


def same_record(a: Record, b: Record) -> bool:
    """Same bits, same scores, same history."""
    return (
        same_parts(a.shared, b.shared)
        and same_parts(a.best, b.best)
        and a.scores == b.scores
        and a.history == b.history
        and a.shared.notes == b.shared.notes
    )


class Shuffled(InProcessEngine):
    """An engine whose replies arrive in another order in every round."""

    def __init__(self, plan: Plan, folder: Path, seed: int) -> None:
        super().__init__(plan, folder)
        self.random = random.Random(seed)

    def exchange(
        self, requests: Sequence[Request], deadline: float | None = None
    ) -> Iterator[Reply | Failure]:
        mixed = list(requests)
        self.random.shuffle(mixed)
        return super().exchange(mixed, deadline)


class Tampered:
    """An engine in which `change` gives what arrives instead of a site's reply in a round."""

    def __init__(
        self, engine: Engine, site: str, round: int, change: Callable[[Reply], Sequence[Any]]
    ) -> None:
        self.engine, self.place, self.change = engine, (site, round), change
        self.close = engine.close

    def exchange(
        self, requests: Sequence[Request], deadline: float | None = None
    ) -> Iterator[Reply | Failure]:
        """As the engine does it, but for that reply."""
        for answer in self.engine.exchange(requests, deadline):
            if isinstance(answer, Reply) and (answer.site, answer.round) == self.place:
                yield from self.change(answer)
            else:
                yield answer
