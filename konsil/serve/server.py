"""Start the workers, listen, and end both together."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from konsil.errors import RunError
from konsil.serve.guard import App, is_loopback
from konsil.serve.pool import Pool, Setup

CONNECTIONS = 256  # open at once, with a question or without
PATIENCE = 5.0  # seconds for answers that are being sent when the server ends


@dataclass(frozen=True)
class Address:
    """Where the server listens, and what a client must know."""

    host: str = "127.0.0.1"
    port: int = 8008  # 0: any that is free
    token: str = ""
    certificate: Path | None = None  # of TLS, with its key
    key: Path | None = None

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


def serve(setup: Setup, address: Address, listening: Callable[[str], None]) -> None:
    """Answer until somebody ends it; `listening` hears the page's address."""
    from konsil.serve.app import create_app

    with bound(address) as listener:
        pool = Pool(setup)
        try:
            app = create_app(pool, address.token, address.loopback)
            answer(app, address, listener, listening)
        finally:
            pool.close()


def answer(
    app: App, address: Address, listener: socket.socket, listening: Callable[[str], None]
) -> None:
    """Let an application answer who comes to this socket, until somebody ends it."""
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        http="h11",
        ws="none",
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=int(PATIENCE),
        ssl_certfile=address.certificate,
        ssl_keyfile=address.key,
    )
    listening(url_of(address, listener.getsockname()[1]))
    uvicorn.Server(config).run(sockets=[listener])


def url_of(address: Address, port: int) -> str:
    """What to type into a browser; the token stays in it, no server ever sees that part."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    scheme = "https" if address.certificate else "http"
    token = f"#token={quote(address.token, safe='')}" if address.token else ""
    return f"{scheme}://{host}:{port}/{token}"


def bound(address: Address) -> socket.socket:
    """A socket at the address, before anything heavy is loaded; RunError if it cannot be had."""
    try:
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((address.host, address.port), family=family)
        # Whoever is accepted inherits it; without, an answer waits 40 ms for the client to say that
        # it has read its head (asyncio sees to that for sockets of its own alone).
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        why = error.strerror or str(error)
        raise RunError(
            f"cannot listen on {address.host}:{address.port}: {why}; choose another --port"
        ) from None
