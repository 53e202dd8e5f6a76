"""What a start-up kit says, and whether the server takes it."""

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
# Whose kit it is, in words; and where the rest is written.
KINDS: dict[Kind, tuple[str, str]] = {
    "server": ("the server", "fed_server.json"),
    "site": ("a site", "fed_client.json"),
    "admin": ("an admin", "fed_admin.json"),
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
        whose, name = KINDS[kind]
        path = folder / "startup" / name
        if not path.exists():
            raise ConfigError(
                f"{folder}: not the start-up kit of {whose}; `konsil deploy provision` makes "
                "them, one folder a party"
            )
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            federation, host, port, *files = _address(content, kind)
            cert, key, root = (path.parent / file for file in files)
            identity = _certificate(cert)
            server = federation, host, int(port)
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(f"{folder}: a damaged start-up kit ({reason})") from None
        return cls(folder.absolute(), kind, *server, cert, key, root, *identity)

    @property
    def address(self) -> str:
        """Where the server is."""
        return f"{self.host}:{self.port}"

    @property
    def dates(self) -> str:
        """From when to when the certificate is valid, in words."""
        return f"valid {self.valid_from:%Y-%m-%d} to {self.valid_until:%Y-%m-%d}"

    def check_dates(self) -> None:
        """Refuse a certificate that is not valid now."""
        now, what = datetime.now(UTC), f"{self.certificate}: this certificate"
        if now > self.valid_until:
            raise ConfigError(
                f"{what} has expired ({self.dates}); ask for a new kit "
                f"(konsil deploy provision --renew {self.party})"
            )
        if now < self.valid_from:
            raise ConfigError(
                f"{what} is not valid yet ({self.dates}); is this machine's clock right?"
            )


def _address(content: dict[str, Any], kind: Kind) -> list[str]:
    """Federation, host and port of its server, and the files of one's own certificate."""
    if kind == "admin":
        keys = ("project_name", "host", "port", "client_cert", "client_key", "ca_cert")
        return [content["admin"][key] for key in keys]
    server = content["servers"][0]
    host, _, port = server["service"]["target"].rpartition(":")
    own = server if kind == "server" else content["client"]
    files = [own[key] for key in ("ssl_cert", "ssl_private_key", "ssl_root_cert")]
    return [server["name"], host, port, *files]


def _certificate(path: Path) -> tuple[str, datetime, datetime]:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    name = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    return str(name), certificate.not_valid_before_utc, certificate.not_valid_after_utc


class Refused(ConfigError):
    """The server answers, but it and this kit do not belong together."""


def knock(kit: Kit) -> str:
    """Make sure that the server takes this kit's certificate; the protocol it speaks.

    Raises Refused if it does not, and OSError if nobody answers. A completed handshake is not
    enough: with TLS 1.3 the server looks at the client's certificate after it, so the server must
    also answer.
    """
    context = ssl.create_default_context(cafile=str(kit.root))
    context.check_hostname = False  # FLARE names the server by its identity, not by its address
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(kit.certificate, kit.key)
    how = "it closed the connection"
    try:
        with (
            socket.create_connection((kit.host, kit.port), PATIENCE) as plain,
            _secured(context, plain, kit.host) as secure,
            secure.makefile("rb") as answer,
        ):
            secure.sendall(HELLO)
            if answer.read(FRAME)[3:4] == bytes([SETTINGS]):
                return str(secure.version())
    except ssl.SSLCertVerificationError as error:
        raise Refused(
            f"the server at {kit.address} has a certificate that this kit does not trust "
            f"({error.verify_message}): is it the server of the federation {kit.federation!r}?"
        ) from None
    except ssl.SSLError as error:
        how = str(error.reason or error)
    except ConnectionResetError:
        how = "it reset the connection"
    raise Refused(
        f"the server at {kit.address} does not accept this kit's certificate ({how}): both kits "
        "must be of one provisioning, and neither expired"
    )


def _secured(context: ssl.SSLContext, plain: socket.socket, host: str) -> ssl.SSLSocket:
    """Who hangs up before saying who it is refuses nobody: so does a proxy without its server."""
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except (ssl.SSLEOFError, ConnectionResetError):
        raise ConnectionAbortedError(errno.ECONNABORTED, "it hung up") from None
