"""Before a site starts: does it have all that a run will need?"""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from konsil.deploy.policy import read_policy
from konsil.errors import ConfigError, KonsilError

Verdict = Literal["ok", "warning", "error"]
FREE_DISK = 2 * 10**9  # bytes for the state of a few runs, beside the cache
FREE_MEMORY = 2 * 10**9
SOON = timedelta(days=30)  # a certificate that ends sooner should be renewed now
PATIENCE = 10.0  # seconds for the server to answer
CONFIGURATION = Path("startup/fed_client.json")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    text: str


@dataclass(frozen=True)
class SiteKit:
    """What a site's start-up kit says."""

    folder: Path
    host: str
    port: int
    certificate: Path
    key: Path
    root: Path

    @classmethod
    def read(cls, folder: Path) -> SiteKit:
        """The kit of a folder."""
        try:
            content = json.loads((folder / CONFIGURATION).read_text(encoding="utf-8"))
            host, _, port = content["servers"][0]["service"]["target"].rpartition(":")
            client, start = content["client"], folder / "startup"
            files = [start / client[k] for k in ("ssl_cert", "ssl_private_key", "ssl_root_cert")]
            return cls(folder, host, int(port), *files)
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise ConfigError(
                f"{folder}: not a site's start-up kit ({type(error).__name__}: {error}); "
                "`konsil deploy provision` makes them, one folder a party"
            ) from None


def preflight(
    kit: Path, source: dict[str, object], policy: Path | None, state: Path, site: str
) -> Iterator[Finding]:
    """Look at everything, one finding at a time; an error stops nothing but the start."""
    looks: list[tuple[str, Callable[[], Finding]]] = [
        ("policy", lambda: _policy(policy)),
        ("disk", lambda: _disk(state)),
        ("memory", _memory),
        ("clock", _clock),
        ("certificate", lambda: _certificate(SiteKit.read(kit))),
        ("server", lambda: _server(SiteKit.read(kit))),
        ("data", lambda: _data(source, site)),
    ]
    for what, look in looks:
        try:
            yield look()
        except KonsilError as error:
            yield Finding(what, "error", str(error))


def _policy(path: Path | None) -> Finding:
    policy = read_policy(path)
    said = policy.model_dump(exclude_unset=True)
    text = ", ".join(f"{k}: {v}" for k, v in said.items()) or "the defaults; see docs/deploy.md"
    return Finding("policy", "ok" if path else "warning", text)


def _disk(state: Path) -> Finding:
    state.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(state).free
    text = f"{free / 1e9:.1f} GB free for {state}"
    return Finding("disk", "ok" if free > FREE_DISK else "error", text)


def _memory() -> Finding:
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    verdict: Verdict = "ok" if free > FREE_MEMORY else "warning"
    return Finding("memory", verdict, f"{free / 1e9:.1f} GB free")


def _clock() -> Finding:
    """Certificates are valid between two dates: a clock that is wrong refuses good ones."""
    now = datetime.now(UTC).isoformat(" ", "seconds")
    try:
        command = ["timedatectl", "show", "-p", "NTPSynchronized", "--value"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        said = ""
    if said == "yes":
        return Finding("clock", "ok", f"{now}, synchronised")
    return Finding("clock", "warning", f"{now}; nothing here says that it is synchronised")


def _certificate(kit: SiteKit) -> Finding:
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(kit.certificate.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{kit.certificate}: cannot be read ({error})") from None
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    now = datetime.now(UTC)
    dates = f"valid {begin:%Y-%m-%d} to {end:%Y-%m-%d}"
    if not begin <= now <= end:
        return Finding("certificate", "error", f"{dates}: not today; ask for a new kit")
    if end - now < SOON:
        return Finding("certificate", "warning", f"{dates}: ends soon; ask for a new kit")
    return Finding("certificate", "ok", dates)


def _server(kit: SiteKit) -> Finding:
    """A handshake with this kit's certificate: the server shows its own and takes ours."""
    context = ssl.create_default_context(cafile=str(kit.root))
    context.check_hostname = False  # FLARE names the server by its identity, not by its address
    context.load_cert_chain(kit.certificate, kit.key)
    where = f"{kit.host}:{kit.port}"
    try:
        with (
            socket.create_connection((kit.host, kit.port), PATIENCE) as connection,
            context.wrap_socket(connection, server_hostname=kit.host) as secure,
        ):
            return Finding("server", "ok", f"{where} answers, {secure.version()}")
    except ssl.SSLError as error:
        text = f"{where} answers, but the certificates do not fit ({error.reason or error})"
        return Finding("server", "error", f"{text}: both kits must be of one provisioning")
    except OSError as error:
        text = f"{where} does not answer ({error.strerror or error})"
        cure = "is the server started, and may this machine connect to that port?"
        return Finding("server", "error", f"{text}: {cure}")


def _data(source: dict[str, object], site: str) -> Finding:
    from konsil.data.check import check_federation

    path = source.get("file")
    if path is None:
        return Finding("data", "ok", "not from a federation file: checked when the run begins")
    result = check_federation(Path(str(path)), [site])
    if result.ok:
        text = f"{len(result.warnings)} warnings; `konsil data check` shows them"
        return Finding("data", "ok", text)
    return Finding("data", "error", f"{len(result.errors)} errors: run `konsil data check {path}`")
