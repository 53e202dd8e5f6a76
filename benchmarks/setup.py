"""What the benchmarks measure on: sizes, federations, plans."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import Progress
from konsil.config import PLAIN, check_experiment
from konsil.data import open_federation, synthetic
from konsil.federation.plan import Plan

MORE_ROUNDS_THAN_MEASURED = 1000


@dataclass(frozen=True)
class PlainSize:
    """What a plain loop and Konsil both train on, and what share of its time Konsil may take."""

    pixels: int
    images: dict[str, int]  # half of them to train
    goal: float


@dataclass(frozen=True)
class Scale:
    """How large everything is."""

    repeats: int
    images: dict[str, int]  # of the synthetic retina federation, site by site
    size: int  # pixels a side
    small_size: int
    plain: tuple[PlainSize, ...]  # where Konsil is held against a plain loop
    threads: int  # of a process that has the machine to itself
    network: dict[str, Any]  # the experiment file's block
    mean_network: str
    mean_width: int | None
    mean_sites: tuple[int, ...]  # the first is what the others are compared with
    memory_sites: tuple[int, int]
    memory_images: int  # a site
    crowds: tuple[int, ...]  # numbers of sites; the first is what the others are compared with
    crowd_images: int  # a site
    crowd_network: dict[str, Any]  # small: five hundred states of it lie on the disk
    memory_repeats: int  # bytes are not disturbed by neighbours as seconds are
    look_images: int  # of a data set that is imported and checked
    look_size: int
    far_networks: tuple[dict[str, Any], ...]  # of deployed rounds; the first for memory, too
    far_rounds: int  # a run; the first one does not count
    far_repeats: int  # runs, which have several rounds each
    far_sites: tuple[int, ...]  # the first is what the others' memory is compared with


SIX_SITES = {"aster": 180, "birch": 140, "cedar": 100, "dahlia": 80, "elm": 60, "fir": 40}
FULL = Scale(
    repeats=5,
    images=dict(synthetic.FEDERATIONS["retina"].images),
    size=128,
    small_size=64,
    plain=(
        PlainSize(64, SIX_SITES, 0.85),
        PlainSize(128, {site: count // 2 for site, count in SIX_SITES.items()}, 0.85),
        PlainSize(256, {site: count // 4 for site, count in SIX_SITES.items()}, 0.7),
    ),
    threads=2,
    network={},
    mean_network="unet_classic",
    mean_width=None,
    mean_sites=(6, 50, 200),
    memory_sites=(6, 50),
    memory_images=8,
    crowds=(6, 100, 500),
    crowd_images=10,
    crowd_network={"name": "unet", "width": 4},
    memory_repeats=5,
    look_images=1000,
    look_size=512,
    far_networks=({"name": "unet"}, {"name": "unet_classic"}),
    far_rounds=5,
    far_repeats=5,
    far_sites=(3, 6, 12),
)
QUICK = Scale(
    repeats=1,
    images={"aster": 8, "birch": 8},
    size=32,
    small_size=32,
    plain=(PlainSize(32, {"aster": 8, "birch": 8}, 0.85),),
    threads=1,  # two would wait for each other on a busy machine, and a test is run on any
    network={"name": "unet", "width": 2},
    mean_network="unet_classic",
    mean_width=2,
    mean_sites=(2, 4),
    memory_sites=(2, 4),
    memory_images=4,
    crowds=(2, 4),
    crowd_images=4,
    crowd_network={"name": "unet", "width": 2},
    memory_repeats=1,
    look_images=12,
    look_size=64,
    far_networks=({"name": "unet", "width": 2},),
    far_rounds=2,
    far_repeats=1,
    far_sites=(2, 3),
)


@dataclass(frozen=True)
class Setup:
    """A scale and a folder of its own, where federations and run folders are made."""

    scale: Scale
    folder: Path
    progress: Progress

    def plan(
        self,
        method: str | dict[str, Any],
        size: int | None = None,
        threads: int = 1,
        engine: dict[str, Any] | None = None,
        federation: dict[str, Any] | None = None,
        validate: bool = True,
        images: dict[str, int] | None = None,
        network: dict[str, Any] | None = None,
        performance: str = "plain",
    ) -> Plan:
        """An experiment of plain training, else every default, on the retina unless told."""
        counts = images or self.scale.images
        data = federation or {"synthetic": "retina", "images": counts}
        raw = {
            "name": "benchmark",
            "federation": {
                **data,
                "image_size": size or self.scale.size,
                "cache": str(self.folder / "cache"),
            },
            "task": {"structures": synthetic.FEDERATIONS["retina"].structures},
            "network": network or self.scale.network,
            "training": PLAIN | ({} if validate else {"validate_every": MORE_ROUNDS_THAN_MEASURED}),
            "methods": [method],
            "rounds": MORE_ROUNDS_THAN_MEASURED,
            "engine": engine or {},
            "compute": {"threads": threads},
            "performance": performance,
        }
        experiment = check_experiment(raw, "benchmark")
        self.progress("federation")
        return Plan.of(experiment, open_federation(experiment.federation, experiment.task))

    def many_sites(self, sites: int, most: int, each: int) -> dict[str, Any]:
        """A federation of so many sites, of at most `most`: retina images, dealt out by a CSV."""
        root = self.folder / f"many-{most}-{each}"
        if not root.exists():
            synthetic.write_federation("retina", root, {"aster": most * each})
        images = sorted((root / "aster" / "images").iterdir())
        path = root / f"{sites}-sites.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(["site", "image", "label"])
            for number, image in enumerate(images[: sites * each]):
                mask = image.parent.parent / "masks" / image.name
                site = f"site{number % sites:03d}"
                table.writerow([site, image.relative_to(root), mask.relative_to(root)])
        return {"csv": str(path)}
