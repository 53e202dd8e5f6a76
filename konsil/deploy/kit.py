"""What a start-up kit says, and whether the server takes it."""

from __future__ import annotations

import errno
import json
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from konsil.errors import ConfigError

Kind = Literal["server", "site", "admin"]
CONFIGURATION: dict[Kind, str] = {
    "server": "fed_server.json",
    "site": "fed_client.json",
    "admin": "fed_admin.json",
}
# The first bytes of HTTP/2, which gRPC speaks, and the frame that a willing server answers with.
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
FRAME, SETTINGS = 9, 4
PATIENCE = 10.0  # seconds for the server to answer


@dataclass(frozen=True)
class Kit:
    """One party's identity, and where the server is."""

    folder: Path
    kind: Kind
    federation: str
    host: str
    port: int
    certificate: Path
    key: Path
    root: Path
    party: str  # as the certificate names it
    valid_from: datetime
    valid_until: datetime

    @classmethod
    def read(cls, folder: Path, kind: Kind) -> Self:
        """The kit of a folder, which must be of this kind."""
        start = folder / "startup"
        path = start / CONFIGURATION[kind]
        if not path.exists():
            raise ConfigError(
                f"{folder}: not the start-up kit of {_article(kind)}; `konsil deploy provision` "
                "makes them, one folder a party"
            )
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            federation, host, port, files = _address(content, kind)
            cert, key, root = (start / name for name in files)
            party, begin, end = _certificate(cert)
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(f"{folder}: a damaged start-up kit ({reason})") from None
        return cls(
            folder.absolute(), kind, federation, host, port, cert, key, root, party, begin, end
        )

    @property
    def address(self) -> str:
        """Where the server is."""
        return f"{self.host}:{self.port}"

    def check_dates(self) -> None:
        """Refuse a certificate that is not valid now."""
        now = datetime.now(UTC)
        dates = f"valid {self.valid_from:%Y-%m-%d} to {self.valid_until:%Y-%m-%d}"
        if now > self.valid_until:
            raise ConfigError(
                f"{self.certificate}: this certificate has expired ({dates}); ask for a new kit "
                f"(konsil deploy provision --renew {self.party})"
            )
        if now < self.valid_from:
            raise ConfigError(
                f"{self.certificate}: this certificate is not valid yet ({dates}); is this "
                "machine's clock right?"
            )


def _address(content: dict[str, Any], kind: Kind) -> tuple[str, str, int, list[str]]:
    if kind == "admin":
        admin = content["admin"]
        names = [admin[k] for k in ("client_cert", "client_key", "ca_cert")]
        return admin["project_name"], admin["host"], int(admin["port"]), names
    server = content["servers"][0]
    host, _, port = server["service"]["target"].rpartition(":")
    own = server if kind == "server" else content["client"]
    names = [own[k] for k in ("ssl_cert", "ssl_private_key", "ssl_root_cert")]
    return server["name"], host, int(port), names


def _certificate(path: Path) -> tuple[str, datetime, datetime]:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    name = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    return str(name), certificate.not_valid_before_utc, certificate.not_valid_after_utc


def _article(kind: Kind) -> str:
    return {"server": "the server", "site": "a site", "admin": "an admin"}[kind]


class Refused(ConfigError):
    """The server answers, but it and this kit do not belong together."""


def knock(kit: Kit, patience: float = PATIENCE) -> str:
    """Make sure that the server takes this kit's certificate; the protocol it speaks.

    Raises Refused if it does not, and OSError if nobody answers. A completed handshake is not
    enough: with TLS 1.3 the server looks at the client's certificate after it, so the server must
    also answer.
    """
    context = ssl.create_default_context(cafile=str(kit.root))
    context.check_hostname = False  # FLARE names the server by its identity, not by its address
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(kit.certificate, kit.key)
    try:
        with (
            socket.create_connection((kit.host, kit.port), patience) as plain,
            _secured(context, plain, kit.host) as secure,
        ):
            secure.sendall(HELLO)
            if _answer(secure)[3:4] == bytes([SETTINGS]):
                return str(secure.version())
        raise Refused(_refusal(kit, "it closed the connection"))
    except ssl.SSLCertVerificationError as error:
        raise Refused(
            f"the server at {kit.address} has a certificate that this kit does not trust "
            f"({error.verify_message}): is it the server of the federation {kit.federation!r}?"
        ) from None
    except ssl.SSLError as error:
        raise Refused(_refusal(kit, str(error.reason or error))) from None
    except ConnectionResetError:
        raise Refused(_refusal(kit, "it reset the connection")) from None


def _secured(context: ssl.SSLContext, plain: socket.socket, host: str) -> ssl.SSLSocket:
    """Who hangs up before saying who it is refuses nobody: so does a proxy without its server."""
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except (ssl.SSLEOFError, ConnectionResetError):
        raise ConnectionAbortedError(errno.ECONNABORTED, "it hung up") from None


def _answer(connection: ssl.SSLSocket) -> bytes:
    answer = b""
    while len(answer) < FRAME:
        more = connection.recv(FRAME - len(answer))
        if not more:
            break
        answer += more
    return answer


def _refusal(kit: Kit, how: str) -> str:
    return (
        f"the server at {kit.address} does not accept this kit's certificate ({how}): both kits "
        "must be of one provisioning, and neither expired"
    )
