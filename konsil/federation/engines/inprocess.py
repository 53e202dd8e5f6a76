"""Sites take their turns in this process, on one resident network; nothing is serialised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from konsil.errors import KonsilError
from konsil.federation.messages import Failure, Reply, Request
from konsil.federation.plan import Plan
from konsil.federation.site_worker import SiteWorker


class InProcessEngine:
    """One site after the other. A deadline means nothing here: nobody computes while one waits."""

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
        """Nothing to end."""
