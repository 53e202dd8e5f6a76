"""Questions to every site when a job's training is over."""

from collections.abc import Callable
from typing import TypeVar, get_args

from konsil.errors import RoundFailed
from konsil.federation.engines import Engine
from konsil.federation.intake import check_address
from konsil.federation.messages import (
    Asked,
    BadMessage,
    Checkpoint,
    Failure,
    Kind,
    Reply,
    Request,
    shown,
)
from konsil.federation.plan import Job, Plan
from konsil.federation.server import GO_ON, Record
from konsil.ingredients.context import Shared
from konsil.ingredients.method import Method
from konsil.tasks import Task
from konsil.weights import Parts

CHECKPOINTS: tuple[Checkpoint, ...] = get_args(Checkpoint)
T = TypeVar("T")


class Questions:
    """One job of a plan, and the engine that reaches its sites."""

    def __init__(self, plan: Plan, job: Job, engine: Engine) -> None:
        self.plan, self.job, self.engine = plan, job, engine
        self.method: Method = plan.method(job)
        self.task: Task = self.method.context.task

    def shared(self, record: Record, checkpoint: Checkpoint) -> Shared:
        """The shared parts of a checkpoint; parts without a measure have only a last one."""
        return record.shared.updated(record.best if checkpoint == "best" else {})

    def ask(
        self, kind: Kind, parts: Parts, body: Asked, read: Callable[[Reply], T]
    ) -> dict[str, T]:
        """What `read` makes of every site's reply, in the roster's order."""
        number = self.plan.experiment.rounds + 1
        requests = {
            site: Request(kind, self.job.name, site, number, self.plan.hash, body, parts)
            for site in self.plan.sites
        }
        found: dict[str, T] = {}
        for answer in self.engine.exchange(list(requests.values())):
            if isinstance(answer, Failure):
                raise self._failed(answer.site, f"did not answer in {kind} ({answer.reason})")
            if answer.site not in requests or answer.site in found:
                raise self._failed(answer.site, f"answered in {kind} without being asked")
            try:
                check_address(answer, requests[answer.site])
                found[answer.site] = read(answer)
            except BadMessage as wrong:
                raise self._failed(answer.site, f"is refused in {kind}: {wrong}") from None
        for site in requests.keys() - found.keys():
            raise self._failed(site, f"did not answer in {kind}")
        return {site: found[site] for site in requests}

    def _failed(self, site: str, what: str) -> RoundFailed:
        return RoundFailed(f"{self.job.name}: site {shown(site)} {what}; {GO_ON}: it asks again")
