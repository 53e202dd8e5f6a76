"""A TCP proxy that counts what passes, and when."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from time import time

CHUNK = 1 << 18


class Wire:
    """Every connection to its port goes on to the target's; both ways count."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._passed: list[tuple[float, int]] = []  # time of day, bytes
        threading.Thread(target=self._accept, daemon=True).start()

    def between(self, start: float, end: float) -> int:
        """Bytes that passed from one time of day to another."""
        return sum(size for when, size in self._passed if start <= when <= end)

    def close(self) -> None:
        """No more connections; those that are there end with their ends."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                site, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._target))
                except OSError:  # not up yet: the site will try again
                    site.close()
                    continue
                for ends in ((site, server), (server, site)):
                    threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK):
                target.sendall(data)
                self._passed.append((time(), len(data)))
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
