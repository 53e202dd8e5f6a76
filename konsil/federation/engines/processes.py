"""Worker processes, each with sites of its own; requests and replies travel as bytes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from pathlib import Path
from threading import Thread

from konsil.federation.engines.worker import REFUSAL
from konsil.federation.messages import Failure, Reply, Request
from konsil.federation.plan import POOLED_SITE, Plan


class ProcessEngine:
    """A site always works in the same process; the largest sites are dealt out first."""

    def __init__(self, plan: Plan, run_folder: Path) -> None:
        wanted = plan.experiment.engine.workers or os.cpu_count() or 1
        count = min(wanted, len(plan.sites))
        self.home = deal_out(plan, count)
        setup = {"plan": plan.to_json(), "run_folder": str(run_folder)}
        self._setup = json.dumps(setup).encode()
        self._workers: list[Worker | None] = [None] * count

    def exchange(
        self, requests: Sequence[Request], deadline: float | None = None
    ) -> Iterator[Reply | Failure]:
        """Replies as they arrive: each worker has one request at a time, the rest wait here."""
        end = None if deadline is None else time.monotonic() + deadline
        queues: dict[int, list[Request]] = {}
        for request in requests:
            queues.setdefault(self.home[request.site], []).append(request)
        try:
            while queues:
                yield from self._turn(queues, end)
        finally:
            self._drop(queues)  # late workers, or the caller has left in the middle

    def _turn(
        self, queues: dict[int, list[Request]], end: float | None
    ) -> Iterator[Reply | Failure]:
        for number, queue in queues.items():
            self._worker(number).send(queue[0])
        busy = {self._worker(n).connection: n for n in queues}
        left = None if end is None else max(0.0, end - time.monotonic())
        ready = wait(list(busy), left)
        for connection in ready:
            number = busy[connection]  # type: ignore[index]
            request = queues[number].pop(0)
            answer = self._worker(number).receive(request)
            if not queues[number]:
                del queues[number]
            if self._worker(number).process.poll() is not None:
                self._end(number)  # a new one takes its place when it is needed
            yield answer
        if not ready:
            yield from self._expire(queues)

    def _expire(self, queues: dict[int, list[Request]]) -> Iterator[Failure]:
        late = [request for queue in queues.values() for request in queue]
        self._drop(queues)
        yield from (Failure(r.site, "no answer before the deadline") for r in late)

    def _drop(self, queues: dict[int, list[Request]]) -> None:
        """A worker still busy with a question that nobody waits for is ended, not trusted."""
        for number in list(queues):
            self._end(number)
            del queues[number]

    def _worker(self, number: int) -> Worker:
        worker = self._workers[number]
        if worker is None:
            worker = self._workers[number] = Worker(self._setup)
        return worker

    def _end(self, number: int) -> None:
        worker, self._workers[number] = self._workers[number], None
        if worker is not None:
            worker.kill()

    def close(self) -> None:
        """End the workers."""
        for number in range(len(self._workers)):
            self._end(number)


class Worker:
    """One process and the pipe to it.

    A process of its own command, not a fork or a copy of this one: what the caller's script did
    before (threads, open files, an unguarded main) does not reach it.
    """

    def __init__(self, setup: bytes) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        descriptor = theirs.fileno()
        command = [sys.executable, "-m", "konsil.federation.engines.worker", str(descriptor)]
        with _interrupts_blocked():
            self.process = subprocess.Popen(
                command, pass_fds=[descriptor], stdin=subprocess.DEVNULL
            )
        theirs.close()
        self.connection.send_bytes(setup)
        self._asked = ""
        self._sender: Thread | None = None

    def send(self, request: Request) -> None:
        """Ask, unless this very request is being worked on.

        In a thread: a pipe holds less than a model, and a worker that does not read (it starts,
        it hangs) must hold up neither the others nor the deadline.
        """
        if self._asked != request.site:
            self._asked = request.site
            self._sender = Thread(target=self._deliver, args=[request], daemon=True)
            self._sender.start()

    def _deliver(self, request: Request) -> None:
        with suppress(ConnectionError):  # `receive` will find the pipe closed and say so
            self.connection.send_bytes(request.to_bytes())

    def receive(self, request: Request) -> Reply | Failure:
        """The answer, or why there is none."""
        self._asked = ""
        try:
            message = self.connection.recv_bytes()
        except (EOFError, ConnectionError):
            code = self.process.wait()
            return Failure(request.site, f"its process ended with exit code {code}")
        if message[:1] == REFUSAL:
            return Failure(request.site, message[1:].decode())
        return Reply.from_bytes(bytearray(memoryview(message)[1:]))

    def kill(self) -> None:
        """End it now; its sites' state is on disk, whole."""
        self.process.kill()
        self.process.wait()
        if self._sender is not None:
            self._sender.join()  # its pipe is broken now
        self.connection.close()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Ctrl-C is the coordinator's to handle: a process started here never sees it, not even
    while it imports."""
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, usual)


def deal_out(plan: Plan, workers: int) -> dict[str, int]:
    """Which worker is home to which site: the largest first, each to the least laden."""
    load = [0] * workers
    home = {POOLED_SITE: 0}
    for site in sorted(plan.sites, key=lambda s: -plan.images(s, "train")):
        worker = load.index(min(load))
        home[site] = worker
        load[worker] += plan.images(site, "train")
    return home
