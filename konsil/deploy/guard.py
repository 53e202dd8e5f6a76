"""What a site lets itself be asked: what a server that keeps to the plan would ask, and no more.

Evaluation tells something of a site's images, with every model that it is given. So each question
is answered for one model: the one that training led to, if the server is honest.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from konsil.deploy.policy import PolicyRefused
from konsil.errors import StateError
from konsil.evaluation.routing import TEMPERATURES, rules_of
from konsil.federation.assembly import SHRINKAGES, Assembly
from konsil.federation.engines import Engine
from konsil.federation.messages import (
    BODIES,
    Asked,
    BadMessage,
    CalibrateRequest,
    CompareRequest,
    DescribeRequest,
    EvaluateRequest,
    Request,
    RoundRequest,
    head_part,
)
from konsil.federation.plan import Job, Plan
from konsil.federation.questions import CHECKPOINTS
from konsil.federation.site_worker import site_folder
from konsil.federation.state import StateFiles
from konsil.files import write_text
from konsil.supermodel import GLOBAL, NOVELTY, SELECTOR
from konsil.supermodel.novelty import LIMITS
from konsil.supermodel.rules import Utility, from_json

FILE = "examined.json"  # beside the state: which models were answered for
SUPER = "super"
CHOSEN = ("routing", "temperature", "limit", "withheld")  # facts that do not follow from the plan


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
                self._check_training(request, asked, job)
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

    def _check_training(self, request: Request, asked: RoundRequest, job: Job) -> None:
        if asked.after >= request.round:
            raise BadMessage(f"after = {asked.after}: not a round before it")
        every = self.plan.training(job).validate_every
        due = request.kind == "finish" or (request.round - 1) % every == 0
        if asked.validation is not due:
            raise BadMessage(f"the plan has validation = {due} in this round")

    def _check_examination(self, request: Request, asked: Asked, job: Job) -> None:
        """Models are asked for, and about, when their training is over."""
        folder = site_folder(self.run_folder / request.job, self.site)
        if not finished(folder, self.plan.hash, self.plan.experiment.rounds):
            raise BadMessage("this site's training of that job is not finished")
        expected = self._parts_of(asked, Assembly(self.plan, job, cast(Engine, None)))
        if set(request.parts) != expected:
            raise BadMessage(f"parts {sorted(request.parts)}, expected {sorted(expected)}")
        _check_one_model(request, folder / FILE)

    def _parts_of(self, asked: Asked, assembly: Assembly) -> set[str]:
        """The models that come with a question, if the plan asks it."""
        method = assembly.method
        if isinstance(asked, EvaluateRequest) and asked.role != SUPER:
            if asked.model is not None:
                raise BadMessage(f"model: {asked.role} is no super model")
            if asked.role not in (*method.shared_roles, *method.private_roles):
                raise BadMessage(f"role = {asked.role!r}: not one of {method.name}'s")
            return {asked.role} & set(method.shared_roles)
        if not method.super_model:
            raise BadMessage(f"{method.name} has no super model")
        if isinstance(asked, EvaluateRequest):
            self._check_decided(asked.model or {}, assembly)
            return self._parts_of_super_model(asked.model or {}, assembly)
        if isinstance(asked, DescribeRequest | CalibrateRequest) and not assembly.method.describes:
            raise BadMessage("this method's super model needs no description of images")
        if isinstance(asked, DescribeRequest):
            if asked.selector != json.loads(json.dumps(assembly.facts().selector)):
                raise BadMessage("selector: not as the plan has it")
            return {SELECTOR}
        if isinstance(asked, CalibrateRequest):
            heads = len(SHRINKAGES) if method.selector.solved_after else 0
            if asked.heads != heads:
                raise BadMessage(f"heads = {asked.heads}: the plan has {heads}")
            self._check_undecided(asked.model, assembly)
            offered = {head_part(place) for place in range(heads)}
            return self._parts_of_super_model(asked.model, assembly) | offered
        if isinstance(asked, CompareRequest):
            self._check_rules(asked.rules, assembly)
            self._check_undecided(asked.model, assembly)
            return self._parts_of_super_model(asked.model, assembly)
        return set()

    def _parts_of_super_model(self, model: dict[str, Any], assembly: Assembly) -> set[str]:
        """Its facts follow from the plan; what was chosen, and who withholds, do not."""
        fixed = json.loads(json.dumps(asdict(assembly.facts())))
        if set(model) != set(fixed):
            raise BadMessage("model: not the facts of a super model")
        differing = [key for key in fixed if key not in CHOSEN and model[key] != fixed[key]]
        if differing:
            raise BadMessage(f"model: {', '.join(differing)}: not as the plan has it")
        for key, allowed in (("temperature", (1.0, *TEMPERATURES)), ("limit", (None, *LIMITS))):
            if model[key] != fixed[key] and (
                not assembly.method.calibrates or model[key] not in allowed
            ):
                raise BadMessage(f"model: {key}: not one that Konsil chooses from")
        withheld = model["withheld"] if isinstance(model["withheld"], list) else []
        if model["withheld"] != sorted(site for site in self.plan.sites if site in withheld):
            raise BadMessage("model: withheld: not sites of the plan")
        novelty = {NOVELTY} if assembly.method.describes else set()
        return ({GLOBAL, SELECTOR, *self.plan.sites} - set(withheld)) | novelty

    def _check_undecided(self, model: dict[str, Any], assembly: Assembly) -> None:
        if model.get("routing") != assembly.facts().routing:
            raise BadMessage("model: routing: not as the plan has it")

    def _check_decided(self, model: dict[str, Any], assembly: Assembly) -> None:
        if assembly.method.names_models:
            return self._check_undecided(model, assembly)
        self._check_rules([model.get("routing", {})], assembly, all_of_them=False)

    def _check_rules(
        self, rules: list[dict[str, Any]], assembly: Assembly, all_of_them: bool = True
    ) -> None:
        """Rules follow from the plan, but for the table of all sites' scores."""
        if assembly.method.names_models:
            raise BadMessage("this method's super model has no rule to choose")
        sites = len(self.plan.sites)
        try:
            read = [from_json(rule, sites) for rule in rules]
        except ValueError as wrong:
            raise BadMessage(f"{wrong}") from None
        tables = [rule.table for rule in read if isinstance(rule, Utility)]
        rows = max(tables, key=lambda table: len(table[0]), default=[[0.0]] * sites)
        table = [[*row, *[0.0] * (1 + 2 * sites - len(row))] for row in rows]
        known = rules_of(assembly.method.routing, table)
        if read != known if all_of_them else read[0] not in known:
            raise BadMessage("routing: not what Konsil chooses from")


def _check_one_model(request: Request, path: Path) -> None:
    """The same model may be asked about again, after a crash; another one may not.

    It is noted before the answer: what is answered is always noted.
    """
    asked = [getattr(request.body, key, "") for key in ("role", "split", "checkpoint")]
    words = [word for word in asked if word]
    # these do not say for which checkpoint they ask: there is a model for each
    models = len(CHECKPOINTS) if request.kind in ("describe", "calibrate", "compare") else 1
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
