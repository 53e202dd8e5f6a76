"""A whole deployment on this machine: real processes, real certificates, loopback only.

For trying an experiment as hospitals would run it, and for tests.
"""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from konsil.config import PLACES, Experiment
from konsil.data.origin import find_source
from konsil.deploy.agreement import without_places
from konsil.deploy.deployment import ADMIN, SERVER, SiteSettings, check_deployment
from konsil.deploy.kit import Kit, knock
from konsil.deploy.processes import Child, Report, passed_on, stop_signals
from konsil.errors import RunError
from konsil.files import write_text

if TYPE_CHECKING:  # FLARE is an extra, and slow to import
    from konsil.deploy.admin import Status

HIDDEN = ".deploy"  # below the run's folder
START = 120.0  # seconds for the server to be up
LOOK_EVERY = 1.0
Watch = Callable[[dict[str, Any]], None]


def deploy_local(
    experiment: Experiment, out: Path, report: Report, watch: Watch = lambda event: None
) -> None:
    """Run an experiment with a process a site; leaves in `out` what `konsil run` leaves.

    Called again for the same `out`, a run that was interrupted goes on. `watch` is given the
    run's events.
    """
    sites, base = sites_of(experiment), out / HIDDEN
    begins = experiment.network.initial
    files, policies = [], {}
    if begins is not None:  # here every party has looked at it
        files, policy = [begins], base / "policy.yaml"
        write_text(policy, json.dumps({"plugins": [str(begins)]}))
        policies = dict.fromkeys(sites, policy.absolute())
    with Local(sites, base, source_of(experiment), policies, report, files) as local:
        status = _run(experiment, sites, local, watch, out)
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
    said = {key: block[key] for key in (*PLACES, "synthetic") if key in block}
    paths = said.keys() - {"synthetic", "cache_limit"}
    return said | {key: str(Path(said[key]).absolute()) for key in paths}


def _run(experiment: Experiment, sites: list[str], local: Local, watch: Watch, out: Path) -> Status:
    """Submit unless it is at work already, wait, fetch."""
    from konsil.deploy.admin import connect, new_run

    run, seen = local.noted("run", lambda: new_run(experiment.name)), Counter[int]()
    with stop_signals() as stopped, connect(local.kits[ADMIN]) as admin:
        if run not in admin.runs() or admin.status(run, events=False).over:
            admin.submit(without_places(experiment), sites, run)
        while not stopped.wait(LOOK_EVERY):
            local.check()
            status = admin.status(run)
            for event in status.events[seen[status.session] :]:
                watch(event)
            seen[status.session] = len(status.events)
            if status.over:
                admin.fetch(run, out)
                return status
    raise KeyboardInterrupt


class Local:
    """A server and its sites as processes of this machine."""

    def __init__(
        self,
        sites: list[str],
        base: Path,
        source: Mapping[str, Any],
        policies: Mapping[str, Path],
        report: Report,
        files: Sequence[Path] = (),
    ) -> None:
        """`files`: what the server is given with --plugin."""
        self.base, self.report, self._files = base.absolute(), report, files
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

    def noted(self, name: str, new: Callable[[], object]) -> str:
        """Something about this deployment that stays the same when a run goes on."""
        path = self.base / f"{name}.txt"
        if not path.exists():
            write_text(path, str(new()))
        return path.read_text(encoding="utf-8")

    def _port(self) -> int:
        return int(self.noted("port", _free_port))

    def start(self, party: str) -> Child:
        """Start (again) one party."""
        kind, folder = "server", self.base / party
        place = folder
        if party != SERVER:
            kind, place = "site", folder / "settings.json"
            own = {"source": dict(self._source), "policy": self._policies.get(party)}
            SiteSettings(site=party, state=folder / "state", **own).write(place)
        words = [kind, str(self.kits[party]), str(place)]
        words += map(str, self._files if party == SERVER else [])
        hear = passed_on(lambda text: self.report(f"{party}: {text}"))
        child = Child("konsil.deploy.parties", words, folder / "said.log", hear)
        self.children[party] = child
        return child

    def check(self) -> None:
        """Make sure that all processes are at work."""
        for party, child in self.children.items():
            if child.code is not None:
                raise RunError(
                    f"the process of {party} ended (exit code {child.code}); see "
                    f"{self.base / party / 'said.log'}"
                )

    def _wait(self) -> None:
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


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
