"""What a site lets itself be asked: what a server that keeps to the plan would ask, and no more.

Evaluation tells something of a site's images, with every model that it is given. So each question
is answered for one model: the one that training led to, if the server is honest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast, get_args

from konsil.deploy.policy import PolicyRefused
from konsil.errors import StateError
from konsil.evaluation.routing import GAMMAS
from konsil.federation.engines import Engine
from konsil.federation.examiner import CHECKPOINTS, SPLITS, Examiner, plain
from konsil.federation.messages import Kind, Request
from konsil.federation.plan import Job, Plan
from konsil.federation.site_worker import site_folder
from konsil.federation.state import StateFiles
from konsil.files import write_text
from konsil.ingredients.method import Method
from konsil.supermodel import GLOBAL, SELECTOR

FILE = "examined.json"  # beside the state: which models were answered for
SUPER = "super"
UNDECIDED = 1.0  # gamma, before validation images have chosen it


class Guard:
    """Stands before the host of a plan at one site. Every refusal may be sent."""

    def __init__(self, plan: Plan, run_folder: Path, site: str) -> None:
        self.plan, self.run_folder, self.site = plan, run_folder, site

    def check(self, request: Request) -> None:
        """Refuse what the plan does not ask, and a second model for the same question."""
        if not isinstance(request.facts, dict):
            raise self._refusal(request, "its facts are no block of keys")
        if request.kind not in get_args(Kind):
            raise self._refusal(request, f"kind {request.kind!r}: unknown")
        job = self._job(request)
        self._check_round(request)
        if request.kind in ("round", "finish"):
            self._check_training(request)
            return
        self._check_finished(request)
        checks: dict[str, Callable[[Request, Examiner], None]] = {
            "collect": self._check_collect,
            "calibrate": self._check_calibrate,
            "evaluate": self._check_evaluate,
        }
        checks[request.kind](request, Examiner(self.plan, job, cast(Engine, None)))
        self._check_one_model(request)

    def _job(self, request: Request) -> Job:
        found = [job for job in self.plan.jobs if job.name == request.job]
        if not found:
            raise self._refusal(request, f"job {request.job!r}: not one of the plan's")
        return found[0]

    def _check_round(self, request: Request) -> None:
        rounds = self.plan.experiment.rounds
        first, last = (1, rounds) if request.kind == "round" else (rounds + 1, rounds + 1)
        if type(request.round) is not int or not first <= request.round <= last:
            when = f"rounds {first} to {last}" if first < last else f"round {last}"
            raise self._refusal(request, f"the plan asks that in {when}")

    def _check_training(self, request: Request) -> None:
        self._check_keys(request, {"validate", "after"})
        after, every = request.facts["after"], self.plan.experiment.training.validate_every
        if type(after) is not int or not 0 <= after < request.round:
            raise self._refusal(request, f"after = {after!r}: not a round before it")
        due = request.kind == "finish" or (request.round - 1) % every == 0
        if request.facts["validate"] is not due:
            raise self._refusal(request, f"the plan has validate = {due} in this round")

    def _check_finished(self, request: Request) -> None:
        """Models are asked for, and about, when their training is over."""
        if not finished(self._folder(request), self.plan.hash, self.plan.experiment.rounds):
            raise self._refusal(request, "this site's training of that job is not finished")

    def _check_collect(self, request: Request, examiner: Examiner) -> None:
        self._check_keys(request, {"checkpoint"})
        self._check_checkpoint(request)
        self._check_has_super_model(request, examiner.method)
        self._check_parts(request, set())

    def _check_calibrate(self, request: Request, examiner: Examiner) -> None:
        self._check_keys(request, {"model", "gammas"})
        self._check_has_super_model(request, examiner.method)
        if examiner.method.routing != "threshold":
            raise self._refusal(request, "this method's super model has no threshold to choose")
        if request.facts["gammas"] != list(GAMMAS):
            raise self._refusal(request, "gammas: not those that Konsil chooses from")
        self._check_super_model(request, examiner, {UNDECIDED})

    def _check_evaluate(self, request: Request, examiner: Examiner) -> None:
        role, method = request.facts.get("role"), examiner.method
        self._check_keys(
            request, {"role", "split", "checkpoint"} | ({"model"} if role == SUPER else set())
        )
        self._check_checkpoint(request)
        if request.facts["split"] not in SPLITS:
            raise self._refusal(request, f"split = {request.facts['split']!r}: not val or test")
        if role == SUPER:
            self._check_has_super_model(request, method)
            chosen = set(GAMMAS) if method.routing == "threshold" else {UNDECIDED}
            self._check_super_model(request, examiner, chosen)
        elif role in method.shared_roles:
            self._check_parts(request, {role})
        elif role in method.private_roles:
            self._check_parts(request, set())
        else:
            raise self._refusal(request, f"role = {role!r}: not one of {method.name}'s")

    def _check_super_model(self, request: Request, examiner: Examiner, gammas: set[float]) -> None:
        """The facts that follow from the plan; gamma and who keeps its specialist do not."""
        model = request.facts["model"]
        fixed = json.loads(json.dumps(plain(examiner.facts())))
        if not isinstance(model, dict) or set(model) != set(fixed):
            raise self._refusal(request, "model: not the facts of a super model")
        differing = [k for k in fixed if k not in ("gamma", "withheld") and model[k] != fixed[k]]
        if differing:
            raise self._refusal(request, f"model: {', '.join(differing)}: not as the plan has it")
        if model["gamma"] not in list(gammas):
            raise self._refusal(request, "model: gamma: not one that Konsil chooses from")
        withheld = model["withheld"]
        if not isinstance(withheld, list) or withheld != sorted(
            site for site in self.plan.sites if site in withheld
        ):
            raise self._refusal(request, "model: withheld: not sites of the plan")
        self._check_parts(request, {GLOBAL, SELECTOR, *self.plan.sites} - set(withheld))

    def _check_has_super_model(self, request: Request, method: Method) -> None:
        if not method.super_model:
            raise self._refusal(request, f"{method.name} has no super model")

    def _check_checkpoint(self, request: Request) -> None:
        if request.facts["checkpoint"] not in CHECKPOINTS:
            raise self._refusal(
                request, f"checkpoint = {request.facts['checkpoint']!r}: not best or last"
            )

    def _check_keys(self, request: Request, expected: set[str]) -> None:
        if set(request.facts) != expected:
            raise self._refusal(
                request, f"facts {sorted(request.facts)}, expected {sorted(expected)}"
            )

    def _check_parts(self, request: Request, expected: set[str]) -> None:
        if set(request.parts) != expected:
            raise self._refusal(
                request, f"parts {sorted(request.parts)}, expected {sorted(expected)}"
            )

    def _check_one_model(self, request: Request) -> None:
        """The same model may be asked about again, after a crash; another one may not.

        It is noted before the answer: what is answered is always noted.
        """
        path = self._folder(request) / FILE
        question = "/".join([request.kind, *_asked(request)])
        # `calibrate` does not say for which checkpoint it asks: there is a model for each
        models = len(CHECKPOINTS) if request.kind == "calibrate" else 1
        notes = _read_notes(path)
        answered = notes.setdefault(question, [])
        model = digest(request)
        if model in answered:
            return
        if len(answered) == models:
            raise self._refusal(
                request,
                f"{' '.join(_asked(request)) or 'this'} was answered for another model; a site "
                "answers for one: go on with that one, or submit a new run",
            )
        answered.append(model)
        write_text(path, json.dumps(notes, indent=1), durable=True)

    def _folder(self, request: Request) -> Path:
        return site_folder(self.run_folder / request.job, self.site)

    def _refusal(self, request: Request, why: str) -> PolicyRefused:
        return PolicyRefused(f"{request.job}, round {request.round}, {request.kind}: {why}")


def finished(folder: Path, plan: str, rounds: int) -> bool:
    """Whether the state in a site's folder is the one after the last round of all."""
    return StateFiles(folder, plan).latest().round == rounds + 1


def digest(request: Request) -> str:
    """The SHA-256 of the model that a request is about."""
    found = hashlib.sha256(json.dumps(request.facts.get("model"), sort_keys=True).encode())
    for name, part in sorted(request.parts.items()):
        found.update(json.dumps([name, part.layout.to_json()]).encode())
        found.update(part.flat.contiguous().numpy().data)
    return found.hexdigest()


def _asked(request: Request) -> list[str]:
    return [request.facts[key] for key in ("role", "split", "checkpoint") if key in request.facts]


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
