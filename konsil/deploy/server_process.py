"""The server of a federation: FLARE's, kept in the foreground.

python -m konsil.deploy.server_process KIT FOLDER [PLUGIN ...]
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from konsil.deploy.kit import Kit
from konsil.deploy.processes import Child, Report, alone_in, passed_on, run_below, stop_signals
from konsil.errors import RunError

WAIT = 0.5
# What gRPC says of a peer that it refused, in words. It does not say who that was.
REFUSALS = (
    ("has expired", "a certificate that has expired"),
    ("not yet valid", "a certificate that is not valid yet"),
    ("CERTIFICATE_VERIFY_FAILED", "a certificate that is not of this federation"),
    ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "no certificate"),
    ("HTTP_REQUEST", "plain text"),
    ("WRONG_VERSION_NUMBER", "plain text"),
)
HANDSHAKE = re.compile(r"Handshake failed|SSL_ERROR_SSL")


def start_server(
    kit_folder: Path, folder: Path, plugins: Sequence[Path] = (), report: Report = print
) -> None:
    """Run the server until Ctrl-C or SIGTERM. All that must be kept is in `folder`."""
    from konsil.deploy.flare.settings import ServerSettings
    from konsil.deploy.flare.workspace import ENVIRONMENT, arguments, prepare

    kit = Kit.read(kit_folder, "server")
    kit.check_dates()
    folder = folder.absolute()
    with alone_in(folder, "a server") as lock:
        workspace = prepare(kit, folder / "flare")
        settings = ServerSettings(str(folder), [str(path.absolute()) for path in plugins])
        environment = {**ENVIRONMENT, **settings.write(folder / "server.json")}
        with stop_signals() as stopped:
            report(f"server of {kit.federation} at {kit.address}; log: {folder / 'flare/log.txt'}")
            child = Child(
                "konsil.deploy.flare.main",
                arguments(kit, workspace),
                folder / "console.log",
                lambda line: _hear(line, report),
                environment,
                [lock],
            )
            try:
                while child.code is None and not stopped.wait(WAIT):
                    pass
            finally:
                code = child.code
                child.end(grace=0.0)  # all state is on disk, whole: nothing is lost by haste
        if not stopped.is_set():
            raise RunError(f"the server ended by itself (exit code {code}); see {folder}")
        report("server stopped")


def _hear(line: str, report: Report) -> None:
    """Of all that FLARE prints, what a person should know."""
    passed_on(report)(line)
    if HANDSHAKE.search(line):
        what = next((words for sign, words in REFUSALS if sign in line), "a failed handshake")
        report(f"refused a connection: {what}")


def main() -> None:
    """A server under another process, which says what the server says."""
    kit, folder, *plugins = map(Path, sys.argv[1:])
    run_below(start_server, kit, folder, plugins)


if __name__ == "__main__":
    main()
