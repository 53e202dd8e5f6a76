"""Before a site starts: does it have all that a run will need?"""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from konsil.deploy.kit import Kit, knock
from konsil.deploy.policy import read_policy
from konsil.errors import ConfigError, KonsilError

Verdict = Literal["ok", "warning", "error"]
Finding = tuple[Verdict, str]
FREE_DISK = 2 * 10**9  # bytes for the state of a few runs, beside the cache
FREE_MEMORY = 2 * 10**9
SOON = timedelta(days=30)  # a certificate that ends sooner should be renewed now


def preflight(
    kit: Kit, data: Path, policy: Path | None, state: Path
) -> Iterator[tuple[str, Verdict, str]]:
    """Look at everything, one thing at a time; an error stops nothing but the start."""
    looks: dict[str, Callable[[], Finding]] = {
        "policy": lambda: _policy(policy),
        "disk": lambda: _disk(state),
        "memory": _memory,
        "clock": _clock,
        "certificate": lambda: _certificate(kit),
        "server": lambda: _server(kit),
        "data": lambda: _data(data, kit.party),
    }
    for what, look in looks.items():
        try:
            yield what, *look()
        except KonsilError as error:
            yield what, "error", str(error)


def _policy(path: Path | None) -> Finding:
    said = read_policy(path).model_dump(exclude_unset=True)
    text = ", ".join(f"{k}: {v}" for k, v in said.items()) or "the defaults; see docs/deploy.md"
    return "ok" if path else "warning", text


def _disk(state: Path) -> Finding:
    there = next(p for p in (state.absolute(), *state.absolute().parents) if p.exists())
    free = shutil.disk_usage(there).free
    return "ok" if free > FREE_DISK else "error", f"{free / 1e9:.1f} GB free for {state}"


def _memory() -> Finding:
    import psutil  # of the extra "flare"

    free = psutil.virtual_memory().available  # what only caches files can be had as well
    return "ok" if free > FREE_MEMORY else "warning", f"{free / 1e9:.1f} GB free"


def _clock() -> Finding:
    """Certificates are valid between two dates: a clock that is wrong refuses good ones."""
    now = datetime.now(UTC).isoformat(" ", "seconds")
    try:
        command = ["timedatectl", "show", "-p", "NTPSynchronized", "--value"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        said = ""
    if said == "yes":
        return "ok", f"{now}, synchronised"
    return "warning", f"{now}; nothing here says that it is synchronised"


def _certificate(kit: Kit) -> Finding:
    kit.check_dates()
    if kit.valid_until - datetime.now(UTC) < SOON:
        return "warning", f"{kit.party}, {kit.dates}: ends soon; ask for a new kit"
    return "ok", f"{kit.party}, {kit.dates}"


def _server(kit: Kit) -> Finding:
    try:
        return "ok", f"{kit.address} answers, {knock(kit)}"
    except OSError as error:
        text = f"{kit.address} does not answer ({error.strerror or error})"
        return "error", f"{text}: is the server started, and may this machine connect to that port?"


def _data(path: Path, site: str) -> Finding:
    from konsil.prepare.check import check_federation

    check_site(path, site)
    result = check_federation(path, [site])
    if not result.ok:
        kinds = f"{len(result.errors)} kind{'s' * (len(result.errors) > 1)} of errors"
        text = f"{result.errors[0].what}; {kinds} in all: run `konsil data check {path}`"
        return "error", text
    images, warnings = result.sites[site].images, len(result.warnings)
    return "ok", f"{images} images, {warnings} warnings (`konsil data check {path}`)"


def check_site(data: Path, site: str) -> None:
    """The federation file must know this site by its name in the certificate."""
    from konsil.data.manifest import read_manifest

    sites = read_manifest(data).content.sites
    if site not in sites:
        raise ConfigError(
            f"{data}: no site {site} in it, as this kit calls this hospital; there are "
            f"{', '.join(sites)}: rename it in the file"
        )
