"""What an admin does with a federation, from any machine that reaches the server."""

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4
from zipfile import ZipFile

from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from nvflare.fuel.hci.client import api

from konsil.deploy.deployment import RUN_NAME
from konsil.deploy.flare.job import ARCHIVE, MARK, RunOrder, roster_of, run_of, write_job
from konsil.deploy.flare.workspace import prepare
from konsil.deploy.kit import Kit, knock
from konsil.deploy.sessions import ABORTED, OVER, Note
from konsil.errors import RunError

api._print_hci_message = lambda _: None  # FLARE says that it connects; nobody asked
LOGIN = 20.0  # seconds to log in at the server
ANSWER = 30.0  # seconds for the answer to one command
STOP = 60.0  # seconds for a run to be stopped
LOOK_EVERY = 1.0
EVENT = "konsil.events: "  # how an event begins in the server's log


@dataclass(frozen=True)
class Status:
    """How a run stands."""

    run: str
    state: str  # waiting, running, finished, failed, stopped
    reason: str
    session: int
    submitted: str
    roster: list[str]
    events: list[dict[str, Any]]  # of this session, as in events.jsonl

    @property
    def over(self) -> bool:
        """Whether nothing more will happen by itself."""
        return self.state in OVER


class Admin:
    """A connection with an admin's kit."""

    def __init__(self, kit: Kit, session: Session) -> None:
        self.kit, self._session = kit, session

    def submit(self, experiment: dict[str, Any], sites: Sequence[str], run: str = "") -> str:
        """Have an experiment run at these sites; the name of the run.

        With the name of a run that stopped or failed, that one goes on.
        """
        run = run or new_run(str(experiment.get("name", "experiment")))
        if not RUN_NAME.fullmatch(run):
            raise RunError(
                f"{run!r}: a run's name is letters, digits, dots, dashes and underscores"
            )
        if run in self.runs() and not self.status(run, events=False).over:
            raise RunError(f"run {run}: is at work already; stop it first, or submit another")
        with tempfile.TemporaryDirectory(prefix="konsil-") as folder:
            write_job(Path(folder) / "job", RunOrder(run, experiment, list(sites)))
            self._ask(self._session.submit_job, f"{folder}/job")
        return run

    def runs(self) -> list[str]:
        """The runs that the server knows, the newest last."""
        return list(dict.fromkeys(str(run_of(job["name"])) for job in self._jobs()))

    def status(self, run: str, events: bool = True) -> Status:
        """How a run stands."""
        meta = self._sessions(run)[-1]
        note, submitted = Note.of(meta), str(meta.get("submit_time_iso", ""))
        found = self._events(meta["job_id"]) if events else []
        facts = note.state, note.reason, note.session, submitted, roster_of(meta["deploy_map"])
        return Status(run, *facts, found)

    def logs(self, run: str) -> str:
        """What the server logged of all sessions of a run."""
        return "".join(self._log(job["job_id"]) for job in self._sessions(run))

    def fetch(self, run: str, out: Path) -> None:
        """Copy what a run that is over left at the server into `out`."""
        status = self.status(run, events=False)
        if not status.over:
            raise RunError(f"run {run}: {status.state}; it can be fetched when it is over")
        job = self._sessions(run)[-1]["job_id"]
        place = Path(self._ask(self._session.download_job_components, job))
        try:
            with ZipFile(place / "_".join(ARCHIVE)) as archive:
                archive.extractall(out)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def stop(self, run: str) -> None:
        """End a run. Submitted again under its name, it goes on where it was."""
        end = time.monotonic() + STOP
        while not self.status(run, events=False).over:
            if time.monotonic() > end:
                raise RunError(f"run {run}: it could not be stopped; try again")
            meta = self._sessions(run)[-1]
            if meta["status"] != ABORTED:
                with contextlib.suppress(RunError):  # it may end at this moment
                    self._ask(self._session.abort_job, meta["job_id"])
            time.sleep(LOOK_EVERY)

    def _ask(self, command: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """One of FLARE's commands; whatever it raises, in words."""
        try:
            return command(*arguments, **named)
        except Exception as error:
            name = command.__name__.replace("_", " ")
            raise RunError(f"the server at {self.kit.address}: {name}: {error}") from None

    def _jobs(self, run: str = "") -> list[dict[str, Any]]:
        """The meta data of all jobs whose names begin so, the newest last."""
        return list(self._ask(self._session.list_jobs, True, name_prefix=MARK + run))

    def _sessions(self, run: str) -> list[dict[str, Any]]:
        ours = [job for job in self._jobs(run) if run_of(job["name"]) == run]
        if not ours:
            known = ", ".join(self.runs()) or "none"
            raise RunError(f"run {run}: the server does not know it; it knows {known}")
        return ours

    def _log(self, job: str) -> str:
        answer = self._ask(self._session.get_job_logs, job, "server")
        return str(answer["logs"].get("server", ""))  # none before its first session

    def _events(self, job: str) -> list[dict[str, Any]]:
        whole, _, _ = self._log(job).rpartition("\n")  # the last line may be being written
        lines = (line.partition(EVENT)[2] for line in whole.splitlines())
        return [json.loads(line) for line in lines if line]


@contextlib.contextmanager
def connect(kit_folder: Path) -> Iterator[Admin]:
    """Log in with an admin's kit."""
    kit = Kit.read(kit_folder, "admin")
    kit.check_dates()
    server = f"the server at {kit.address}"
    try:
        knock(kit)
    except OSError as error:
        reason = error.strerror or error
        raise RunError(f"{server} does not answer ({reason}); is it started?") from None
    with tempfile.TemporaryDirectory(prefix="konsil-") as folder:
        workspace = str(prepare(kit, Path(folder)))
        times = {"timeout": LOGIN, "command_timeout": ANSWER}
        try:
            session = new_secure_session(kit.party, workspace, **times)
        except Exception as error:  # whatever FLARE raises
            raise RunError(f"{server} does not let us in ({error})") from None
        try:
            yield Admin(kit, session)
        finally:
            with contextlib.suppress(Exception):
                session.close()


def new_run(experiment: str) -> str:
    """A name for a run: what, when, and something to tell two of a second apart."""
    return f"{experiment}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid4().hex[:4]}"
