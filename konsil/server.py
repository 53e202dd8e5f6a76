"""What the coordinator does: rounds, guards, means, records."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isfinite, sqrt
from pathlib import Path
from typing import Any

import torch

from konsil.config import ServerConfig
from konsil.engines import Engine
from konsil.errors import RoundFailed, StateError, UploadRefused
from konsil.messages import Failure, Kind, Reply, Request, is_number, shown
from konsil.method import Means
from konsil.plan import Job, Plan
from konsil.storage import read_parts, write_parts
from konsil.weights import Layout, Parts, WeightedMean, Weights

Notify = Callable[..., None]
GO_ON = "mend that, then go on with the run"
MEASURE = re.compile(r"[\w. -]{1,100}")  # its name gets onto pictures
LARGEST_MEASURE = 1e9  # far above any score or loss: means over sites stay finite


@dataclass(frozen=True)
class Holding:
    """How many images a site has, by the plan: what it says of itself is held against that."""

    train: int
    val: int

    @property
    def largest_weight(self) -> int:
        """Of a part in its mean: a site counts once, or by the images it learned from."""
        return max(self.train, self.val)


@dataclass
class Record:
    """All the server must remember of a job: written whole after every round."""

    round: int = 0  # the last round that is complete
    shared: dict[str, Weights] = field(default_factory=dict)
    best: dict[str, Weights] = field(default_factory=dict)  # shared parts, by validation
    best_scores: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)  # validation, round by round
    counted: dict[str, int] = field(default_factory=dict)  # site -> its last round that counts
    finished: bool = False

    def save(self, path: Path, plan: str, durable: bool) -> None:
        """Replace the record on disk."""
        header = {
            "plan": plan,
            "round": self.round,
            "best_scores": self.best_scores,
            "history": self.history,
            "counted": self.counted,
            "finished": self.finished,
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
        return cls(shared=shared, best=best, **header)


class Intake:
    """One round's uploads: checked before they touch a sum, summed in roster order.

    Replies may come in any order; one that is early waits for those before it in the roster, so
    that the sums are the same bits whoever answered first. Few wait in memory, the others in
    `folder`: memory does not grow with the sites.
    """

    IN_MEMORY = 2
    FACTS = ("measures", "images", "weights")  # what else a site may say is not kept

    def __init__(
        self,
        request: Request,
        roster: Mapping[str, Holding],
        layouts: dict[str, Layout],
        config: ServerConfig,
        keep: bool = False,
        folder: Path | None = None,
    ) -> None:
        self.request, self.layouts, self.config = request, layouts, config
        self.roster = roster
        self.folder = folder
        self.keep = keep  # a method that needs single models: they stay
        self.individual: dict[str, Parts] = {}
        self.waiting = list(roster)  # not yet summed, in roster order
        self.arrived: dict[str, Reply | Path | None] = {}  # None: will not come, or is summed
        self.summed: list[str] = []
        self.facts: dict[str, dict[str, Any]] = {}
        self.missing: dict[str, str] = {}  # site -> why
        self._means = {name: WeightedMean(layout) for name, layout in layouts.items()}

    def accept(self, reply: Reply) -> None:
        """Take one upload, or refuse it by name; a refused one changes nothing."""
        self._check_envelope(reply)
        self._check_facts(reply)
        for name, part in reply.parts.items():
            self._check_part(reply, name, part)
        reply = replace(reply, facts={name: reply.facts.get(name) for name in self.FACTS})
        self.arrived[reply.site] = reply
        self._sum_in_order()
        if self.arrived[reply.site] is not None:
            self._make_room(reply)

    def absent(self, site: str, reason: str) -> None:
        """This site will not answer in this round."""
        self.missing[site] = reason
        self.arrived[site] = None
        self._sum_in_order()

    def means(self) -> Means:
        """The weighted mean of every part, over the sites that answered."""
        means = {name: mean.result() for name, mean in self._means.items() if mean.total > 0}
        return Means(means, self.request.round, tuple(self.summed), self.individual)

    def _sum_in_order(self) -> None:
        while self.waiting and self.waiting[0] in self.arrived:
            site = self.waiting.pop(0)
            reply = self._waiting_reply(site)
            if reply is None:
                continue
            for name, mean in self._means.items():
                mean.add(reply.parts[name], reply.facts["weights"][name])
            self.summed.append(site)
            self.facts[site] = reply.facts
            if self.keep:
                self.individual[site] = reply.parts
            self.arrived[site] = None  # its weights are in the sums: let them go

    def _make_room(self, reply: Reply) -> None:
        """An early reply waits on the disk if others wait in memory already."""
        early = sum(isinstance(waiting, Reply) for waiting in self.arrived.values())
        if self.folder is None or early <= self.IN_MEMORY:
            return
        path = self.folder / f"{reply.site}.knsl"
        with suppress(StateError):  # no room there: then it waits where it is
            write_parts(path, reply.header(), reply.parts)
            self.arrived[reply.site] = path

    def _waiting_reply(self, site: str) -> Reply | None:
        reply = self.arrived[site]
        if not isinstance(reply, Path):
            return reply
        header, parts = read_parts(reply)
        reply.unlink()
        return Reply(**header, parts=parts)

    def _check_envelope(self, reply: Reply) -> None:
        if reply.site not in self.roster:
            raise self._refusal(reply, f"not in the roster ({', '.join(sorted(self.roster))})")
        if reply.site in self.arrived:
            raise self._refusal(reply, "a second upload for this round")
        if wrong := wrong_address(reply, self.request):
            raise self._refusal(reply, wrong)
        names, expected = set(reply.parts), set(self.layouts)
        if names != expected:
            raise self._refusal(reply, f"parts {shown(sorted(names))}, expected {sorted(expected)}")

    def _check_facts(self, reply: Reply) -> None:
        measures, images = reply.facts.get("measures"), reply.facts.get("images")
        if not isinstance(measures, dict) or type(images) is not int:
            raise self._refusal(reply, "no validation measures and number of images in it")
        expected = self.roster[reply.site].val if self.request.facts.get("validate") else 0
        if images != expected:
            raise self._refusal(reply, f"{shown(images)} validation images, by the plan {expected}")
        for name, value in measures.items():
            if not MEASURE.fullmatch(name) or name == "images":
                raise self._refusal(reply, f"a measure of the name {shown(name)}")
            if not is_number(value) or abs(value) > LARGEST_MEASURE:
                raise self._refusal(reply, f"{name}: its measure is {shown(value)}")
        weights = reply.facts.get("weights", {})
        if not isinstance(weights, dict) or not weights.keys() <= reply.parts.keys():
            raise self._refusal(reply, "weights of other parts than are in it")

    def _check_part(self, reply: Reply, name: str, part: Weights) -> None:
        if wrong := wrong_values(part, self.layouts[name], self.config.max_rms):
            raise self._refusal(reply, f"{name}: {wrong}")
        weight = reply.facts.get("weights", {}).get(name)
        largest = self.roster[reply.site].largest_weight
        if not is_number(weight) or weight <= 0:
            raise self._refusal(
                reply, f"{name}: its weight is {shown(weight)}, not a positive number"
            )
        if weight > largest:
            raise self._refusal(
                reply, f"{name}: its weight is {weight:.6g}, with its images {largest} at most"
            )

    def _refusal(self, reply: Reply, why: str) -> UploadRefused:
        return UploadRefused(
            f"site {shown(reply.site)}, round {self.request.round}: refused: {why}"
        )


def wrong_address(reply: Reply, request: Request) -> str:
    """Why a reply is none to this request; empty if it is one."""
    if reply.kind != request.kind:
        return f"it answers {shown(reply.kind)}; this is {request.kind}"
    if (reply.job, reply.round) != (request.job, request.round):
        return (
            f"it is for {shown(reply.job)}, round {shown(reply.round)}; this is {request.job}, "
            f"round {request.round}"
        )
    return "" if reply.plan == request.plan else f"plan {shown(reply.plan)}, not {request.plan}"


def wrong_values(part: Weights, layout: Layout, max_rms: float) -> str:
    """What is wrong with a part that a site sent; empty if nothing is."""
    if part.layout.key != layout.key:
        return _difference(part.layout, layout)
    norm = float(part.flat.norm())
    if not isfinite(norm):
        return "values that are not finite"
    rms = norm / sqrt(max(1, layout.size))
    return f"root mean square {rms:.3g} is above {max_rms:.3g}" if rms > max_rms else ""


def _difference(got: Layout, expected: Layout) -> str:
    """The first thing in which two layouts differ."""
    for ours, theirs in zip(expected.entries, got.entries, strict=False):
        if ours != theirs:
            found = f"{shown(theirs.name)} {shown(theirs.shape)}"
            return f"{found} where {ours.name} {ours.shape} belongs"
    return f"{len(got.entries)} entries where {len(expected.entries)} belong"


class Server:
    """Trains one job: one method with one seed."""

    def __init__(
        self, plan: Plan, job: Job, engine: Engine, run_folder: Path, notify: Notify
    ) -> None:
        self.plan, self.job, self.engine, self.notify = plan, job, engine, notify
        self.config = plan.experiment.server
        self.method = plan.method(job)
        self.roster = {
            site: Holding(plan.images(site, "train"), plan.images(site, "val"))
            for site in self.method.context.sites
        }
        self.path = run_folder / job.name / "server" / "record.knsl"
        self.record = self._start()

    def _start(self) -> Record:
        if self.path.exists():
            return Record.load(self.path, self.plan.hash)
        return Record(shared=self.method.initial_parts())

    def train(self) -> Record:
        """Every round that is not done yet, then validation of the last means."""
        for number in range(self.record.round + 1, self.plan.experiment.rounds + 1):
            self._round(number)
        if not self.record.finished:
            self._finish()
        return self.record

    def _round(self, number: int) -> None:
        self.notify("round_started", round=number)
        validate = (number - 1) % self.plan.experiment.training.validate_every == 0
        intake = self._ask("round", number, validate)
        self._learn_of(intake, number - 1)
        self.record.shared = self._merged(intake.means())
        self.record.round = number
        self.record.counted |= dict.fromkeys(intake.summed, number)
        self._save()
        self.notify("round_done", round=number, sites=intake.summed)

    def _merged(self, means: Means) -> dict[str, Weights]:
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
        intake = Intake(requests[0], self.roster, layouts, self.config, keep, waiting)
        away = {s for s in self.roster if kind == "round" and self._away(s, number)}
        for site in sorted(away):
            self._miss(intake, site, number, "absent by the experiment's plan")
        present = [r for r in requests if r.site not in away]
        for answer in self.engine.exchange(present, self.config.deadline):
            self._take(intake, answer, number)
        self._enough(intake, number)
        return intake

    def _request(self, kind: Kind, site: str, number: int, validate: bool) -> Request:
        parts = self.method.sent(site, self.record.shared)
        facts = {"validate": validate, "after": self.record.counted.get(site, 0)}
        return Request(kind, self.job.name, site, number, self.plan.hash, parts, facts)

    def _away(self, site: str, number: int) -> bool:
        return number in self.config.absences.get(site, [])

    def _take(self, intake: Intake, answer: Reply | Failure, number: int) -> None:
        if isinstance(answer, Failure):
            self._miss(intake, answer.site, number, answer.reason)
            return
        try:
            intake.accept(answer)
            self.notify("site_done", round=number, site=answer.site)
        except UploadRefused as refusal:
            self.notify("upload_refused", round=number, site=answer.site, reason=str(refusal))
            if self.config.on_bad_upload == "stop":
                raise
            if answer.site in intake.waiting:
                intake.absent(answer.site, str(refusal))

    def _miss(self, intake: Intake, site: str, number: int, reason: str) -> None:
        self.notify("site_missing", round=number, site=site, reason=reason)
        intake.absent(site, reason)

    def _enough(self, intake: Intake, number: int) -> None:
        away = sum(self._away(s, number) for s in self.roster)
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
            site: {"images": facts["images"], **facts["measures"]}
            for site, facts in intake.facts.items()
            if facts["images"]
        }
        if not by_site:
            return
        means = pooled_means(by_site)
        self.record.history.append({"round": number, "sites": by_site, "means": means})
        if self.method.eligible(number + 1):
            self._keep_best(means)
        self.notify("validated", round=number, means=means)

    def _keep_best(self, means: dict[str, float]) -> None:
        """Shared parts that are at least as good on validation images as any before."""
        for part, measure in self.method.best_by:
            if measure not in means:
                continue  # a part that is not trained yet
            if means[measure] >= self.record.best_scores.get(part, -1.0):
                self.record.best_scores[part] = means[measure]
                self.record.best[part] = self.record.shared[part]


def pooled_means(by_site: dict[str, dict[str, float]]) -> dict[str, float]:
    """Means over all validation images: site means weighted by their number of images."""
    names = sorted({name for values in by_site.values() for name in values} - {"images"})
    means = {}
    for name in names:
        having = [v for v in by_site.values() if name in v]
        images = sum(v["images"] for v in having)
        means[name] = sum(v[name] * v["images"] for v in having) / images
    return means
