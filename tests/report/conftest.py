"""Small run folders, made by the means that a run uses, but with untrained models."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from konsil.config import check_experiment
from konsil.data import open_federation
from konsil.evaluation.results import CLIENT_AVERAGE, GLOBAL, Row, write_results
from konsil.federation.plan import Job, Plan
from konsil.ingredients.context import Shared
from konsil.ingredients.method import Method
from konsil.supermodel import SELECTOR, Facts, SuperModel

SITES = ("north", "south")
IMAGES = 12
SIZE = 32
METHODS = ["centralized", "local", "fedavg", "fedsm", "fedsoup"]
MakeRun = Callable[..., tuple[Path, Plan]]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """`make_run(task, seeds, channels)`: a run folder and its plan."""

    def make(
        task: str = "segmentation", seeds: tuple[int, ...] = (0,), channels: int = 3
    ) -> tuple[Path, Plan]:
        plan = _plan(tmp_path, task, seeds, channels)
        folder = tmp_path / "run"
        for job in plan.jobs:
            _write_job(folder / job.name, plan, job)
        (folder / "plan.yaml").write_text(yaml.safe_dump(plan.to_json()))
        write_results(folder / "results.csv", [r for job in plan.jobs for r in _rows(plan, job)])
        return folder, plan

    return make


def _plan(tmp_path: Path, task: str, seeds: tuple[int, ...], channels: int) -> Plan:
    source = tmp_path / "federation"
    for number, site in enumerate(SITES):
        (_write_masked if task == "segmentation" else _write_classes)(source / site, number)
    raw: dict[str, Any] = {
        "federation": {
            "folder": str(source),
            "image_size": SIZE,
            "channels": channels,
            "cache": str(tmp_path / "cache"),
        },
        "task": {"name": task},
        "methods": METHODS,
        "rounds": 2,
        "seeds": list(seeds),
    }
    if task == "segmentation":
        raw["task"]["structures"] = {"disc": [1, 2], "cup": [2]}
        raw["network"] = {"name": "unet", "width": 2}
    else:
        raw["network"] = {"name": "small"}
    experiment = check_experiment(raw, "test")
    return Plan.of(experiment, open_federation(experiment.federation, experiment.task))


def _painted(number: int, index: int) -> tuple[np.ndarray, np.ndarray]:
    """A bright disc with a brighter cup on a noisy ground, and its mask."""
    noise = np.random.default_rng([number, index])
    y, x = np.mgrid[:SIZE, :SIZE]
    distance = np.hypot(x - noise.uniform(12, 20), y - noise.uniform(12, 20))
    mask = ((distance < 9).astype(int) + (distance < 4)).astype(np.uint8)
    image = 60 + 60 * mask[..., None] + noise.integers(0, 40, (SIZE, SIZE, 3))
    return image.astype(np.uint8), mask


def _write_masked(folder: Path, number: int) -> None:
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for index in range(IMAGES):
        image, mask = _painted(number, index)
        Image.fromarray(image).save(folder / "images" / f"{index}.png")
        Image.fromarray(mask).save(folder / "masks" / f"{index}.png")


def _write_classes(folder: Path, number: int) -> None:
    for index in range(IMAGES):
        target = folder / ("normal" if index % 2 else "tumour")
        target.mkdir(parents=True, exist_ok=True)
        Image.fromarray(_painted(number, index)[0]).save(target / f"{index}.png")


def _write_job(folder: Path, plan: Plan, job: Job) -> None:
    method = plan.method(job)
    weights = method.context.initial(method.context.network)
    places = [folder / "checkpoints" / "best" / role for role in method.shared_roles]
    for site in plan.sites:
        places += [folder / "sites" / site / "best" / role for role in method.private_roles]
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        weights.save(place.with_name(f"{place.name}.safetensors"))
    if method.super_model:
        _super_model(plan, method).save(folder / "supermodel")
    result = {"method": job.method, "seed": job.seed, "history": _history(method, job.seed)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result))


def _super_model(plan: Plan, method: Method) -> SuperModel:
    shared = Shared(method.start())
    facts = Facts(
        task=plan.experiment.task.name,
        labels=list(plan.labels),
        sites=list(plan.sites),
        network=method.context.network.to_json(),
        selector=method.selector.spec.to_json(),
        routing={"rule": "threshold", "gamma": 0.0},
    )
    specialists = dict.fromkeys(plan.sites, shared["personal"])
    models = {"global": shared["global"], SELECTOR: method.selector.weights(shared)}
    return SuperModel(facts, models | specialists)


def _history(method: Method, seed: int) -> list[dict[str, Any]]:
    roles = (*method.shared_roles, *method.private_roles)
    history = []
    for number in range(3):
        means = dict.fromkeys(roles, 0.3 + 0.2 * number + 0.01 * seed)
        if method.super_model:
            means["selector_accuracy"] = 0.5 + 0.2 * number
        sites: dict[str, dict[str, float]] = {site: {} for site in SITES}
        if method.super_model and number:  # found after round 1
            sites = {site: {"lambda_prime": 0.3 * number} for site in SITES}
            means["lambda_prime"] = 0.3 * number
        history.append({"round": number, "sites": sites, "means": means})
    return history


def _rows(plan: Plan, job: Job) -> list[Row]:
    method = plan.method(job)
    metric = method.context.task.main_metric
    roles = [*method.shared_roles, *method.private_roles, *["super"] * method.super_model]
    shift = 0.01 * job.seed + 0.02 * METHODS.index(job.method)
    return [
        Row(job.method, job.seed, role, "test", site, metric, 0.6 + shift + 0.05 * place, 3)
        for role in roles
        for place, site in enumerate((*plan.sites, CLIENT_AVERAGE, GLOBAL))
    ]
