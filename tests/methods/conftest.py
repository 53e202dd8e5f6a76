"""Where tasks and networks do not matter, methods run on what costs least."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from konsil.config import Experiment


@pytest.fixture
def experiment(
    experiment: Callable[..., Experiment], classes: dict[str, dict[str, Any]]
) -> Callable[..., Experiment]:
    """A tiny experiment on `shades`; keyword arguments replace whole blocks of the file."""
    return lambda **blocks: experiment(**(classes | blocks))
