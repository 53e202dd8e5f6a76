"""FLARE without Konsil: provisioned, configured and started as FLARE's own provisioning does it."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from statistics import mean
from types import SimpleNamespace, TracebackType
from typing import Any, Self

from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from nvflare.lighter.entity import Participant, Project
from nvflare.lighter.impl.static_file import StaticFileBuilder
from nvflare.lighter.impl.workspace import WorkspaceBuilder
from nvflare.lighter.provisioner import Provisioner

from benchmarks.bare_job import TASK
from benchmarks.peak import ROOT
from konsil.deploy.deployment import ORGANISATION, ROLE
from konsil.deploy.kit import Kit, knock
from konsil.deploy.processes import Child
from konsil.deploy.provision import SCHEME, Certificates

CONTROLLER, EXECUTOR = "benchmarks.bare_job.Rounds", "benchmarks.bare_job.Echo"
SERVER, ADMIN = "localhost", "admin@konsil.org"  # FLARE calls parties by what certificates say
LOOK_EVERY = 0.5
PATIENCE = 900.0  # seconds; only a job that hangs needs them


class BareFlare:
    """A FLARE server and its clients on loopback; a call of `rounds` is one job."""

    def __init__(self, sites: list[str], folder: Path, port: int) -> None:
        self.sites, self.folder, self._port = sites, folder, port
        self._children: list[Child] = []
        self._admin: Session

    def __enter__(self) -> Self:
        self._places = self._provision()
        try:
            for party in (SERVER, *self.sites):
                self._start(party)
            self._connect()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if hasattr(self, "_admin"):
            self._admin.close()
        for child in self._children:
            child.end()

    def rounds(self, count: int, size: int, server: dict[str, Any], **usual: Any) -> float:
        """Mean seconds of the rounds of one job after its first.

        `size` are the bytes to and from each site; `server` goes into the job's configuration,
        `usual` to FLARE's controller.
        """
        result = self.folder / "seconds.json"
        result.unlink(missing_ok=True)
        arguments = {"rounds": count, "size": size, "result": str(result), **usual}
        with tempfile.TemporaryDirectory(dir=self.folder) as job:
            _write_job(Path(job), len(self.sites), server, arguments)
            number = self._admin.submit_job(job)
        self._wait(number)
        seconds = json.loads(result.read_text(encoding="utf-8"))
        return mean(seconds[1:])

    def _provision(self) -> Path:
        server = {"fed_learn_port": self._port, "host_names": [SERVER, "127.0.0.1"]}
        participants = [
            Participant("server", SERVER, ORGANISATION, server),
            Participant("admin", ADMIN, ORGANISATION, {"role": ROLE}),
            *(Participant("client", site, ORGANISATION, {}) for site in self.sites),
        ]
        builders = [
            WorkspaceBuilder(),
            StaticFileBuilder(scheme=SCHEME, require_signed_jobs=True),
            Certificates(days=1),
        ]
        notes = SimpleNamespace(error=print, warning=str, info=str, debug=str)
        made = Provisioner(str(self.folder), builders).provision(
            Project("bare", "a FLARE federation", participants), logger=notes
        )
        return Path(made.get_result_location())

    def _start(self, party: str) -> None:
        place = self._places / party
        self._allow(place / "local" / "resources.json.default")
        kind = "server" if party == SERVER else "client"
        own = [] if kind == "server" else [f"uid={party}"]
        arguments = [
            *(kind, "-m", str(place), "-s", f"fed_{kind}.json", "--set"),
            *("secure_train=true", f"org={ORGANISATION}", "config_folder=config", *own),
        ]
        environment = {"PYTHONPATH": str(ROOT)}
        log = self.folder / f"{party}.log"
        module = "konsil.deploy.flare.main"  # FLARE's own, in a process that ends with this one
        self._children.append(Child(module, arguments, log, lambda _: None, environment))

    def _allow(self, file: Path) -> None:
        """FLARE's defaults, but for our two classes and folders that two servers do not share."""
        text = file.read_text(encoding="utf-8").replace("/tmp/nvflare", str(self.folder / "store"))
        resources = json.loads(text)
        resources["class_allow_list"] += [CONTROLLER, EXECUTOR]
        file.write_text(json.dumps(resources), encoding="utf-8")
        for name in ("jobs-storage", "snapshot-storage"):
            (self.folder / "store" / name).mkdir(parents=True, exist_ok=True)

    def _connect(self) -> None:
        """Log in when the server is up and all clients are there."""
        place = self._places / ADMIN
        kit = Kit.read(place, "admin")
        _until(lambda: _answers(kit), "the server")
        self._admin = new_secure_session(ADMIN, str(place), timeout=60.0, command_timeout=60.0)
        _until(lambda: self._connected() == set(self.sites), "all clients")

    def _connected(self) -> set[str]:
        return {client.name for client in self._admin.get_connected_client_list()}

    def _wait(self, job: str) -> None:
        _until(lambda: "FINISHED" in str(self._status(job)), f"the end of job {job}")
        if self._status(job) != "FINISHED:COMPLETED":
            raise AssertionError(f"the bare job ended as {self._status(job)}; see {self.folder}")

    def _status(self, job: str) -> str | None:
        status: str | None = self._admin.get_job_status(job)
        return status


def _answers(kit: Kit) -> bool:
    try:
        knock(kit)
    except OSError:
        return False
    return True


def _until(condition: Any, what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {PATIENCE:g} s for {what}")
        time.sleep(LOOK_EVERY)


def _write_job(
    folder: Path, sites: int, server: dict[str, Any], controller: dict[str, Any]
) -> None:
    meta = {
        "name": "bare",
        "resource_spec": {},
        "min_clients": sites,
        "deploy_map": {"app": ["@ALL"]},
    }
    files: dict[str, dict[str, Any]] = {
        "meta.json": meta,
        "app/config/config_fed_server.json": {
            "format_version": 2,
            "server": server,
            "workflows": [{"id": "rounds", "path": CONTROLLER, "args": controller}],
        },
        "app/config/config_fed_client.json": {
            "format_version": 2,
            "executors": [{"tasks": [TASK], "executor": {"path": EXECUTOR, "args": {}}}],
        },
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content), encoding="utf-8")
