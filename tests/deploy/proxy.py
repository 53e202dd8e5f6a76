"""A TCP proxy between a site and the server: passes, counts, delays, throttles, cuts."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

CHUNK = 16_384
GLANCE = 0.05


class Proxy:
    """Every connection to its port goes on to the target's port, as long as the link is up."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._up = threading.Event()
        self._up.set()
        self._closed = False
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.rate: float | None = None  # bytes a second each way; None: as fast as it goes
        self.rate_up: float | None = None  # to the server only
        self.delay = 0.0  # seconds for every chunk
        self.to_server = self.to_site = 0  # bytes that passed
        self.cuts = 0  # connections that were torn
        self.spoil = False  # change one byte of the next chunk to the server
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Tear every connection, and refuse new ones."""
        self._up.clear()
        for pair in self._pairs:
            self.cuts += 1
            _tear(*pair)
        self._pairs.clear()

    def mend(self) -> None:
        """Let connections through again."""
        self._up.set()

    def close(self) -> None:
        """No more connections."""
        self._closed = True
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                site, _ = self._listener.accept()
            except OSError:
                return
            if not self._up.is_set():
                _tear(site)
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                _tear(site)
                continue
            pair = (site, server)
            self._pairs.append(pair)
            for ends, up in ((pair, True), (pair[::-1], False)):
                threading.Thread(target=self._pump, args=[*ends, up], daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, up: bool) -> None:
        """From one end to the other, until either is gone."""
        with suppress(OSError):
            while data := source.recv(CHUNK):
                rate = (self.rate_up if up else None) or self.rate
                time.sleep(self.delay + (len(data) / rate if rate else 0.0))
                if not self._up.is_set():
                    break
                target.sendall(self._spoilt(data) if up and self.spoil else data)
                if up:
                    self.to_server += len(data)
                else:
                    self.to_site += len(data)
        _tear(source, target)

    def _spoilt(self, data: bytes) -> bytes:
        self.spoil = False
        middle = len(data) // 2
        return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def _tear(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            end.close()
