"""Who is not let in, and that both sides say why."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import ssl
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from nvflare.lighter.utils import Identity, generate_cert, generate_keys, serialize_cert
from nvflare.lighter.utils import serialize_pri_key as serialize_key

from konsil.deploy.admin import connect
from konsil.deploy.deployment import ADMIN, SERVER, Deployment, check_deployment, read_deployment
from konsil.deploy.kit import HELLO, Kit, Refused, knock
from konsil.deploy.parties import start_site
from konsil.deploy.processes import SAY, Child
from konsil.deploy.provision import AUTHORITY, provision
from konsil.errors import ConfigError, KonsilError, RunError

PATIENCE = 90.0  # seconds; only a hung process needs them


def until(condition, what):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def listens(kit: Kit) -> bool:
    try:
        return bool(knock(kit))
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """A server that runs, and the kits of its federation."""
    base = tmp_path_factory.mktemp("federation")
    kits = provision(Deployment(sites=["north", "south"], port=free_port()), base / "kits")
    said: list[str] = []
    words = ["server", str(kits[SERVER]), str(base / "server")]
    server = Child("konsil.deploy.parties", words, base / "said.log", said.append)
    until(lambda: listens(Kit.read(kits["north"], "site")), "a server")
    yield Federation(base, kits, said)
    server.end()


class Federation:
    def __init__(self, base: Path, kits: dict[str, Path], said: list[str]) -> None:
        self.base, self.kits, self.said = base, kits, said

    @property
    def deployment(self) -> Deployment:
        kit = Kit.read(self.kits["north"], "site")
        return Deployment(sites=["north", "south"], port=kit.port)

    def hears(self, words: str) -> None:
        """The server says that it refused somebody, and why."""
        line = f"{SAY}refused a connection: {words}"
        until(lambda: line in self.said, f"{line!r} in {self.said}")
        self.said[:] = [other for other in self.said if other != line]

    def settings(self, site: str) -> Path:
        path = self.base / f"{site}.json"
        facts = {"site": site, "source": {}, "state": str(self.base / f"{site} state")}
        path.write_text(json.dumps(facts))
        return path


def test_the_right_kit_is_let_in(federation):
    for party in ("north", "south"):
        assert knock(Kit.read(federation.kits[party], "site")).startswith("TLSv1")
    with connect(federation.kits[ADMIN]) as admin:
        assert admin.runs() == []
        with pytest.raises(RunError, match="does not know it; it knows none"):
            admin.status("nothing")


def test_a_kit_of_another_federation(federation, tmp_path):
    """Another authority, the same names, the same address."""
    stranger = provision(federation.deployment, tmp_path)["north"]
    with pytest.raises(Refused, match="has a certificate that this kit does not trust"):
        start_site(stranger, federation.settings("north"), lambda _: None)
    # one that trusts our server, but whom our server does not know
    shutil.copy(federation.kits["north"] / "startup/rootCA.pem", stranger / "startup")
    with pytest.raises(Refused, match="does not accept this kit's certificate"):
        start_site(stranger, federation.settings("north"), lambda _: None)
    federation.hears("a certificate that is not of this federation")


def with_dates(federation: Federation, kit: Path, begin: timedelta, end: timedelta) -> Kit:
    """North's kit, with a certificate of the federation's own authority for other days."""
    state = federation.base / "kits" / AUTHORITY / "konsil" / "state" / "cert.json"
    root = json.loads(state.read_text())
    authority = serialization.load_pem_private_key(root["root_pri_key"].encode(), None)
    private, public = generate_keys()
    now = datetime.now(UTC)
    certificate = generate_cert(
        Identity("north", "konsil"),
        Identity("konsil"),
        authority,
        public,
        not_valid_before=now + begin,
        not_valid_after=now + end,
    )
    shutil.copytree(federation.kits["north"], kit)
    (kit / "startup/client.crt").write_bytes(serialize_cert(certificate))
    (kit / "startup/client.key").write_bytes(serialize_key(private))
    return Kit.read(kit, "site")


def test_a_certificate_that_has_expired(federation, tmp_path):
    kit = with_dates(federation, tmp_path / "kit", timedelta(days=-9), timedelta(days=-1))
    with pytest.raises(ConfigError, match=r"has expired .*--renew north"):
        start_site(kit.folder, federation.settings("north"), lambda _: None)
    with pytest.raises(Refused, match="neither expired"):  # the server does not only trust us
        knock(kit)
    federation.hears("a certificate that has expired")


def test_a_certificate_that_is_not_valid_yet(federation, tmp_path):
    kit = with_dates(federation, tmp_path / "kit", timedelta(days=2), timedelta(days=9))
    with pytest.raises(ConfigError, match="is this machine's clock right"):
        kit.check_dates()
    with pytest.raises(Refused):
        knock(kit)
    federation.hears("a certificate that is not valid yet")


def test_no_certificate(federation):
    kit = Kit.read(federation.kits["north"], "site")
    context = ssl.create_default_context(cafile=str(kit.root))
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    answer = b""
    with (
        socket.create_connection((kit.host, kit.port), 10) as plain,
        context.wrap_socket(plain, server_hostname=kit.host) as secure,
        contextlib.suppress(ssl.SSLError, ConnectionError),
    ):
        secure.sendall(HELLO)
        answer = secure.recv(9)
    assert answer == b""
    federation.hears("no certificate")


def test_plain_text(federation):
    kit = Kit.read(federation.kits["north"], "site")
    with socket.create_connection((kit.host, kit.port), 10) as plain:
        plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert plain.recv(100) == b""
    federation.hears("plain text")


def test_one_that_connects_and_says_nothing_holds_up_nobody(federation):
    kit = Kit.read(federation.kits["north"], "site")
    with socket.create_connection((kit.host, kit.port), 10):
        knock(kit)


def test_a_kit_whose_server_is_away(federation, tmp_path):
    elsewhere = provision(Deployment(sites=["north"], port=free_port()), tmp_path)
    with (
        pytest.raises(RunError, match=r"does not answer .*; is it started"),
        connect(elsewhere[ADMIN]),
    ):
        pass


def test_settings_of_another_site(federation):
    with pytest.raises(ConfigError, match="the kit of north, the settings are those of south"):
        start_site(federation.kits["north"], federation.settings("south"), lambda _: None)


def certificate(kit: Path) -> x509.Certificate:
    [path] = (kit / "startup").glob("*.crt")
    return x509.load_pem_x509_certificate(path.read_bytes())


def files(folder: Path) -> dict[str, bytes]:
    return {
        p.relative_to(folder).as_posix(): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and AUTHORITY not in p.parts
    }


def test_provisioning_again_adds_and_renews_and_changes_nobody_else(tmp_path):
    kits = provision(Deployment(sites=["north", "south"], valid_days=30), tmp_path)
    assert sorted(kits) == [ADMIN, "north", SERVER, "south"]
    days = certificate(kits["north"]).not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=29) < days < timedelta(days=31)
    before = files(tmp_path)
    keys = [name for name in before if name.endswith(".key")]
    assert len(keys) == 4
    assert all((tmp_path / name).stat().st_mode & 0o077 == 0 for name in keys)

    provision(Deployment(sites=["north", "south"]), tmp_path)
    assert files(tmp_path) == before

    provision(Deployment(sites=["north", "south", "west"]), tmp_path, renew=["south"])
    after = files(tmp_path)
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {"south/startup/client.crt", "south/startup/client.key"}
    assert {name.split("/")[0] for name in set(after) - set(before)} == {"west"}
    issuers = {certificate(tmp_path / party).issuer for party in ("north", "south", "west")}
    assert len(issuers) == 1
    with pytest.raises(ConfigError, match="east: no such party"):
        provision(Deployment(sites=["north"]), tmp_path, renew=["east"])


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"sites": ["a b"]}, "letters, digits, - and _"),
        ({"sites": ["server"]}, "there is a party of that name"),
        ({"sites": ["a", "A"]}, "every name once"),
        ({"sites": []}, "sites"),
        ({"sites": ["a"], "server": "not a host"}, "a host's name or an IPv4 address"),
        ({"sites": ["a"], "admin": "nobody"}, "an e-mail address"),
        ({"sites": ["a"], "port": 99999}, "port"),
        ({"sites": ["a"], "prot": 1}, "did you mean port"),
    ],
)
def test_mistakes_in_a_deployment_file(facts, message):
    with pytest.raises(ConfigError, match=message):
        check_deployment(facts, "deploy.yaml")


def test_a_deployment_file(tmp_path):
    (tmp_path / "deploy.yaml").write_text("server: fl.clinic.org\nsites: [north, south]\n")
    deployment = read_deployment(tmp_path / "deploy.yaml")
    assert (deployment.server, deployment.port) == ("fl.clinic.org", 8002)
    kits = provision(deployment, tmp_path / "kits")
    kit = Kit.read(kits["south"], "site")
    assert (kit.party, kit.address, kit.federation) == ("south", "fl.clinic.org:8002", "konsil")
    (kits["south"] / "startup/fed_client.json").write_text("{}")
    with pytest.raises(KonsilError, match="a damaged start-up kit"):
        Kit.read(kits["south"], "site")
