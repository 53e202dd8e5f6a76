"""Methods run on what costs least, where tasks and networks do not matter."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def usual(classes: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Where outlines do not matter, what costs less."""
    return classes
