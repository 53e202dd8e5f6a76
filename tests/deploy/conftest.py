"""What tests of deployments share: an experiment that costs little, and no pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from federations import SIZE

from konsil.config import Experiment, check_experiment


@pytest.fixture(scope="module", autouse=True)
def _no_pictures() -> Iterator[None]:
    """They take longer than these runs; `test_the_same_bits_as_in_process` draws them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("konsil.deploy.coordinator.draw_figures", lambda folder, plan: None)
        yield


@pytest.fixture
def experiment(shades: Path) -> Callable[..., Experiment]:
    """A tiny experiment on `shades`; keyword arguments replace whole blocks of the file."""

    def make(**blocks: Any) -> Experiment:
        raw: dict[str, Any] = {
            "name": "tiny",
            "federation": {"folder": str(shades), "image_size": SIZE},
            "task": {"name": "classification"},
            "network": {"name": "small"},
            "training": {"batch_size": 3},
            "methods": ["fedavg"],
            "rounds": 2,
        }
        return check_experiment(raw | blocks, "test")

    return make
