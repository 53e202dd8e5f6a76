"""How messages travel. An engine has one call and knows no method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # a process that only carries bytes imports no torch
    from konsil.federation.messages import Failure, Reply, Request
    from konsil.federation.plan import Plan


class Engine(Protocol):
    """Send these requests to those sites; give back what arrives, in the order of arrival."""

    def exchange(
        self, requests: Sequence[Request], deadline: float | None = None
    ) -> Iterator[Reply | Failure]:
        """A reply or a failure for every request; after `deadline` seconds the rest has failed."""

    def close(self) -> None:
        """End whatever the engine started."""


def make_engine(plan: Plan, run_folder: Path) -> Engine:
    """The engine that the experiment names."""
    if plan.experiment.engine.name == "processes":
        from konsil.federation.engines.processes import ProcessEngine

        return ProcessEngine(plan, run_folder)
    from konsil.federation.engines.inprocess import InProcessEngine

    return InProcessEngine(plan, run_folder)
