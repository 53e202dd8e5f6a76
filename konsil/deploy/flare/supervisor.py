"""In the FLARE server's process: sees to it that a run goes on until it is over.

FLARE neither resumes a job after its server was killed nor lets a site that was killed back into
a running one. Here a job is only a session: the supervisor ends one that a site is missing from as
soon as that site is back, and follows every session that ended too early with another, under the
name of the person who submitted the first. All it remembers lies in FLARE's job store and in the
runs' folders, so it may be killed at any moment as well.
"""

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import RunProcessKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_def import Job
from nvflare.apis.job_def_manager_spec import JobDefManagerSpec
from nvflare.app_common.job_schedulers.job_scheduler import DefaultJobScheduler

from konsil.deploy.flare.job import ARCHIVE, roster_of, run_folder, run_of
from konsil.deploy.processes import say
from konsil.deploy.sessions import OVER, Note, Outcome, after, ended_for, may_begin, time_to_start

log = logging.getLogger("konsil.supervisor")
LOOK_EVERY = 1.0
SETTLED = 2.0  # seconds a site must have been back before a session is ended for it
# What of a job's meta data its successor keeps: the admin's signature stays on its content.
KEPT = (
    *("name", "job_folder_name", "deploy_map", "resource_spec", "min_clients", "study"),
    *("data_storage_format", "submitter_name", "submitter_org", "submitter_role"),
)


class Scheduler(DefaultJobScheduler):
    """Lets a session begin when those are there whom it needs; one session at a time."""

    def __init__(self) -> None:
        super().__init__(max_jobs=1, max_schedule_count=10**9, min_schedule_interval=1.0)

    def schedule_job(
        self, job_manager: JobDefManagerSpec, job_candidates: list[Job], fl_ctx: FLContext
    ) -> tuple[Any, Any]:
        """The first of our jobs that may begin."""
        connected = since(fl_ctx.get_engine().get_clients())
        ready = [job for job in job_candidates if self._ready(job, connected)]
        chosen: tuple[Any, Any] = super().schedule_job(job_manager, ready, fl_ctx)
        return chosen

    def _ready(self, job: Job, connected: Mapping[str, float]) -> bool:
        run = run_of(job.meta["name"])
        if run is None:
            return False  # not a job of ours: nobody here would know what to do with it
        enrolled = (run_folder(run) / "plan.yaml").exists()
        note, submitted = Note.of(job.meta), float(job.meta["submit_time"])
        roster = roster_of(job.deploy_map)
        return may_begin(roster, connected, note, submitted, enrolled, time.time())


_SEEN: dict[str, float] = {}  # a site's registration -> when it was first seen here


def since(clients: list[Client]) -> dict[str, float]:
    """Since when each site has been connected, as far as this process has seen."""
    for client in clients:
        _SEEN.setdefault(client.token, time.time())
    return {client.name: _SEEN[client.token] for client in clients}


class Supervisor(FLComponent):
    """Looks once a second; see the module."""

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[str, Any] = {}
        self._running_since: dict[str, float] = {}

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Begin when the server is up."""
        if event_type != EventType.SYSTEM_START:
            return
        self.engine = fl_ctx.get_engine()
        # FLARE 2.9 has this, and never calls it: what ran when the server was killed still counts
        # as running
        self.engine.job_runner.update_unfinished_jobs(fl_ctx)
        threading.Thread(target=self._watch, name="supervisor", daemon=True).start()
        say("ready")

    def _watch(self) -> None:
        while True:
            try:
                with self.engine.new_context() as fl_ctx:
                    self._look(fl_ctx)
            except Exception:  # the next look may go better, and nobody else looks
                log.exception("the supervisor stumbled")
            time.sleep(LOOK_EVERY)

    def _look(self, fl_ctx: FLContext) -> None:
        clients: dict[str, Client] = {c.name: c for c in self.engine.get_clients()}
        self._tell("sites", sorted(clients), f"connected: {', '.join(sorted(clients)) or 'nobody'}")
        jobs = self.engine.job_def_manager.get_all_jobs(fl_ctx)
        jobs.sort(key=lambda job: job.meta["submit_time"])
        newest = {run_of(job.meta["name"]): job for job in jobs}
        for run, job in newest.items():
            if run is None or (note := Note.of(job.meta)).state in OVER:
                continue
            status = str(job.meta["status"])
            if status.startswith("FINISHED"):
                self._follow(run, job, status, note, fl_ctx)
            elif status == "RUNNING":
                self._check(run, job, note, clients, fl_ctx)
            else:
                missing = [s for s in roster_of(job.deploy_map) if s not in clients]
                self._tell(run, missing, f"run {run}: waiting for {', '.join(missing)}", missing)

    def _follow(self, run: str, job: Job, status: str, note: Note, fl_ctx: FLContext) -> None:
        """A session is over; another follows, or the run is over as well."""
        folder = run_folder(run)
        log_file = folder / "events.jsonl"
        size = log_file.stat().st_size if log_file.exists() else 0
        next_note = after(status, note, Outcome.read(folder), size, time.time())
        if next_note.state in OVER:
            self._archive(folder, job, fl_ctx)
            self._write(job, next_note, fl_ctx)
            say(f"run {run}: {next_note.state} {next_note.reason}".rstrip())
            return
        meta = {key: job.meta[key] for key in KEPT if key in job.meta}
        meta |= {"cloned_from": job.job_id, **next_note.as_meta()}
        self.engine.job_def_manager.clone(job.job_id, meta, fl_ctx)
        say(f"run {run}: session {next_note.session} follows ({next_note.reason or status})")

    def _archive(self, folder: Path, job: Job, fl_ctx: FLContext) -> None:
        """Leave the run where an admin's `fetch` finds it."""
        packed = folder.parent / f".{job.job_id}.zip.part"
        with ZipFile(packed, "w") as archive:
            for path in sorted(folder.rglob("*")):
                name = path.relative_to(folder)
                if path.is_file() and not any(part.startswith(".") for part in name.parts):
                    archive.write(path, name)
        kind, party = ARCHIVE
        manager = self.engine.job_def_manager
        manager.set_client_data(job.job_id, str(packed), party, kind, fl_ctx)  # moves it

    def _check(
        self, run: str, job: Job, note: Note, clients: Mapping[str, Client], fl_ctx: FLContext
    ) -> None:
        """A session runs: end it if a site is there that has no part in it."""
        process = self.engine.run_processes.get(job.job_id)
        if process is None or note.ended:
            return  # it begins or ends at this moment
        if note.state != "running":
            note = replace(note, state="running")
            self._write(job, note, fl_ctx)
            say(f"run {run}: session {note.session} runs")
        now = time.time()
        started = self._running_since.setdefault(job.job_id, now)
        reported = self.engine.server._job_reported_clients.get(job.job_id, set())
        for site in roster_of(job.deploy_map):
            token = clients[site].token if site in clients else ""
            came = _SEEN.get(token, now)
            if now - came < SETTLED:
                continue  # it is away, or was a moment ago
            came_back = token not in process[RunProcessKey.PARTICIPANTS] and came > started
            if came_back or (now - started > time_to_start(note) and token not in reported):
                note = ended_for(site, came_back, note)
                say(f"run {run}: {note.ended}")
                self._write(job, note, fl_ctx)
                self.engine.job_runner.stop_run(job.job_id, fl_ctx)
                return

    def _write(self, job: Job, note: Note, fl_ctx: FLContext) -> None:
        self.engine.job_def_manager.update_meta(job.job_id, note.as_meta(), fl_ctx)

    def _tell(self, about: str, news: Any, text: str, if_any: Any = True) -> None:
        """Say something once, not every second."""
        if self._told.get(about) != news:
            self._told[about] = news
            if if_any:
                say(text)
