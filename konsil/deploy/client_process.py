"""What computes at a site: its SiteClient in a process of its own, asked over a local socket.

It outlives FLARE's sessions: what it computes when a session ends is ready for the next one.

    python -m konsil.deploy.client_process SETTINGS SOCKET
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Listener
from pathlib import Path

from konsil.deploy.processes import Report, run_below

Answer = Callable[[str, bytes], bytes]
TooLarge = Callable[[str, int], bytes]
WAITING_LINE = 16  # questions that may wait: those of sessions that have ended since
GO_ON = b""


def serve(listener: Listener, answer: Answer, too_large: TooLarge) -> None:
    """One question a connection, one after the other.

    Topic and length of the message come first: one that is too long is refused before it is
    copied. To the others `GO_ON` is said, then come their bytes, then the answer goes back.
    """
    while True:
        with suppress(EOFError, ConnectionError), listener.accept() as connection:
            topic, size = connection.recv_bytes().decode(), int(connection.recv_bytes())
            if connection.poll():  # it asked and left while another's question was answered
                continue
            refusal = too_large(topic, size)
            connection.send_bytes(refusal or GO_ON)
            if not refusal:
                connection.send_bytes(answer(topic, connection.recv_bytes(maxlength=size)))


def answer_all(settings: str, address: str, report: Report) -> None:
    """Answer until the site's process ends."""
    listener = Listener(address, family="AF_UNIX", backlog=WAITING_LINE)
    from konsil.deploy.site_client import SiteClient  # slow: who asks already finds a socket

    client = SiteClient.from_file(Path(settings), report)
    report("site client ready")
    serve(listener, client.answer, client.too_large)


if __name__ == "__main__":
    run_below(answer_all, *sys.argv[1:])
