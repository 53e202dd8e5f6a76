"""How messages travel. An engine has one call and knows no method."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from konsil.errors import KonsilError
from konsil.federation.messages import Failure, Reply, Request
from konsil.federation.plan import Plan
from konsil.federation.site_worker import SiteWorker


class Engine(Protocol):
    """Send these requests to those sites; give back what arrives, in the order of arrival."""

    def exchange(
        self, requests: Sequence[Request], deadline: float | None = None
    ) -> Iterator[Reply | Failure]:
        """A reply or a failure for every request; after `deadline` seconds the rest has failed."""

    def close(self) -> None:
        """End whatever the engine started."""


class InProcessEngine:
    """Sites take their turns in this process, on one resident network; nothing is serialised.

    A deadline means nothing here: nobody computes while one waits.
    """

    def __init__(self, plan: Plan, run_folder: Path) -> None:
        self.worker = SiteWorker(plan, run_folder)

    def exchange(
        self, requests: Sequence[Request], deadline: float | None = None
    ) -> Iterator[Reply | Failure]:
        """The replies, in the order of the requests."""
        for request in requests:
            try:
                yield self.worker.handle(request)
            except KonsilError as error:
                yield Failure(request.site, str(error))

    def close(self) -> None:
        """There is no process to end."""


def make_engine(plan: Plan, run_folder: Path) -> Engine:
    """The engine that the experiment names."""
    if plan.experiment.engine.name == "inprocess":
        return InProcessEngine(plan, run_folder)
    from konsil.federation.engines.processes import ProcessEngine  # its workers run that file

    return ProcessEngine(plan, run_folder)
