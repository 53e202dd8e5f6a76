"""What a site lets itself be asked: what a server that keeps to the plan would ask, and no more.

Evaluation tells something of a site's images, with every model that it is given. So each question
is answered for one model: the one that training led to, if the server is honest.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from konsil.deploy.policy import PolicyRefused
from konsil.errors import StateError
from konsil.evaluation.routing import GAMMAS
from konsil.federation.engines import Engine
from konsil.federation.examiner import CHECKPOINTS, Examiner
from konsil.federation.messages import (
    BODIES,
    Asked,
    BadMessage,
    CalibrateRequest,
    EvaluateRequest,
    Request,
    RoundRequest,
)
from konsil.federation.plan import Job, Plan
from konsil.federation.site_worker import site_folder
from konsil.federation.state import StateFiles
from konsil.files import write_text
from konsil.supermodel import GLOBAL, SELECTOR

FILE = "examined.json"  # beside the state: which models were answered for
SUPER = "super"
UNDECIDED = 1.0  # gamma, before validation images have chosen it


class Guard:
    """Stands before the worker of a plan at one site. Every refusal may be sent."""

    def __init__(self, plan: Plan, run_folder: Path, site: str) -> None:
        self.plan, self.run_folder, self.site = plan, run_folder, site

    def check(self, request: Request) -> None:
        """Refuse what the plan does not ask, and a second model for the same question."""
        try:
            job = next((job for job in self.plan.jobs if job.name == request.job), None)
            if job is None:
                raise BadMessage(f"job {request.job!r}: not one of the plan's")
            self._check_round(request)
            asked = request.body_as(BODIES[request.kind][0])
            if isinstance(asked, RoundRequest):
                self._check_training(request, asked)
            else:
                self._check_examination(request, asked, job)
        except BadMessage as wrong:
            address = f"{request.job}, round {request.round}, {request.kind}"
            raise PolicyRefused(f"{address}: {wrong}") from None

    def _check_round(self, request: Request) -> None:
        rounds = self.plan.experiment.rounds
        first, last = (1, rounds) if request.kind == "round" else (rounds + 1, rounds + 1)
        if not first <= request.round <= last:
            when = f"rounds {first} to {last}" if first < last else f"round {last}"
            raise BadMessage(f"the plan asks that in {when}")

    def _check_training(self, request: Request, asked: RoundRequest) -> None:
        if asked.after >= request.round:
            raise BadMessage(f"after = {asked.after}: not a round before it")
        every = self.plan.experiment.training.validate_every
        due = request.kind == "finish" or (request.round - 1) % every == 0
        if asked.validation is not due:
            raise BadMessage(f"the plan has validation = {due} in this round")

    def _check_examination(self, request: Request, asked: Asked, job: Job) -> None:
        """Models are asked for, and about, when their training is over."""
        folder = site_folder(self.run_folder / request.job, self.site)
        if not finished(folder, self.plan.hash, self.plan.experiment.rounds):
            raise BadMessage("this site's training of that job is not finished")
        expected = self._parts_of(asked, Examiner(self.plan, job, cast(Engine, None)))
        if set(request.parts) != expected:
            raise BadMessage(f"parts {sorted(request.parts)}, expected {sorted(expected)}")
        _check_one_model(request, folder / FILE)

    def _parts_of(self, asked: Asked, examiner: Examiner) -> set[str]:
        """The models that come with a question, if the plan asks it."""
        method = examiner.method
        if isinstance(asked, EvaluateRequest) and asked.role != SUPER:
            if asked.model is not None:
                raise BadMessage(f"model: {asked.role} is no super model")
            if asked.role not in (*method.shared_roles, *method.private_roles):
                raise BadMessage(f"role = {asked.role!r}: not one of {method.name}'s")
            return {asked.role} & set(method.shared_roles)
        if not method.super_model:
            raise BadMessage(f"{method.name} has no super model")
        by_threshold = method.routing == "threshold"
        if isinstance(asked, EvaluateRequest):
            chosen = GAMMAS if by_threshold else [UNDECIDED]
            return self._parts_of_super_model(asked.model or {}, examiner, chosen)
        if isinstance(asked, CalibrateRequest):
            if not by_threshold:
                raise BadMessage("this method's super model has no threshold to choose")
            if asked.gammas != list(GAMMAS):
                raise BadMessage("gammas: not those that Konsil chooses from")
            return self._parts_of_super_model(asked.model, examiner, [UNDECIDED])
        return set()

    def _parts_of_super_model(
        self, model: dict[str, Any], examiner: Examiner, gammas: Sequence[float]
    ) -> set[str]:
        """Its facts follow from the plan; gamma and who keeps its specialist do not."""
        fixed = json.loads(json.dumps(asdict(examiner.facts())))
        if set(model) != set(fixed):
            raise BadMessage("model: not the facts of a super model")
        differing = [k for k in fixed if k not in ("gamma", "withheld") and model[k] != fixed[k]]
        if differing:
            raise BadMessage(f"model: {', '.join(differing)}: not as the plan has it")
        if model["gamma"] not in gammas:
            raise BadMessage("model: gamma: not one that Konsil chooses from")
        withheld = model["withheld"] if isinstance(model["withheld"], list) else []
        if model["withheld"] != sorted(site for site in self.plan.sites if site in withheld):
            raise BadMessage("model: withheld: not sites of the plan")
        return {GLOBAL, SELECTOR, *self.plan.sites} - set(withheld)


def _check_one_model(request: Request, path: Path) -> None:
    """The same model may be asked about again, after a crash; another one may not.

    It is noted before the answer: what is answered is always noted.
    """
    asked = [getattr(request.body, key, "") for key in ("role", "split", "checkpoint")]
    words = [word for word in asked if word]
    # `calibrate` does not say for which checkpoint it asks: there is a model for each
    models = len(CHECKPOINTS) if request.kind == "calibrate" else 1
    notes = _read_notes(path)
    answered = notes.setdefault("/".join([request.kind, *words]), [])
    model = digest(request)
    if model in answered:
        return
    if len(answered) == models:
        raise BadMessage(
            f"{' '.join(words) or 'this'} was answered for another model; a site answers for one: "
            "go on with that one, or submit a new run"
        )
    answered.append(model)
    write_text(path, json.dumps(notes, indent=1), durable=True)


def _read_notes(path: Path) -> dict[str, Any]:
    """Which models were answered for; a damaged note is no permission."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError):
        raise StateError(
            f"{path}: cannot be read, so that nobody knows what was answered; submit a new run"
        ) from None


def finished(folder: Path, plan: str, rounds: int) -> bool:
    """Whether the state in a site's folder is the one after the last round of all."""
    return StateFiles(folder, plan).latest().round == rounds + 1


def digest(request: Request) -> str:
    """The SHA-256 of the model that a request is about."""
    facts = getattr(request.body, "model", None)
    found = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, part in sorted(request.parts.items()):
        found.update(json.dumps([name, part.layout.to_json()]).encode())
        found.update(part.flat.contiguous().numpy().data)
    return found.hexdigest()
