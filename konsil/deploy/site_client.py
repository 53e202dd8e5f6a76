"""A site's side of a deployment: it answers what its policy allows, and logs all of it.

Nothing that leaves here names a file or a patient: an error's text stays in the site's own log,
and the server learns only what kind of error it was.
"""

from __future__ import annotations

import errno
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from konsil.deploy.agreement import Agreed, Greeting, Opening, Over, SharedPlan, SiteData
from konsil.deploy.audit import Audit
from konsil.deploy.deployment import RUN_NAME, SiteSettings
from konsil.deploy.guard import Guard, finished
from konsil.deploy.policy import Policy, PolicyRefused, read_policy
from konsil.errors import ConfigError, DataError, KonsilError, StateError
from konsil.federation.examiner import metrics_of
from konsil.federation.messages import CollectReply, EvaluateReply, Reply, Request
from konsil.federation.plan import Plan
from konsil.federation.site_worker import SiteWorker
from konsil.federation.state import StateFiles
from konsil.files import write_text
from konsil.version import __version__

ACCEPTED, REFUSED = b"A", b"R"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class SiteClient:
    """One hospital, between the engine that carries messages and the worker that computes."""

    def __init__(
        self,
        site: str,
        source: dict[str, Any],
        policy: Policy,
        state: Path,
        device: str = "",
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`tell`: says something to the people at this site."""
        self.site, self.policy, self.state = site, policy, state
        self.device, self.tell = device, tell
        self.data = SiteData(site, source)
        state.mkdir(parents=True, exist_ok=True)
        self.audit = Audit(state, site)
        self._workers: dict[str, SiteWorker] = {}

    @classmethod
    def from_file(cls, path: Path, tell: Callable[[str], None] = lambda _: None) -> SiteClient:
        """The client that `konsil site start` wrote down."""
        known = SiteSettings.read(path)
        policy = read_policy(known.policy)
        return cls(known.site, known.source, policy, known.state, known.device, tell)

    def answer(self, topic: str, payload: bytes) -> bytes:
        """What the server gets to its message; never an exception, never a file's name."""
        topics: dict[str, Callable[[bytes], bytes]] = {
            "greet": self._greet,
            "open": self._open,
            "agree": self._agree,
            "request": self._request,
            "done": self._done,
        }
        if refusal := self.too_large(topic, len(payload)):
            return refusal
        try:
            if topic not in topics:
                raise PolicyRefused(f"topic {topic!r}: unknown to Konsil {__version__}")
            return ACCEPTED + topics[topic](payload)
        except Exception as error:
            return self._refusal(topic, error)

    def too_large(self, topic: str, size: int) -> bytes:
        """The answer to a message that is refused by its length alone; empty: it may come."""
        try:
            self.policy.check_size(size, "message")
            return b""
        except PolicyRefused as error:
            return self._refusal(topic, error)

    def _refusal(self, topic: str, error: Exception) -> bytes:
        """In full for the people at this site, and as far as it may be said for the server."""
        if _disk_full(error):  # mended by people, and the run goes on
            error = StateError(
                f"No space left on the site's disk ({self.state}): make room, and the run goes "
                "on; nothing is lost"
            )
        ours = isinstance(error, KonsilError)
        trace = "" if ours else "".join(traceback.format_exception(error))
        with suppress(OSError):  # the log may be on the very disk that is full
            self.audit.note("refused", topic=topic, reason=str(error), trace=trace)
        self.tell(f"refused ({topic}): {error}")
        return REFUSED + self._public(error).encode(errors="replace")

    def _public(self, error: Exception) -> str:
        """What may be said outside of this hospital: verbatim only what was written for that.

        Other texts may quote this site's own files: paths, or what stands in them.
        """
        if isinstance(error, PolicyRefused):
            return f"refused: {error}"
        if isinstance(error, StateError):  # of messages and states: no image in them
            return str(error).replace(str(self.state), "(its state folder)")
        kinds = {
            DataError: "its data cannot be opened",
            ConfigError: "the experiment cannot be used with this site's own files",
            KonsilError: "an error",
            Exception: type(error).__name__,
        }
        what = next(words for kind, words in kinds.items() if isinstance(error, kind))
        return f"{what}; the details are in the site's own log"

    # --- before the first round ---

    def _greet(self, payload: bytes) -> bytes:
        greeting = Greeting.from_bytes(payload)
        if greeting.version != __version__:
            raise PolicyRefused(
                f"the server runs Konsil {greeting.version}, this site {__version__}: install "
                "the same version"
            )
        experiment = self.data.experiment(greeting.experiment, self.policy.plugins)
        self.policy.check_choices(experiment)
        self.audit.note("greeted", methods=[m.name for m in experiment.methods])
        return self.data.welcome(experiment).to_bytes()

    def _open(self, payload: bytes) -> bytes:
        asked = Opening.from_bytes(payload)
        experiment = self.data.experiment(asked.experiment, self.policy.plugins)
        _, answer = self.data.open(experiment, asked.labels)
        self.audit.note("opened", counts=answer.counts, fingerprint=answer.fingerprint)
        return answer.to_bytes()

    def _agree(self, payload: bytes) -> bytes:
        shared = SharedPlan.from_bytes(payload)
        worker = self._new_worker(shared)
        plan, file = worker.plan, self._agreed(worker.plan.hash)
        self._check_run(plan.hash, shared.run)
        write_text(file, shared.model_dump_json(indent=1), durable=True)
        self._workers = {plan.hash: worker}
        self.audit.note(
            "agreed",
            plan=plan.hash,
            run=shared.run,
            version=plan.version,
            sites=list(plan.sites),
            experiment=plan.resolved() | {"plugins": [], "federation": {}},
        )
        e, methods = plan.experiment, ", ".join(m.title for m in plan.experiment.methods)
        self.tell(
            f"agreed to plan {plan.hash} (Konsil {plan.version}): {e.name}, {methods}, "
            f"{e.rounds} rounds, {e.task.name} of {', '.join(plan.labels)}"
        )
        self.tell(f"  with {', '.join(plan.sites)}; all of it: {file}")
        return Agreed(plan=plan.hash).to_bytes()

    def _check_run(self, plan: str, run: str) -> None:
        """A run whose rounds have begun is of the plan that it began with."""
        began = self._runs(plan, run).parent.parent.glob(f"*/{run}")
        known = [folder.parent.name for folder in began]
        if known and plan not in known:
            raise PolicyRefused(
                f"run {run}: this site agreed to plan {known[0]}, now it is shown plan {plan}; a "
                "changed plan is a new run: submit it under another name"
            )

    # --- rounds ---

    def _request(self, payload: bytes) -> bytes:
        request = self.audit.received(self.site, payload, Request)
        if request.site != self.site:
            raise PolicyRefused(f"a request for {request.site} reached {self.site}")
        if request.plan not in self._workers:  # it may have agreed before it was restarted
            self._workers = {request.plan: self._new_worker(self._noted(request.plan))}
        worker = self._workers[request.plan]
        Guard(worker.plan, worker.run_folder, self.site).check(request)
        reply = self._within_policy(worker.handle(request), worker.plan)
        answer = reply.to_bytes()
        self.policy.check_size(len(answer), "reply")
        self.audit.sent(self.site, reply, answer)
        if request.kind == "round":
            self.tell(f"{request.job}: round {request.round} answered")
        return answer

    def _new_worker(self, shared: SharedPlan) -> SiteWorker:
        """Who answers for a plan, with this site's own places, if the site agrees to it."""
        plan, federation = self.data.plan(shared, self.policy.plugins)
        self.policy.check_plan(plan, self.site)
        patients = {self.site: federation.test_patients(self.site)}
        return SiteWorker(plan, self._runs(plan.hash, shared.run), self.device, patients)

    def _noted(self, plan: str) -> SharedPlan:
        """A plan as this site agreed to it."""
        path = self._agreed(plan)
        if not path.exists():
            raise PolicyRefused(f"plan {plan}: this site has not agreed to it")
        return SharedPlan.from_bytes(path.read_bytes())

    def _within_policy(self, reply: Reply, plan: Plan) -> Reply:
        """What the policy lets out of a reply."""
        if reply.kind == "collect" and not self.policy.hand_out_specialist:
            return replace(reply, body=CollectReply(withheld=True), parts={})
        if reply.kind == "evaluate" and self.policy.scores == "means":
            task = plan.method(plan.job(reply.job)).context.task
            said = reply.body_as(EvaluateReply)
            means = EvaluateReply(images=said.images, means=metrics_of(said, task))
            return replace(reply, body=means)
        return reply

    def _done(self, payload: bytes) -> bytes:
        """A run is over: what only further rounds would have needed goes.

        Whether it is over this site sees itself: a state from the middle of a run is kept.
        """
        over = Over.from_bytes(payload)
        rounds = cast(int, self._noted(over.plan).experiment["rounds"])
        folder, kept = self._runs(over.plan, over.run), []
        found = {path.parent for name in StateFiles.NAMES for path in folder.rglob(name)}
        for states in sorted(found):
            if _is_finished(states, over.plan, rounds):
                StateFiles(states, over.plan).forget()
            else:
                kept.append(states.relative_to(folder).as_posix())
        why = f"state kept, training is not finished here: {', '.join(kept)}"
        reason = {"reason": why} if kept else {}
        self.audit.note("done", plan=over.plan, run=over.run, **reason)
        return b""

    def _runs(self, plan: str, run: str) -> Path:
        """Where a run's state is. A stopped run and a new one may be of the same plan."""
        if not RUN_NAME.fullmatch(run):
            raise PolicyRefused("a run's name is letters, digits, dots, dashes and underscores")
        return self.state / "runs" / self._agreed(plan).stem / run

    def _agreed(self, plan: str) -> Path:
        if not plan.isalnum():  # it becomes a file's name
            raise PolicyRefused("a plan's hash is letters and digits")
        return self.state / "plans" / f"{plan}.json"


def _is_finished(folder: Path, plan: str, rounds: int) -> bool:
    """A state that cannot be read is none that may be thrown away."""
    with suppress(StateError):
        return finished(folder, plan, rounds)
    return False


def _disk_full(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in DISK_FULL
    return any(f"(os error {number})" in str(error) for number in DISK_FULL)  # safetensors' words
