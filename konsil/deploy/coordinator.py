"""The server's side of a deployment: come to a plan, then run it like any other.

Everything is written to the run's folder as it happens. Whoever is killed is started again and
goes on where it was.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from konsil.config import check_experiment
from konsil.deploy import agreement
from konsil.deploy.agreement import Said, SharedPlan, with_own_initial, without_places
from konsil.deploy.audit import Audit
from konsil.deploy.sessions import Outcome, RoundClock
from konsil.deploy.site_client import ACCEPTED
from konsil.errors import KonsilError, RoundFailed, RunError, StateError
from konsil.federation.messages import BadMessage, Failure, Reply, Request
from konsil.federation.plan import Plan, load_choices
from konsil.federation.runner import Observer, Run, check_version, read_plan
from konsil.report.figures import draw_figures
from konsil.version import __version__

S = TypeVar("S", bound=Said)
BytesFor = Callable[[str], bytes]  # a site's own; made when it is fetched, never all at once
Answer = tuple[str, bytes | Failure]  # from which site
WEIGHTS = ".safetensors"  # files that a server is given beside plugins: what networks begin with
PATIENCE = 3600.0  # seconds in which a site opens its data before the first round
AGAIN = 60.0  # seconds for a site to look at a plan again that it agreed to before
GOODBYE = 30.0  # seconds for a site to hear that a run is over; one that left keeps its state


class Link(Protocol):
    """Carries bytes between the coordinator and the sites; knows nothing of their meaning."""

    def send(
        self, topic: str, sites: Sequence[str], message: BytesFor, deadline: float | None = None
    ) -> Iterator[Answer]:
        """To each site its own bytes; answers in the order of arrival.

        A Failure for each site that has not answered after `deadline` seconds, or is gone.
        """

    def too_late(self) -> list[tuple[str, bytes]]:
        """Answers, since the last call, that came when nobody waited for them any more."""

    def here(self, site: str) -> bool:
        """Whether a site is connected now."""


def coordinate(
    experiment: dict[str, Any],
    roster: Sequence[str],
    link: Link,
    folder: Path,
    observers: Sequence[Observer] = (),
    plugins: Sequence[Path] = (),
) -> None:
    """Agree, train, evaluate; `outcome.json` says how it ended. Raises KonsilError.

    Called again for the same folder it goes on where it was.
    """
    folder.mkdir(parents=True, exist_ok=True)
    Outcome.forget(folder)
    sites = Sites(roster, link, folder)
    try:
        plan = _plan(experiment, sites, folder, plugins)
        run = Run(plan, folder, observers)
        run.prepare(resume=True, write_splits=None)
        run.go(lambda: sites)
        draw_figures(folder, plan)
        sites.ask("done", agreement.Over(plan=plan.hash, run=folder.name), roster, GOODBYE)
        Outcome("finished").write(folder)
    except RoundFailed as error:  # sites are missing: another session may find them
        sites.clock.forget()
        Outcome("waiting", str(error)).write(folder)
        raise
    except KonsilError as error:
        Outcome("failed", str(error)).write(folder)
        raise
    finally:
        sites.note_too_late()
        sites.audit.close()


class Refusal(Failure):
    """A site answered, and does not want to."""


class Sites:
    """Those at the other end of a link; every message has a line in the audit trail.

    Before the first round they are asked about the plan, then this is the run's engine.
    """

    def __init__(self, roster: Sequence[str], link: Link, folder: Path) -> None:
        self._roster, self._link = roster, link
        self.audit, self.clock = Audit(folder, "server"), RoundClock(folder)

    # --- before the first round ---

    def ask_all(self, topic: str, message: Said, kind: type[S]) -> dict[str, S]:
        """What every site answers, in the roster's order; nobody may be missing."""
        answers = self.ask(topic, message, self._roster, PATIENCE)
        read: dict[str, S] = {}
        failed: dict[str, str] = {}
        for site in self._roster:
            answer = answers[site]
            try:
                if isinstance(answer, Failure):
                    failed[site] = answer.reason
                else:
                    read[site] = kind.from_bytes(bytes(answer))
            except BadMessage:
                failed[site] = f"what it answered is no {kind.__name__}; does it run this version?"
        _stop_if_any(failed, topic)
        return read

    def ask(
        self, topic: str, message: Said, sites: Sequence[str], patience: float
    ) -> dict[str, memoryview | Failure]:
        """What those answer who do, in time."""
        payload = message.to_bytes()
        for site in sites:
            self.audit.note("sent", site=site, topic=topic, bytes=len(payload))
        answers = {}
        for site, answer in self._link.send(topic, sites, lambda _: payload, patience):
            said = answers[site] = accepted(answer)
            fact = {"refused": said.reason} if isinstance(said, Failure) else {"bytes": len(said)}
            self.audit.note("received", site=site, topic=topic, **fact)
        return answers

    def show_again(self, shared: SharedPlan) -> None:
        """Sites that agreed before see the plan again; who is away or slow is not waited for."""
        here = [site for site in self._roster if self._link.here(site)]
        answers = self.ask("agree", shared, here, AGAIN)
        refused = {s: a.reason for s, a in answers.items() if isinstance(a, Refusal)}
        for site, reason in refused.items():  # a run that goes on may miss a site for some rounds
            self.audit.note("not agreed", site=site, reason=reason)
        if refused.keys() == answers.keys():
            _stop_if_any(refused, "agree")

    # --- rounds ---

    def exchange(
        self, requests: Sequence[Request], deadline: float | None = None
    ) -> Iterator[Reply | Failure]:
        """Ask the sites over the link; what comes after the deadline is an absence."""
        to = {request.site: request for request in requests}
        left = self.clock.left(requests[0], deadline) if requests else None

        def sent(site: str) -> bytes:
            payload = to[site].to_bytes()
            self.audit.sent(site, to[site], payload)
            return payload

        for site, answer in self._link.send("request", list(to), sent, left):
            yield self._read(site, answer)
            self.note_too_late()

    def _read(self, site: str, answer: bytes | Failure) -> Reply | Failure:
        """The link knows who sent it; that no site answers in another's name is seen to here."""
        payload = accepted(answer)
        try:
            if isinstance(payload, Failure):
                raise StateError(payload.reason)
            reply = self.audit.received(site, payload, Reply)
            if reply.site != site:
                raise StateError(f"refused: an answer in the name of {reply.site}")
            return reply
        except StateError as missing:
            self.audit.note("missing", site=site, reason=str(missing))
            return Failure(site, str(missing))

    def note_too_late(self) -> None:
        """What arrived and does not count is in the trail as well."""
        for site, answer in self._link.too_late():
            payload = accepted(answer)
            if not isinstance(payload, Failure):
                with suppress(StateError):  # it is not read
                    self.audit.received(site, payload, Reply, "too late")

    def close(self) -> None:
        """The link is not ours to close."""


def accepted(answer: bytes | Failure) -> memoryview | Failure:
    """What a site accepted to answer; otherwise why not."""
    if isinstance(answer, Failure):
        return answer
    if answer[:1] == ACCEPTED:
        return memoryview(answer)[1:]
    return Refusal("", answer[1:].decode(errors="replace"))


def _stop_if_any(refused: Mapping[str, str], what: str) -> None:
    if refused:
        lines = "\n".join(f"  {site}: {reason}" for site, reason in refused.items())
        raise RoundFailed(f"these sites did not {what}:\n{lines}")


# --- the plan -------------------------------------------------------------------------------------


def _plan(raw: dict[str, Any], sites: Sites, folder: Path, plugins: Sequence[Path]) -> Plan:
    """The plan that all sites agree to: the folder's, or a new one."""
    known = (folder / "plan.yaml").exists()
    plan = _unchanged_plan(folder) if known else _new_plan(raw, sites, plugins)
    plain = plan.to_json() | {"run": folder.name}
    plain["experiment"]["plugins"] = []  # where they lie here is nobody's business
    if plan.initial_weights:
        plain["experiment"]["network"]["initial"] = plan.initial_weights
    shared = SharedPlan.read(plain)
    if known:
        sites.show_again(shared)
    else:
        sites.ask_all("agree", shared, agreement.Agreed)
    return plan


def _unchanged_plan(folder: Path) -> Plan:
    """The plan of a run that goes on, as the sites have agreed to it."""
    facts = read_plan(folder)
    check_version(folder, facts)
    plan = Plan.from_json(facts)
    if plan.hash != facts["hash"]:
        raise RunError(
            f"{folder.name}/plan.yaml was changed: it is of plan {facts['hash']}, its content "
            f"is that of {plan.hash}; bring it back as it was, or submit a new run"
        )
    return plan


def _new_plan(raw: dict[str, Any], sites: Sites, plugins: Sequence[Path]) -> Plan:
    # Between hospitals a power cut is a power cut: what counts is waited for at every disk.
    engine = {**raw.get("engine", {}), "durable": True}
    code = [str(path) for path in plugins if path.suffix != WEIGHTS]
    own = {"plugins": code, "engine": engine}
    experiment = check_experiment(with_own_initial(raw, plugins) | own, "experiment")
    travelling = without_places(experiment)
    told = travelling | {"plugins": load_choices(experiment)}  # a site takes its own files of these
    greeting = agreement.Greeting(experiment=told, version=__version__)
    welcomes = sites.ask_all("greet", greeting, agreement.Welcome)
    labels, channels = agreement.common_labels(welcomes)
    opening = agreement.Opening(experiment=told, labels=labels)
    answers = sites.ask_all("open", opening, agreement.Opened)
    known = with_own_initial(travelling, plugins) | {"plugins": experiment.plugins}
    agreed = check_experiment(known, "experiment")
    return agreement.make_plan(agreed, labels, channels, answers)
