"""Before a site starts: does it have all that a run will need?"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from konsil.deploy.kit import Kit, knock
from konsil.deploy.policy import read_policy
from konsil.errors import ConfigError, KonsilError

Verdict = Literal["ok", "warning", "error"]
FREE_DISK = 2 * 10**9  # bytes for the state of a few runs, beside the cache
FREE_MEMORY = 2 * 10**9
SOON = timedelta(days=30)  # a certificate that ends sooner should be renewed now


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    text: str


def preflight(
    kit: Path, data: Path, policy: Path | None, state: Path, site: str
) -> Iterator[Finding]:
    """Look at everything, one finding at a time; an error stops nothing but the start."""
    looks: list[tuple[str, Callable[[], Finding]]] = [
        ("policy", lambda: _policy(policy)),
        ("disk", lambda: _disk(state)),
        ("memory", _memory),
        ("clock", _clock),
        ("certificate", lambda: _certificate(Kit.read(kit, "site"))),
        ("server", lambda: _server(Kit.read(kit, "site"))),
        ("data", lambda: _data(data, site)),
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
    there = next(p for p in (state.absolute(), *state.absolute().parents) if p.exists())
    free = shutil.disk_usage(there).free
    text = f"{free / 1e9:.1f} GB free for {state}"
    return Finding("disk", "ok" if free > FREE_DISK else "error", text)


def _memory() -> Finding:
    import psutil  # of the extra "flare"

    free = psutil.virtual_memory().available  # what only caches files can be had as well
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


def _certificate(kit: Kit) -> Finding:
    kit.check_dates()
    dates = f"{kit.party}, valid {kit.valid_from:%Y-%m-%d} to {kit.valid_until:%Y-%m-%d}"
    if kit.valid_until - datetime.now(UTC) < SOON:
        return Finding("certificate", "warning", f"{dates}: ends soon; ask for a new kit")
    return Finding("certificate", "ok", dates)


def _server(kit: Kit) -> Finding:
    try:
        return Finding("server", "ok", f"{kit.address} answers, {knock(kit)}")
    except OSError as error:
        text = f"{kit.address} does not answer ({error.strerror or error})"
        cure = "is the server started, and may this machine connect to that port?"
        return Finding("server", "error", f"{text}: {cure}")


def _data(path: Path, site: str) -> Finding:
    from konsil.prepare.check import check_federation

    check_site(path, site)
    result = check_federation(path, [site])
    if not result.ok:
        kinds = f"{len(result.errors)} kind{'s' * (len(result.errors) > 1)} of errors"
        text = f"{result.errors[0].what}; {kinds} in all: run `konsil data check {path}`"
        return Finding("data", "error", text)
    images = result.sites[site].images
    text = f"{images} images, {len(result.warnings)} warnings (`konsil data check {path}`)"
    return Finding("data", "ok", text)


def check_site(data: Path, site: str) -> None:
    """The federation file must know this site by its name in the certificate."""
    from konsil.data.manifest import read_manifest

    sites = read_manifest(data).content.sites
    if site not in sites:
        raise ConfigError(
            f"{data}: no site {site} in it, as this kit calls this hospital; there are "
            f"{', '.join(sites)}: rename it in the file"
        )
