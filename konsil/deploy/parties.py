"""A party of a federation, kept in the foreground: the server, or a site; and what computes there.

    python -m konsil.deploy.parties server KIT FOLDER [PLUGIN ...]
    python -m konsil.deploy.parties site KIT SETTINGS
    python -m konsil.deploy.parties site-client SETTINGS SOCKET

A site only ever connects to the server; nothing listens there but for its own processes. All that
must be kept is in the party's folder, on disk, whole: nothing is lost by haste when it is ended.
"""

import json
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Listener
from pathlib import Path

from konsil.deploy.deployment import SiteSettings
from konsil.deploy.flare.job import CLIENT_SOCKET, PLUGINS, SERVER_FOLDER
from konsil.deploy.flare.workspace import ENVIRONMENT, arguments, prepare
from konsil.deploy.kit import Kit, Refused, knock
from konsil.deploy.processes import Child, Report, alone_in, passed_on, run_below, stop_signals
from konsil.errors import ConfigError, RunError

WAIT = 0.5
KNOCK_EVERY = 2.0
REFUSALS = 3  # in a row: a server that is killed at this moment seems to refuse as well
CALM = 60.0  # a process that has run for this long did not die of its start
PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0)  # before a process that keeps ending is started again
WAITING_LINE = 16  # questions that may wait: those of sessions that have ended since
GO_ON = b""
# What gRPC says of a peer that it refused, in words. It does not say who that was.
HANDSHAKE = re.compile(r"Handshake failed|SSL_ERROR_SSL")
STRANGERS = (
    ("has expired", "a certificate that has expired"),
    ("not yet valid", "a certificate that is not valid yet"),
    ("CERTIFICATE_VERIFY_FAILED", "a certificate that is not of this federation"),
    ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "no certificate"),
    ("HTTP_REQUEST", "plain text"),
    ("WRONG_VERSION_NUMBER", "plain text"),
)


def start_server(
    kit_folder: Path, folder: Path, plugins: Sequence[Path] = (), report: Report = print
) -> None:
    """Run the server until Ctrl-C or SIGTERM."""
    kit = Kit.read(kit_folder, "server")
    kit.check_dates()
    folder = folder.absolute()
    paths = json.dumps([str(path.absolute()) for path in plugins])
    environment = {SERVER_FOLDER: str(folder), PLUGINS: paths}

    def hear(line: str) -> None:
        """Of all that FLARE prints, what a person should know."""
        passed_on(report)(line)
        if HANDSHAKE.search(line):
            what = next((words for sign, words in STRANGERS if sign in line), "a failed handshake")
            report(f"refused a connection: {what}")

    with alone_in(folder, "a server") as lock, stop_signals() as stopped:
        report(f"server of {kit.federation} at {kit.address}; log: {folder / 'flare/log.txt'}")
        child = _flare(kit, folder, hear, environment, lock)
        try:
            while child.code is None and not stopped.wait(WAIT):
                pass
        finally:
            code = child.code
            child.end(grace=0.0)
        if not stopped.is_set():
            raise RunError(f"the server ended by itself (exit code {code}); see {folder}")
        report("server stopped")


def start_site(kit_folder: Path, settings: Path, report: Report = print) -> None:
    """Run the site until Ctrl-C or SIGTERM."""
    kit = Kit.read(kit_folder, "site")
    kit.check_dates()
    known = SiteSettings.read(settings)
    if known.site != kit.party:
        raise ConfigError(
            f"{kit.folder}: this is the kit of {kit.party}, the settings are those of {known.site}"
        )
    state = known.state.absolute()
    with (
        alone_in(state, "a site") as lock,
        tempfile.TemporaryDirectory(prefix="konsil-") as private,
        stop_signals() as stopped,
    ):
        hear, socket = passed_on(report), f"{private}/client"  # a socket's path must be short

        def computing() -> Child:
            Path(socket).unlink(missing_ok=True)
            words = ["site-client", str(settings.absolute()), socket]
            return Child("konsil.deploy.parties", words, state / "client.log", hear, {}, [lock])

        def connected() -> Child:
            return _flare(kit, state, hear, {CLIENT_SOCKET: socket}, lock)

        report(f"site {kit.party} of {kit.federation}; log: {state / 'flare/log.txt'}")
        processes = {"site client": kept("site client", computing, report)}
        children = {name: next(process) for name, process in processes.items()}
        try:
            if wait_for_server(kit, stopped, report):
                processes["FLARE client"] = kept("FLARE client", connected, report)
            while not stopped.wait(WAIT):
                for name, process in processes.items():
                    children[name] = next(process)
        finally:
            for child in children.values():
                child.end(grace=0.0)
        report("site stopped")


def _flare(
    kit: Kit, folder: Path, hear: Report, environment: Mapping[str, str], lock: int
) -> Child:
    """FLARE's own server or client, at work in a party's folder."""
    words = arguments(kit, prepare(kit, folder / "flare"))
    module, log = "konsil.deploy.flare.main", folder / "console.log"
    return Child(module, words, log, hear, {**ENVIRONMENT, **environment}, [lock])


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


def kept(name: str, start: Callable[[], Child], report: Report) -> Iterator[Child]:
    """At every look the process; started again when it ends, later and later if it keeps ending."""
    falls = 0
    while True:
        began, child = time.monotonic(), start()
        while child.code is None:
            if time.monotonic() - began > CALM:
                falls = 0
            yield child
        if falls >= len(PAUSES):
            raise RunError(f"the {name} keeps ending; see the logs in the state folder")
        report(f"the {name} ended ({child.code}); again in {PAUSES[falls]:g} s")
        again, falls = time.monotonic() + PAUSES[falls], falls + 1
        while time.monotonic() < again:
            yield child


def start_client(settings: Path, address: Path, report: Report) -> None:
    """What computes at a site: its SiteClient, asked over a local socket.

    It outlives FLARE's sessions: what it computes when a session ends is ready for the next one.
    """
    listener = Listener(str(address), family="AF_UNIX", backlog=WAITING_LINE)
    from konsil.deploy.site_client import SiteClient  # slow: who asks already finds a socket

    client = SiteClient.from_file(settings, report)
    report("site client ready")
    serve(listener, client.answer, client.too_large)


def serve(
    listener: Listener,
    answer: Callable[[str, bytes], bytes],
    too_large: Callable[[str, int], bytes],
) -> None:
    """One question a connection, one after the other.

    Topic and length of the message come first: one that is too long is refused before it is
    copied. To the others `GO_ON` is said, then come their bytes, then the answer goes back.
    """
    while True:
        with suppress(EOFError, ConnectionError), listener.accept() as connection:
            topic, size = connection.recv_bytes().decode(), int(connection.recv_bytes())
            if connection.poll():  # it asked and left while another's question was answered
                continue
            refusal = too_large(topic, size)
            connection.send_bytes(refusal or GO_ON)
            if not refusal:
                connection.send_bytes(answer(topic, connection.recv_bytes(maxlength=size)))


def main() -> None:
    """A party under another process, which says what the party says."""
    kind, *words = sys.argv[1:]
    paths = [Path(word) for word in words]
    if kind == "server":
        run_below(start_server, *paths[:2], paths[2:])
    else:
        run_below(start_site if kind == "site" else start_client, *paths)


if __name__ == "__main__":
    main()
