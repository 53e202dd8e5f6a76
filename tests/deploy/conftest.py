"""What tests of deployments share: an experiment that costs little, and no pictures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module", autouse=True)
def _no_pictures() -> Iterator[None]:
    """They take longer than these runs; `test_the_same_bits_as_in_process` draws them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("konsil.deploy.coordinator.draw_figures", lambda folder, plan: None)
        yield


@pytest.fixture
def usual(classes: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Where outlines do not matter, what costs less."""
    return classes
