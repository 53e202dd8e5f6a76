"""Worker processes, each with sites of its own; requests and replies travel as bytes.

Run as a command, this file is such a worker (`main`).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from threading import Thread

from konsil.errors import KonsilError
from konsil.federation.messages import Failure, Reply, Request
from konsil.federation.plan import POOLED_SITE, Plan
from konsil.federation.site_worker import SiteWorker

REPLY, REFUSAL = b"R", b"E"
Queues = dict[int, list[Request]]  # worker -> what it is working on, and what waits for it


class ProcessEngine:
    """A site always works in the same process; the largest sites are dealt out first."""

    def __init__(self, plan: Plan, run_folder: Path) -> None:
        wanted = plan.experiment.engine.workers or os.cpu_count() or 1
        self.home = deal_out(plan, min(wanted, len(plan.sites)))
        setup = {"plan": plan.to_json(), "run_folder": str(run_folder)}
        self._setup = json.dumps(setup).encode()
        self._workers: dict[int, Worker] = {}

    def exchange(
        self, requests: Sequence[Request], deadline: float | None = None
    ) -> Iterator[Reply | Failure]:
        """Replies as they arrive: each worker has one request at a time, the rest wait here."""
        end = None if deadline is None else time.monotonic() + deadline
        queues: Queues = {}
        for request in requests:
            queues.setdefault(self.home[request.site], []).append(request)
        try:
            for number, queue in queues.items():
                self._worker(number).send(queue[0])
            while queues:
                left = None if end is None else max(0.0, end - time.monotonic())
                yield from self._turn(queues, left)
        finally:
            self._drop(queues)  # the caller has left in the middle

    def _turn(self, queues: Queues, left: float | None) -> Iterator[Reply | Failure]:
        busy: dict[object, int] = {self._workers[n].connection: n for n in queues}
        ready = wait([self._workers[n].connection for n in queues], left)
        for connection in ready:
            yield self._answer(busy[connection], queues)
        if not ready:
            late = [request.site for queue in queues.values() for request in queue]
            self._drop(queues)
            yield from (Failure(site, "no answer before the deadline") for site in late)

    def _answer(self, number: int, queues: Queues) -> Reply | Failure:
        worker, queue = self._workers[number], queues[number]
        answer = worker.receive(queue.pop(0).site)
        if worker.process.poll() is not None:
            self._end(number)  # a new one takes its place when it is needed
        if queue:
            self._worker(number).send(queue[0])
        else:
            del queues[number]
        return answer

    def _drop(self, queues: Queues) -> None:
        """A worker still busy with a question that nobody waits for is ended, not trusted."""
        for number in list(queues):
            self._end(number)
            del queues[number]

    def _worker(self, number: int) -> Worker:
        if number not in self._workers:
            self._workers[number] = Worker(self._setup)
        return self._workers[number]

    def _end(self, number: int) -> None:
        if number in self._workers:
            self._workers.pop(number).kill()

    def close(self) -> None:
        """End all worker processes, and wait for them."""
        for number in list(self._workers):
            self._end(number)


class Worker:
    """One process and the pipe to it.

    A process of its own command, not a fork or a copy of this one: what the caller's script did
    before (threads, open files, an unguarded main) does not reach it.
    """

    def __init__(self, setup: bytes) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        descriptor = theirs.fileno()
        command = [sys.executable, "-m", __name__, str(descriptor)]
        # Ctrl-C is the coordinator's to handle: a process started here never sees it, not even
        # while it imports.
        usual = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process = subprocess.Popen(
                command, pass_fds=[descriptor], stdin=subprocess.DEVNULL
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, usual)
        theirs.close()
        self.connection.send_bytes(setup)
        self._sender: Thread | None = None

    def send(self, request: Request) -> None:
        """Ask, in a thread: a pipe holds less than a model.

        A worker that does not read (it starts, it hangs) must hold up neither the others nor the
        deadline.
        """
        self._sender = Thread(target=self._deliver, args=[request], daemon=True)
        self._sender.start()

    def _deliver(self, request: Request) -> None:
        with suppress(ConnectionError):  # `receive` will find the pipe closed and say so
            self.connection.send_bytes(request.to_bytes())

    def receive(self, site: str) -> Reply | Failure:
        """The answer for a site, or why there is none."""
        try:
            message = self.connection.recv_bytes()
        except (EOFError, ConnectionError):
            return Failure(site, f"its process ended with exit code {self.process.wait()}")
        if message[:1] == REFUSAL:
            return Failure(site, message[1:].decode())
        return Reply.from_bytes(bytearray(memoryview(message)[1:]))

    def kill(self) -> None:
        """End it now; its sites' state is on disk, whole."""
        self.process.kill()
        self.process.wait()
        if self._sender is not None:
            self._sender.join()  # its pipe is broken now
        self.connection.close()


def deal_out(plan: Plan, workers: int) -> dict[str, int]:
    """Which worker is home to which site: the largest first, each to the least laden."""
    load = [0] * workers
    home = {POOLED_SITE: 0}
    for site in sorted(plan.sites, key=lambda s: -plan.images(s, "train")):
        home[site] = load.index(min(load))
        load[home[site]] += plan.images(site, "train")
    return home


def work(connection: Connection) -> None:
    """Answer requests: the first message says which plan and where, every other one is one."""
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
    """Work on the pipe whose descriptor the coordinator passed, until it is closed."""
    with suppress(EOFError, ConnectionError):  # the coordinator has gone
        work(Connection(int(sys.argv[1])))


if __name__ == "__main__":
    main()
