"""What every test has: one thread, a cache of its own, and tiny federations to train on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from konsil.config import PLAIN, Experiment, check_experiment
from konsil.data import open_federation
from konsil.federation.plan import Plan
from konsil.registry import load_plugins
from konsil.testing import SIZE, write_shades, write_squares

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests neither read nor fill the user's cache; worker processes inherit this."""
    patch = pytest.MonkeyPatch()
    patch.setenv("KONSIL_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture(scope="session")
def squares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two unequal sites: a bright square on grey, one site light, the other dark."""
    folder = tmp_path_factory.mktemp("squares")
    write_squares(folder, {"north": 8, "south": 12})
    return folder


@pytest.fixture(scope="session")
def shades(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sites of two classes: dark and light images."""
    folder = tmp_path_factory.mktemp("shades")
    write_shades(folder, {"north": 8, "south": 12})
    return folder


@pytest.fixture(scope="session")
def classes(shades: Path) -> dict[str, dict[str, Any]]:
    """The blocks of an experiment on `shades`, which costs half of one on `squares`."""
    return {
        "federation": {"folder": str(shades), "image_size": SIZE},
        "task": {"name": "classification"},
        "network": {"name": "small"},
    }


@pytest.fixture(scope="session")
def outlines(squares: Path) -> dict[str, dict[str, Any]]:
    """The blocks of an experiment on `squares`."""
    return {
        "federation": {"folder": str(squares), "image_size": SIZE},
        "task": {"name": "segmentation"},
        "network": {"name": "unet", "width": 2},
    }


@pytest.fixture
def usual(outlines: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What `experiment` is about; tests that do not look at outlines say `classes` instead."""
    return outlines


@pytest.fixture
def experiment(usual: dict[str, dict[str, Any]]) -> Callable[..., Experiment]:
    """A tiny experiment of plain training; keyword arguments replace whole blocks of the file."""

    def make(**blocks: Any) -> Experiment:
        raw: dict[str, Any] = {
            "name": "tiny",
            "training": {"batch_size": 3},
            "methods": ["fedavg"],
            "rounds": 2,
        }
        raw |= usual | blocks
        return check_experiment(raw | {"training": PLAIN | raw["training"]}, "test")

    return make


@pytest.fixture
def make_plan(experiment: Callable[..., Experiment]) -> Callable[..., Plan]:
    """The plan of a tiny experiment."""

    def make(**blocks: Any) -> Plan:
        e = experiment(**blocks)
        load_plugins(e.plugins)  # which may hold the task
        return Plan.of(e, open_federation(e.federation, e.task))

    return make
