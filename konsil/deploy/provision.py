"""Start-up kits: one folder a party, with its certificate and where the server is.

What signs certificates stays in `authority`. Provisioning again changes nobody's identity: it
adds the sites that are new and renews whom it is told to.
"""

import filecmp
import json
import os
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nvflare.lighter.entity import Participant, Project
from nvflare.lighter.impl.cert import CertBuilder
from nvflare.lighter.impl.static_file import StaticFileBuilder
from nvflare.lighter.impl.workspace import WorkspaceBuilder
from nvflare.lighter.provisioner import Provisioner
from nvflare.lighter.utils import Identity, generate_cert, generate_keys

from konsil.deploy.deployment import ADMIN, ORGANISATION, ROLE, SERVER, Deployment
from konsil.errors import ConfigError, RunError
from konsil.files import write_text

AUTHORITY = "authority"
ROOT_DAYS = 3650  # of the authority's own certificate, which only ever signs
SCHEME = "grpc"  # of FLARE's three, the one whose server outlives peers that connect and hang
# What a kit needs of what FLARE's provisioning makes; how the processes are configured is written
# anew at every start, by the version of Konsil that starts them.
NEEDED = (
    *("fed_server.json", "fed_client.json", "fed_admin.json"),
    *("server.crt", "server.key", "client.crt", "client.key", "rootCA.pem"),
)
WARNING = """\
This folder can make certificates for anybody. Keep it offline, give it to nobody: who has it can
join the federation under any name. Lose it, and every party needs a new kit.
"""
README = """\
The start-up kit of {party} in the federation {name}.
startup/*.key is {party}'s private key: whoever has it is {party}. Send it over a safe channel.

{command}
"""
COMMANDS = {
    SERVER: "konsil server start <this folder>",
    ADMIN: "konsil deploy submit EXPERIMENT.yaml --kit <this folder>",
    "site": "konsil site preflight <this folder>\nkonsil site start <this folder> --data ...",
}


def provision(deployment: Deployment, out: Path, renew: Sequence[str] = ()) -> dict[str, Path]:
    """One kit a party below `out`; kits that need no change are left as they are."""
    parties = {SERVER: deployment.server, ADMIN: deployment.admin}
    parties |= {site: site for site in deployment.sites}
    unknown = sorted(set(renew) - set(parties))
    if unknown:
        raise ConfigError(f"{', '.join(unknown)}: no such party; there are {', '.join(parties)}")
    authority = out / AUTHORITY
    authority.mkdir(parents=True, exist_ok=True)
    authority.chmod(0o700)
    write_text(authority / "README.txt", WARNING)
    _forget(authority / deployment.name / "state" / "cert.json", [parties[p] for p in renew])
    made = _make(deployment, authority)
    kits = {party: out / party for party in parties}
    for party, subject in parties.items():
        _put(made / subject, kits[party], party, deployment.name)
    shutil.rmtree(made)
    return kits


def _forget(state: Path, subjects: list[str]) -> None:
    """FLARE gives a known party its old certificate again: to renew is to forget the old one."""
    if state.exists() and subjects:
        known = json.loads(state.read_text(encoding="utf-8"))
        write_text(state, json.dumps({k: v for k, v in known.items() if k not in subjects}))
        state.chmod(0o600)


def _make(deployment: Deployment, authority: Path) -> Path:
    """What FLARE's own provisioning makes of a deployment."""
    names = [deployment.server, "localhost", "127.0.0.1"]  # the last for who works at the server
    server = {"fed_learn_port": deployment.port, "host_names": list(dict.fromkeys(names))}
    project = Project(
        deployment.name,
        "a Konsil federation",
        [
            Participant("server", deployment.server, ORGANISATION, server),
            Participant("admin", deployment.admin, ORGANISATION, {"role": ROLE}),
            *(Participant("client", site, ORGANISATION, {}) for site in deployment.sites),
        ],
    )
    builders = [
        WorkspaceBuilder(),
        StaticFileBuilder(scheme=SCHEME, require_signed_jobs=True),
        Certificates(deployment.valid_days),
    ]
    errors: list[str] = []  # of all that FLARE's provisioning says
    notes = SimpleNamespace(error=errors.append, warning=str, info=str, debug=str)
    context = Provisioner(str(authority), builders).provision(project, logger=notes)
    made = context.get_result_location()
    if made is None or context.get_errors():
        raise RunError("FLARE's provisioning failed: " + "; ".join(errors or ["no result"]))
    return Path(made)


class Certificates(CertBuilder):
    """FLARE's certificates, valid for as long as the deployment says."""

    def __init__(self, days: int) -> None:
        super().__init__(root_valid_days=ROOT_DAYS)
        self.days = days

    def get_pri_key_cert(self, participant: Participant) -> tuple[Any, Any]:
        """A new key, and a certificate for it that does not outlive the authority's."""
        now = datetime.now(UTC)
        end = now + timedelta(days=self.days)
        private, public = generate_keys()
        server = participant.type == "server"
        certificate = generate_cert(
            subject=Identity(participant.subject, participant.org, participant.get_prop("role")),
            issuer=Identity(self.issuer),
            signing_pri_key=self.pri_key,
            subject_pub_key=public,
            server_default_host=participant.get_default_host() if server else None,
            server_additional_hosts=participant.get_prop("host_names") if server else None,
            not_valid_before=now - timedelta(hours=1),  # clocks differ a little
            not_valid_after=min(end, self.root_cert.not_valid_after_utc),
        )
        return private, certificate

    def finalize(self, project: Project, ctx: Any) -> None:
        """Keep the keys for the next time, readable for the owner only."""
        super().finalize(project, ctx)
        (Path(ctx.get_state_dir()) / "cert.json").chmod(0o600)


def _put(made: Path, kit: Path, party: str, federation: str) -> None:
    """Bring a kit up to date; one that has everything already is not touched."""
    fresh, startup = made / "startup", kit / "startup"
    same, _, _ = filecmp.cmpfiles(fresh, startup, NEEDED, shallow=False)
    new = [name for name in NEEDED if name not in same and (fresh / name).exists()]
    if not new:
        return
    startup.mkdir(parents=True, exist_ok=True)
    kit.chmod(0o700)
    for name in new:  # with its mode: keys are the owner's alone
        os.replace(fresh / name, startup / name)
    command = COMMANDS.get(party, COMMANDS["site"])
    write_text(kit / "README.txt", README.format(party=party, name=federation, command=command))
