"""What is evaluated at the end of a job: every role, on its own site's images.

Validation images have selected checkpoints and gamma by then; test images are read here, and only
here, and select nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TypeVar, get_args

from konsil.errors import RoundFailed
from konsil.evaluation.results import GLOBAL, Row
from konsil.evaluation.routing import GAMMAS, choose_gamma, routed_names
from konsil.federation.engines import Engine
from konsil.federation.intake import check_address, check_parts
from konsil.federation.messages import (
    Asked,
    BadMessage,
    CalibrateReply,
    CalibrateRequest,
    Checkpoint,
    CollectReply,
    CollectRequest,
    EvaluateReply,
    EvaluateRequest,
    Failure,
    Kind,
    Reply,
    Request,
    Split,
    shown,
)
from konsil.federation.plan import Job, Plan
from konsil.federation.scores import Scores, read_scores, summary
from konsil.federation.server import GO_ON, Record
from konsil.ingredients.context import Shared
from konsil.ingredients.method import Method
from konsil.supermodel import SELECTOR, Facts, SuperModel
from konsil.tasks import Task
from konsil.weights import Layout, Parts, Weights

CHECKPOINTS: tuple[Checkpoint, ...] = get_args(Checkpoint)
SPLITS: tuple[Split, ...] = get_args(Split)
SPECIALIST = "personal"
T = TypeVar("T")


class Examiner:
    """Asks every site how well the models of a finished job answer there."""

    def __init__(self, plan: Plan, job: Job, engine: Engine) -> None:
        self.plan, self.job, self.engine = plan, job, engine
        self.method: Method = plan.method(job)
        self.task: Task = self.method.context.task

    def shared(self, record: Record, checkpoint: Checkpoint) -> Shared:
        """The shared parts of a checkpoint; parts without a measure have only a last one."""
        return record.shared.updated(record.best if checkpoint == "best" else {})

    def rows(self, record: Record, checkpoint: Checkpoint, model: SuperModel | None) -> list[Row]:
        """Every role on every split."""
        rows: list[Row] = []
        shared = self.shared(record, checkpoint)
        for split in SPLITS:
            for role in (*self.method.shared_roles, *self.method.private_roles):
                parts = {role: shared[role]} if role in self.method.shared_roles else {}
                asked = EvaluateRequest(role=role, split=split, checkpoint=checkpoint)
                rows += self._examine(asked, parts)
            if model is not None:
                asked = EvaluateRequest(
                    role="super", split=split, checkpoint=checkpoint, model=asdict(model.facts)
                )
                rows += self._examine(asked, model.models)
        return rows

    def super_model(self, record: Record, checkpoint: Checkpoint) -> SuperModel | None:
        """Specialists and selector put together, with gamma chosen on validation images."""
        if not self.method.super_model:
            return None
        shared = self.shared(record, checkpoint)
        models = {GLOBAL: shared[GLOBAL], SELECTOR: shared[SELECTOR]}
        layout, asked = shared[GLOBAL].layout, CollectRequest(checkpoint=checkpoint)
        specialists = self._ask("collect", {}, asked, lambda r: self._specialist(r, layout))
        models |= {site: model for site, model in specialists.items() if model is not None}
        # where a site's policy keeps it, the global model stands in
        withheld = sorted(site for site, model in specialists.items() if model is None)
        draft = SuperModel(replace(self.facts(), withheld=withheld), models)
        threshold = self.method.routing == "threshold"
        return draft.with_gamma(self._gamma(draft)) if threshold else draft

    def _specialist(self, reply: Reply, layout: Layout) -> Weights | None:
        """The specialist that a site hands out; None if its policy keeps it."""
        if reply.body_as(CollectReply).withheld:
            return None
        check_parts(reply.parts, {SPECIALIST: layout}, self.plan.experiment.server.max_rms)
        return reply.parts[SPECIALIST]

    def facts(self) -> Facts:
        """What is known of the super model before gamma is chosen."""
        networks = self.method.networks()
        return Facts(
            task=self.task.name,
            targets=self.task.targets,
            labels=list(self.plan.labels),
            sites=list(self.plan.sites),
            network=networks["global"].spec.to_json(),
            selector=networks["selector"].spec.to_json(),
            gamma=1.0,
            plan=self.plan.hash,
            routing=self.method.routing,
        )

    def _gamma(self, model: SuperModel) -> float:
        asked = CalibrateRequest(model=asdict(model.facts), gammas=list(GAMMAS))
        images = {site: self.plan.images(site, "val") for site in self.plan.sites}

        def read(reply: Reply) -> list[float]:
            said = reply.body_as(CalibrateReply)
            said.check(len(GAMMAS), images[reply.site])
            return said.sums

        return choose_gamma(GAMMAS, self._ask("calibrate", model.models, asked, read), images)

    def _examine(self, asked: EvaluateRequest, parts: Parts) -> list[Row]:
        role, split = asked.role, asked.split
        further = routed_names(self.method.routing) if role == "super" else ()

        def read(reply: Reply) -> Scores:
            images = self.plan.images(reply.site, split)
            return read_scores(reply.body_as(EvaluateReply), images, self.task, further)

        numbers = summary(self._ask("evaluate", parts, asked, read), self.task)
        return [
            Row(self.job.method, self.job.seed, role, split, site, metric, value, n)
            for site, metric, value, n in numbers
        ]

    def _ask(
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
