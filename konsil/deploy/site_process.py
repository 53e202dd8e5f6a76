"""A site of a federation: its own client and FLARE's, kept in the foreground.

    python -m konsil.deploy.site_process KIT SETTINGS

It only ever connects to the server; nothing listens here but for its own processes.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from konsil.deploy.deployment import SiteSettings
from konsil.deploy.kit import Kit, Refused, knock
from konsil.deploy.processes import Child, Report, alone_in, passed_on, run_below, stop_signals
from konsil.errors import ConfigError, RunError

WAIT = 0.5
KNOCK_EVERY = 2.0
REFUSALS = 3  # in a row: a server that is killed at this moment seems to refuse as well
CALM = 60.0  # a process that has run for this long did not die of its start
PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0)  # before a process that keeps ending is started again


def start_site(kit_folder: Path, settings: Path, report: Report = print) -> None:
    """Run the site until Ctrl-C or SIGTERM. All that must be kept is in its state folder."""
    from konsil.deploy.flare.settings import CLIENT_SOCKET
    from konsil.deploy.flare.workspace import ENVIRONMENT, arguments, prepare

    kit = Kit.read(kit_folder, "site")
    kit.check_dates()
    state = _state_folder(settings, kit)
    with (
        alone_in(state, "a site") as lock,
        tempfile.TemporaryDirectory(prefix="konsil-") as private,
        stop_signals() as stopped,
    ):
        workspace = prepare(kit, state / "flare")
        hear, socket = passed_on(report), f"{private}/client"  # a socket's path must be short
        environment = {**ENVIRONMENT, CLIENT_SOCKET: socket}

        def computing() -> Child:
            Path(socket).unlink(missing_ok=True)
            files = [str(settings.absolute()), socket]
            module = "konsil.deploy.client_process"
            return Child(module, files, state / "client.log", hear, {}, [lock])

        def connected() -> Child:
            module, log = "konsil.deploy.flare.main", state / "console.log"
            return Child(module, arguments(kit, workspace), log, hear, environment, [lock])

        report(f"site {kit.party} of {kit.federation}; log: {state / 'flare/log.txt'}")
        kept = [Kept("site client", computing, report)]
        try:
            if wait_for_server(kit, stopped, report):
                kept.append(Kept("FLARE client", connected, report))
            while not stopped.wait(WAIT):
                for process in kept:
                    process.look()
        finally:
            for process in kept:
                process.child.end(grace=0.0)  # all state is on disk, whole
        report("site stopped")


def _state_folder(settings: Path, kit: Kit) -> Path:
    known = SiteSettings.read(settings)
    if known.site != kit.party:
        raise ConfigError(
            f"{kit.folder}: this is the kit of {kit.party}, the settings are those of {known.site}"
        )
    return known.state.absolute()


def wait_for_server(kit: Kit, stopped: threading.Event, report: Report) -> bool:
    """Knock until the server answers; one that keeps refusing this kit is an error."""
    told, refusals = False, 0
    while not stopped.is_set():
        try:
            knock(kit)
            return True
        except Refused:
            refusals += 1
            if refusals == REFUSALS:
                raise
        except OSError as error:
            refusals = 0
            if not told:
                report(f"waiting for the server at {kit.address} ({error.strerror or error})")
                told = True
        stopped.wait(KNOCK_EVERY)
    return False


class Kept:
    """A process that is started again when it ends; later and later if it keeps ending."""

    def __init__(self, name: str, start: Callable[[], Child], report: Report) -> None:
        self._name, self._start, self._report = name, start, report
        self._falls = 0
        self._again: float | None = None
        self._run()

    def _run(self) -> None:
        self._began = time.monotonic()
        self.child = self._start()

    def look(self) -> None:
        """Start it again if it is time to."""
        now = time.monotonic()
        if self.child.code is None:
            if now - self._began > CALM:
                self._falls = 0
        elif self._again is None:
            if self._falls >= len(PAUSES):
                raise RunError(f"the {self._name} keeps ending; see the logs in the state folder")
            pause = PAUSES[self._falls]
            self._falls += 1
            self._again = now + pause
            self._report(f"the {self._name} ended ({self.child.code}); again in {pause:g} s")
        elif now >= self._again:
            self._again = None
            self._run()


def main() -> None:
    """A site under another process, which says what the site says."""
    kit, settings = map(Path, sys.argv[1:])
    run_below(start_site, kit, settings)


if __name__ == "__main__":
    main()
