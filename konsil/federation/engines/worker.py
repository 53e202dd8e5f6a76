"""A worker process: answers requests on behalf of its sites until its pipe is closed."""

from __future__ import annotations

import json
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from konsil.errors import KonsilError

REPLY, REFUSAL = b"R", b"E"


def work(connection: Connection) -> None:
    """The first message says which plan and where; every other one is a request."""
    from konsil.federation.messages import Request
    from konsil.federation.plan import Plan
    from konsil.federation.site_worker import SiteWorker

    facts = json.loads(connection.recv_bytes())
    worker: SiteWorker | None = None
    while True:
        message = connection.recv_bytes()
        try:
            if worker is None:  # here, so that a plan it cannot work on is said, not only died of
                worker = SiteWorker(Plan.from_json(facts["plan"]), Path(facts["run_folder"]))
            answer = REPLY + worker.handle(Request.from_bytes(message)).to_bytes()
        except KonsilError as error:
            answer = REFUSAL + str(error).encode()
        connection.send_bytes(answer)


def main() -> None:
    """Work on the pipe whose descriptor the coordinator passed."""
    try:
        work(Connection(int(sys.argv[1])))
    except (EOFError, ConnectionError):
        return  # the coordinator has gone


if __name__ == "__main__":
    main()
