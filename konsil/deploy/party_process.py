"""A site's party in a process of its own, asked over a socket on the same machine.

It outlives FLARE's sessions: what it computes when a session ends is ready for the next one.

    python -m konsil.deploy.party_process SETTINGS SOCKET
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, Listener
from pathlib import Path

from konsil.deploy.processes import end_with_parent, say
from konsil.errors import KonsilError

Answer = Callable[[str, bytes], bytes]
WAITING_LINE = 16  # questions that may wait: those of sessions that have ended since


def serve(listener: Listener, answer: Answer) -> None:
    """One question a connection, one after the other: a topic, its bytes, then the answer."""
    while True:
        with suppress(EOFError, ConnectionError), listener.accept() as connection:
            _serve_one(connection, answer)


def _serve_one(connection: Connection, answer: Answer) -> None:
    topic = connection.recv_bytes().decode()
    payload = connection.recv_bytes()
    if connection.poll():  # it asked and left while somebody else's question was answered
        return
    connection.send_bytes(answer(topic, payload))


def main() -> None:
    """Answer until the site's process ends."""
    end_with_parent()
    settings, address = sys.argv[1:]
    listener = Listener(address, family="AF_UNIX", backlog=WAITING_LINE)
    from konsil.deploy.party import SiteParty

    try:
        party = SiteParty.from_file(Path(settings), say)
    except KonsilError as error:
        say(f"error: {error}")
        sys.exit(1)
    say("party ready")
    serve(listener, party.answer)


if __name__ == "__main__":
    main()
