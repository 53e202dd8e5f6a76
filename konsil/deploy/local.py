"""A whole deployment on this machine: real processes, real certificates, loopback only.

For trying an experiment as hospitals would run it, and for tests.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from konsil.config import PLACES, Experiment
from konsil.data.origin import find_source
from konsil.deploy.agreement import without_places
from konsil.deploy.deployment import ADMIN, SERVER, SiteSettings, check_deployment
from konsil.deploy.processes import Child, Report, passed_on, stop_signals
from konsil.errors import RunError
from konsil.files import write_text

if TYPE_CHECKING:  # FLARE is an extra, and slow to import
    from konsil.deploy.admin import Admin, Status

HIDDEN = ".deploy"  # below the run's folder
START = 120.0  # seconds for the server to be up
LOOK_EVERY = 1.0
LIMIT = "cache_limit"
Watch = Callable[[dict[str, Any]], None]


def deploy_local(
    experiment: Experiment,
    out: Path,
    report: Report = print,
    watch: Watch | None = None,
    policies: Mapping[str, Path] | None = None,
) -> None:
    """Run an experiment with a process a site; leaves in `out` what `konsil run` leaves.

    Called again for the same `out`, a run that was interrupted goes on. `watch` is given the
    run's events; `policies` are the sites' policy files.
    """
    sites = sites_of(experiment)
    base = out / HIDDEN
    with Local(sites, base, source_of(experiment), policies or {}, report) as local:
        status = _run(experiment, sites, local, watch or (lambda _: None), out)
    if status.state != "finished":
        raise RunError(f"the run {status.state}: {status.reason}\nthe logs are in {base}")


def sites_of(experiment: Experiment) -> list[str]:
    """The roster that `konsil run` would have."""
    wanted = experiment.federation.sites
    listing = find_source(experiment.federation, experiment.task).listing(wanted)
    return wanted or sorted({item.site for item in listing.items})


def source_of(experiment: Experiment) -> dict[str, Any]:
    """Where the data of all sites are, as a site's settings say it."""
    block = experiment.federation.model_dump(mode="json", exclude_unset=True)
    paths = {k: str(Path(v).absolute()) for k, v in block.items() if k in PLACES and k != LIMIT}
    return paths | {k: v for k, v in block.items() if k in ("synthetic", LIMIT)}


def _run(experiment: Experiment, sites: list[str], local: Local, watch: Watch, out: Path) -> Status:
    """Submit, wait, fetch."""
    from konsil.deploy.admin import connect

    with stop_signals() as stopped, connect(local.kits[ADMIN]) as admin:
        run = _submitted(experiment, sites, local.base / "run.json", admin)
        seen = Seen(watch)
        while not stopped.wait(LOOK_EVERY):
            local.check()
            status = admin.status(run)
            seen.show(status)
            if status.over:
                admin.fetch(run, out)
                return status
    raise KeyboardInterrupt


def _submitted(experiment: Experiment, sites: list[str], note: Path, admin: Admin) -> str:
    """The run of this folder, submitted unless it is at work already."""
    from konsil.deploy.admin import new_run

    if note.exists():
        run = str(json.loads(note.read_text(encoding="utf-8"))["run"])
    else:
        run = new_run(experiment.name)
        write_text(note, json.dumps({"run": run}))
    if run not in admin.runs() or admin.status(run, events=False).over:
        admin.submit(without_places(experiment), sites, run)
    return run


class Seen:
    """Passes every event on once."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._counts: dict[int, int] = {}

    def show(self, status: Status) -> None:
        """Pass on what is new."""
        for event in status.events[self._counts.get(status.session, 0) :]:
            self._watch(event)
        self._counts[status.session] = len(status.events)


class Local:
    """A server and its sites as processes of this machine."""

    def __init__(
        self,
        sites: list[str],
        base: Path,
        source: Mapping[str, Any],
        policies: Mapping[str, Path],
        report: Report,
    ) -> None:
        self.base, self.report = base.absolute(), report
        self._sites, self._source, self._policies = sites, source, policies
        self.children: dict[str, Child] = {}

    def __enter__(self) -> Local:
        from konsil.deploy.provision import provision

        facts = {"name": "local", "server": "localhost", "port": self._port(), "sites": self._sites}
        self.kits = provision(check_deployment(facts, "the experiment"), self.base / "kits")
        try:
            self.start(SERVER)
            for site in self._sites:
                self.start(site)
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children.values():
            child.end()

    def _port(self) -> int:
        """A free port; the same one when a run goes on."""
        path = self.base / "port"
        if path.exists():
            return int(path.read_text(encoding="utf-8"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port: int = free.getsockname()[1]
        write_text(path, str(port))
        return port

    def start(self, party: str) -> Child:
        """Start (again) one party."""
        folder = self.base / party
        folder.mkdir(parents=True, exist_ok=True)
        if party == SERVER:
            module, files = "konsil.deploy.server_process", [self.kits[SERVER], folder]
        else:
            settings = folder / "settings.json"
            self._settings(party, folder).write(settings)
            module, files = "konsil.deploy.site_process", [self.kits[party], settings]
        hear = passed_on(lambda text: self.report(f"{party}: {text}"))
        child = Child(module, [str(file) for file in files], folder / "said.log", hear)
        self.children[party] = child
        return child

    def _settings(self, site: str, folder: Path) -> SiteSettings:
        policy = self._policies.get(site)
        return SiteSettings(
            site=site,
            source=dict(self._source),
            policy=None if policy is None else policy.absolute(),
            state=folder / "state",
        )

    def check(self) -> None:
        """Make sure that all processes are at work."""
        for party, child in self.children.items():
            if child.code is not None:
                raise RunError(
                    f"the process of {party} ended (exit code {child.code}); see "
                    f"{self.base / party / 'said.log'}"
                )

    def _wait(self) -> None:
        from konsil.deploy.kit import Kit, knock

        kit, end = Kit.read(self.kits[ADMIN], "admin"), time.monotonic() + START
        while True:
            self.check()
            try:
                knock(kit)
                return
            except OSError:
                if time.monotonic() > end:
                    raise RunError(f"the server did not start; see {self.base / SERVER}") from None
                time.sleep(LOOK_EVERY / 2)
