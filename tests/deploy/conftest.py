"""What tests of deployments share: an experiment that costs little, and no pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from konsil.config import Experiment


@pytest.fixture(scope="module", autouse=True)
def _no_pictures() -> Iterator[None]:
    """They take longer than these runs; `test_the_same_bits_as_in_process` draws them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("konsil.deploy.coordinator.draw_figures", lambda folder, plan: None)
        yield


@pytest.fixture
def experiment(
    experiment: Callable[..., Experiment], classes: dict[str, dict[str, Any]]
) -> Callable[..., Experiment]:
    """A tiny experiment on `shades`; keyword arguments replace whole blocks of the file."""
    return lambda **blocks: experiment(**(classes | blocks))
