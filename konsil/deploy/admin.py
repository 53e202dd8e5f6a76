"""What an admin does with a federation, from any machine that reaches the server."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from nvflare.fuel.flare_api.api_spec import (
    AuthenticationError,
    InternalError,
    JobNotDone,
    NoConnection,
)
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from konsil.deploy.kit import Kit, knock
from konsil.engines.flare.job import MARK, RunOrder, roster_of, run_of, write_job
from konsil.engines.flare.sessions import ABORTED, OVER, Note
from konsil.engines.flare.workspace import prepare
from konsil.errors import RunError

LOGIN = 20.0  # seconds to log in at the server
STOP = 60.0  # seconds for a run to be stopped
LOOK_EVERY = 1.0
RESULT = "workspace/run"  # in what FLARE's download brings: see controller.py


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
        with tempfile.TemporaryDirectory(prefix="konsil-") as folder:
            write_job(Path(folder) / "job", RunOrder(run, experiment, list(sites)))
            self._session.submit_job(f"{folder}/job")
        return run

    def runs(self) -> list[str]:
        """The runs that the server knows, the newest last."""
        return list(dict.fromkeys(str(run_of(job["name"])) for job in self._jobs("")))

    def status(self, run: str, events: bool = True) -> Status:
        """How a run stands."""
        meta = self._last(run)
        note = Note.of(meta)
        return Status(
            run,
            note.state,
            note.reason,
            note.session,
            str(meta.get("submit_time_iso", "")),
            roster_of(meta["deploy_map"]),
            self._events(meta["job_id"]) if events else [],
        )

    def logs(self, run: str) -> str:
        """What the server logged of all sessions of a run."""
        return "".join(self._log(job["job_id"]) for job in self._sessions(run))

    def fetch(self, run: str, out: Path) -> None:
        """Copy what a run that is over left at the server into `out`."""
        status = self.status(run, events=False)
        if not status.over:
            raise RunError(f"run {run}: {status.state}; it can be fetched when it is over")
        with tempfile.TemporaryDirectory(prefix="konsil-") as folder:
            try:
                place = self._session.download_job_result(self._last(run)["job_id"], folder)
            except (JobNotDone, InternalError) as error:
                raise RunError(f"run {run}: cannot be fetched ({error})") from None
            result = Path(place) / RESULT
            if not result.is_dir():
                raise RunError(f"run {run}: the server kept nothing of it ({status.reason})")
            out.mkdir(parents=True, exist_ok=True)
            shutil.copytree(result, out, dirs_exist_ok=True)

    def stop(self, run: str) -> None:
        """End a run. Submitted again under its name, it goes on where it was."""
        end = time.monotonic() + STOP
        while not self.status(run, events=False).over:
            if time.monotonic() > end:
                raise RunError(f"run {run}: it could not be stopped; try again")
            meta = self._last(run)
            if meta["status"] != ABORTED:
                with contextlib.suppress(InternalError):  # it may end at this moment
                    self._session.abort_job(meta["job_id"])
            time.sleep(LOOK_EVERY)

    def close(self) -> None:
        """Log out."""
        with contextlib.suppress(Exception):
            self._session.close()

    def _jobs(self, run: str) -> list[dict[str, Any]]:
        """The meta data of all jobs whose names begin so, the newest last."""
        jobs: list[dict[str, Any]] = self._session.list_jobs(True, name_prefix=MARK + run)
        return jobs

    def _sessions(self, run: str) -> list[dict[str, Any]]:
        ours = [job for job in self._jobs(run) if run_of(job["name"]) == run]
        if not ours:
            known = ", ".join(self.runs()) or "none"
            raise RunError(f"run {run}: the server does not know it; it knows {known}")
        return ours

    def _last(self, run: str) -> dict[str, Any]:
        return self._sessions(run)[-1]

    def _log(self, job: str) -> str:
        with contextlib.suppress(InternalError):
            return str(self._session.get_job_logs(job, "server")["logs"].get("server", ""))
        return ""

    def _events(self, job: str) -> list[dict[str, Any]]:
        lines = (line.partition(EVENT)[2] for line in self._log(job).splitlines())
        return [json.loads(line) for line in lines if line]


EVENT = "konsil.events: "  # how an event begins in the server's log


@contextlib.contextmanager
def connect(kit_folder: Path) -> Iterator[Admin]:
    """Log in with an admin's kit."""
    kit = Kit.read(kit_folder, "admin")
    kit.check_dates()
    try:
        knock(kit)
    except OSError as error:
        reason = error.strerror or error
        raise RunError(
            f"the server at {kit.address} does not answer ({reason}); is it started?"
        ) from None
    with tempfile.TemporaryDirectory(prefix="konsil-") as folder:
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # it says that it connects
                session = new_secure_session(
                    kit.party, str(prepare(kit, Path(folder))), timeout=LOGIN
                )
        except (NoConnection, AuthenticationError) as error:
            raise RunError(f"the server at {kit.address} does not let us in ({error})") from None
        admin = Admin(kit, session)
        try:
            yield admin
        finally:
            admin.close()


def new_run(experiment: str) -> str:
    """A name for a run: what, when, and something to tell two of a second apart."""
    return f"{experiment}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid4().hex[:4]}"
