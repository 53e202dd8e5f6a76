"""What the coordinator does: rounds, means, records."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import torch

from konsil.errors import RoundFailed, StateError, UploadRefused
from konsil.federation.engines import Engine
from konsil.federation.intake import Holding, Intake
from konsil.federation.keeping import kept
from konsil.federation.messages import Failure, Kind, Reply, Request, RoundRequest
from konsil.federation.plan import Job, Plan
from konsil.federation.storage import read_parts, write_parts
from konsil.ingredients.context import Means, Shared
from konsil.observers import BY_PLAN
from konsil.randomness import generator
from konsil.weights import Parts, Weights

Notify = Callable[..., None]
RECORD = "record.safetensors"
GO_ON = "mend that, then go on with the run"


@dataclass
class Record:
    """All the server must remember of a job: written whole after every round."""

    round: int = 0  # the last round that is complete
    shared: Shared = field(default_factory=lambda: Shared({}))
    best: dict[str, Weights] = field(default_factory=dict)  # shared parts, by validation
    scores: dict[str, list[float]] = field(default_factory=dict)  # those that could be the best
    history: list[dict[str, Any]] = field(default_factory=list)  # validation, round by round
    counted: dict[str, int] = field(default_factory=dict)  # site -> its last round that counts
    finished: bool = False

    def save(self, path: Path, plan: str, durable: bool) -> None:
        """Replace the record on disk."""
        header = {
            "plan": plan,
            "round": self.round,
            "scores": self.scores,
            "history": self.history,
            "counted": self.counted,
            "finished": self.finished,
            "notes": self.shared.notes,
        }
        parts = {f"shared/{n}": w for n, w in self.shared.items()}
        parts |= {f"best/{n}": w for n, w in self.best.items()}
        write_parts(path, header, parts, durable)

    @classmethod
    def load(cls, path: Path, plan: str) -> Record:
        """The record on disk."""
        header, parts = read_parts(path)
        if header.pop("plan") != plan:
            raise StateError(f"{path}: this record belongs to another plan")
        shared = {n.removeprefix("shared/"): w for n, w in parts.items() if n.startswith("shared/")}
        best = {n.removeprefix("best/"): w for n, w in parts.items() if n.startswith("best/")}
        return cls(shared=Shared(shared, header.pop("notes")), best=best, **header)


class Server:
    """Trains one job: one method with one seed."""

    def __init__(
        self, plan: Plan, job: Job, engine: Engine, run_folder: Path, notify: Notify
    ) -> None:
        self.plan, self.job, self.engine, self.notify = plan, job, engine, notify
        self.config = plan.experiment.server
        self.method = plan.method(job)
        self.training = self.method.context.training
        self.roster = {
            site: Holding(plan.images(site, "train"), plan.images(site, "val"))
            for site in self.method.context.sites
        }
        self.path = run_folder / job.name / "server" / RECORD
        if self.path.exists():
            self.record = Record.load(self.path, plan.hash)
        else:
            self.record = Record(shared=self.method.initial_parts())

    def train(self) -> Record:
        """Every round that is not done yet, then validation of the last means."""
        for number in range(self.record.round + 1, self.plan.experiment.rounds + 1):
            self._round(number)
        if not self.record.finished:
            self._finish()
        return self.record

    def _round(self, number: int) -> None:
        self.notify("round_started", round=number)
        validate = (number - 1) % self.training.validate_every == 0
        intake = self._ask("round", number, validate)
        self._learn_of(intake, number - 1)
        self.record.shared = self._merged(intake.means())
        self.record.round = number
        self.record.counted |= dict.fromkeys(intake.summed, number)
        self._save()
        self.notify("round_done", round=number, sites=intake.summed)

    def _merged(self, means: Means) -> Shared:
        """What the method makes of the means, if sites can go on with that."""
        try:
            shared = self.method.merge(self.record.shared, means)
            wrong = [n for n, w in shared.items() if not isfinite(float(w.flat.norm()))]
        except torch.linalg.LinAlgError:
            wrong = ["a system of equations that has no solution"]
        if wrong:
            raise RoundFailed(
                f"{self.job.name}, round {means.round}: no use came of the means of "
                f"{', '.join(means.sites)} (not finite: {', '.join(wrong)}); the record stays at "
                f"the round before: look at what each of them sends, {GO_ON}"
            )
        return shared

    def _finish(self) -> None:
        number = self.plan.experiment.rounds + 1
        intake = self._ask("finish", number, validate=True)
        self._learn_of(intake, number - 1)
        self.record.finished = True
        self._save()

    def _save(self) -> None:
        self.record.save(self.path, self.plan.hash, self.plan.experiment.engine.durable)

    def _ask(self, kind: Kind, number: int, validate: bool) -> Intake:
        """Send one round's requests and take in what comes back."""
        requests = [self._request(kind, site, number, validate) for site in self.roster]
        layouts = self.method.uploads(self.record.shared) if kind == "round" else {}
        keep = self.method.keeps_uploads(self.record.shared)
        waiting = self.path.parent / "waiting"
        shutil.rmtree(waiting, ignore_errors=True)  # of a round that was cut short
        intake = Intake(
            requests[0], self.roster, layouts, self.config, keep, waiting, self.method.wrong_upload
        )
        away = self._away(number) if kind == "round" else set()
        for site in sorted(away):
            self._miss(intake, site, number, BY_PLAN)
        present = [r for r in requests if r.site not in away]
        sent = {request.site: request.parts for request in present}
        for answer in self.engine.exchange(present, self.config.deadline):
            self._take(intake, answer, number, sent.get(answer.site, {}))
        self._enough(intake, number, len(away))
        return intake

    def _request(self, kind: Kind, site: str, number: int, validate: bool) -> Request:
        sent = self.method.sent(site, self.record.shared)
        after = self.record.counted.get(site, 0)
        body = RoundRequest(validation=validate, after=after, notes=sent.notes)
        return Request(kind, self.job.name, site, number, self.plan.hash, body, sent)

    def _away(self, number: int) -> set[str]:
        drawn, absences = set(self._drawn(number)), self.config.absences
        return {s for s in self.roster if s not in drawn or number in absences.get(s, [])}

    def _drawn(self, number: int) -> list[str]:
        """The sites that a round asks, drawn from the seed alone: alike for every method."""
        sites = list(self.roster)
        stream = generator(self.method.context.seed, "sites of a round", number)
        order = torch.randperm(len(sites), generator=stream)
        return [sites[place] for place in order[: self.config.asked(len(sites))]]

    def _take(self, intake: Intake, answer: Reply | Failure, number: int, sent: Parts) -> None:
        if isinstance(answer, Failure):
            self._miss(intake, answer.site, number, answer.reason)
            return
        try:
            intake.accept(answer, sent)
            self.notify("site_done", round=number, site=answer.site, **self._traffic(answer, sent))
        except UploadRefused as refusal:
            self.notify("upload_refused", round=number, site=answer.site, reason=str(refusal))
            if self.config.on_bad_upload == "stop":
                raise
            if answer.site in intake.waiting:
                intake.absent(answer.site, str(refusal))

    def _traffic(self, answer: Reply, sent: Parts) -> dict[str, int]:
        """Bytes of weights that a site receives and sends in a round, between hospitals."""
        if self.method.pooled:
            return {}
        return {
            way: sum(part.flat.nbytes for part in parts.values())
            for way, parts in (("down", sent), ("up", answer.parts))
        }

    def _miss(self, intake: Intake, site: str, number: int, reason: str) -> None:
        self.notify("site_missing", round=number, site=site, reason=reason)
        intake.absent(site, reason)

    def _enough(self, intake: Intake, number: int, away: int) -> None:
        needed = min(self.config.min_sites or len(self.roster) - away, len(self.roster))
        if number > self.plan.experiment.rounds:
            needed = len(self.roster)  # evaluation asks every site for what it keeps now
        if len(intake.summed) < max(1, needed):
            reasons = "\n".join(f"  {site}: {why}" for site, why in intake.missing.items())
            raise RoundFailed(
                f"{self.job.name}, round {number}: {len(intake.summed)} of {len(self.roster)} "
                f"sites answered, {needed} are needed; missing:\n{reasons}\n"
                f"{GO_ON}; server.min_sites says with how many a round may go on"
            )

    def _learn_of(self, intake: Intake, number: int) -> None:
        """Note the validation of the shared parts as they were after round `number`."""
        by_site = {
            site: {"images": said.images, **said.measures}
            for site, said in intake.said.items()
            if said.images
        }
        if not by_site:
            return
        means = pooled_means(by_site)
        self.record.history.append({"round": number, "sites": by_site, "means": means})
        if self.method.eligible(number + 1):
            self._keep_best(means)
        self.notify("validated", round=number, means=means, sites=by_site)

    def _keep_best(self, means: dict[str, float]) -> None:
        """The shared parts that count so far, by what validation images say of them."""
        for part, measure in self.method.best_by:
            if measure not in means:
                continue  # a part that is not trained yet
            scores = self.record.scores.setdefault(part, [])
            scores.append(means[measure])
            old, new = self.record.best.get(part), self.record.shared[part]
            self.record.best[part] = kept(self.training, old, new, scores)


def pooled_means(by_site: dict[str, dict[str, float]]) -> dict[str, float]:
    """Means over all validation images: site means weighted by their number of images."""
    names = sorted({name for values in by_site.values() for name in values} - {"images"})
    means = {}
    for name in names:
        having = [v for v in by_site.values() if name in v]
        images = sum(v["images"] for v in having)
        means[name] = sum(v[name] * v["images"] for v in having) / images
    return means
