"""Workers of a server: who is free answers, who dies or takes too long is replaced."""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Thread

from konsil.errors import RunError
from konsil.serve.limits import Limits
from konsil.serve.messages import Question, Reply
from konsil.serve.schema import Model

START = 120.0  # seconds that a worker may take to load its model
WORKER = "konsil.serve.worker"


@dataclass(frozen=True)
class Setup:
    """Which model is served, and how."""

    model: Path
    name: str  # what people know it by
    device: str = "cpu"
    plugins: Sequence[Path] = ()
    workers: int = 1
    threads: int = 1
    limits: Limits = field(default_factory=Limits)

    def to_bytes(self) -> bytes:
        """What a worker must know."""
        facts = {
            "model": str(self.model),
            "name": self.name,
            "device": self.device,
            "plugins": [str(path) for path in self.plugins],
            "threads": self.threads,
            "memory_mb": self.limits.memory_mb,
            "upload_mb": self.limits.upload_mb,
        }
        return json.dumps(facts).encode()


class Pool:
    """A fixed number of workers; questions come from threads, one waits for each."""

    def __init__(self, setup: Setup) -> None:
        """Start the workers and wait for them; RunError if the model cannot be served."""
        self.setup = setup
        self._idle: queue.Queue[Worker] = queue.Queue()
        self._all: set[Worker] = set()
        self._lock, self._closed = Lock(), False
        started = [self._begin() for _ in range(setup.workers)]
        try:
            described = [self._ready(worker) for worker in started]
        except BaseException:
            self.close()
            raise
        self.model = Model.model_validate_json(described[0])

    def ask(self, question: Question) -> Reply:
        """The answer of the first who is free; 503 if nobody is, or if it takes too long."""
        limits = self.setup.limits
        try:
            worker = self._idle.get(timeout=limits.seconds * (1 + limits.waiting))
        except queue.Empty:
            return Reply.problem(503, "no worker is free; try again later")
        reply = worker.ask(question, limits.seconds)
        if reply is None:
            late = worker.process.poll() is None
            self._replace(worker)
            if late:
                return Reply.problem(503, f"it took more than {limits.seconds:g} s and was ended")
            return Reply.problem(422, "the file ends the program that opens it: is it damaged?")
        if reply.spent:
            self._replace(worker)
        else:
            self._idle.put(worker)
        return reply

    def processes(self) -> list[int]:
        """Of the workers that live."""
        return [worker.process.pid for worker in self._all if worker.process.poll() is None]

    def close(self) -> None:
        """End all workers, and wait for them."""
        with self._lock:
            self._closed = True
            for worker in self._all:
                worker.kill()
            self._all.clear()

    def _begin(self) -> Worker:
        worker = Worker(self.setup.to_bytes())
        with self._lock:
            if self._closed:
                worker.kill()
            else:
                self._all.add(worker)
        return worker

    def _ready(self, worker: Worker) -> bytes:
        """What a new worker says of its model; from now on it is asked."""
        reply = worker.receive(START)
        if reply is None or reply.status != 200:
            why = json.loads(reply.body)["detail"] if reply else "a worker ended, or hangs"
            raise RunError(f"cannot serve {self.setup.model}: {why}")
        self._idle.put(worker)
        return reply.body

    def _replace(self, worker: Worker) -> None:
        """End a worker at once; another takes its place meanwhile."""
        worker.kill()
        with self._lock:
            self._all.discard(worker)
        Thread(target=self._another, daemon=True).start()

    def _another(self) -> None:
        worker = self._begin()
        try:
            self._ready(worker)
        except RunError as error:
            worker.kill()
            print(f"konsil serve: {error}", file=sys.stderr, flush=True)


class Worker:
    """One process and the pipe to it."""

    def __init__(self, setup: bytes) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        descriptor = theirs.fileno()
        command = [sys.executable, "-m", WORKER, str(descriptor)]
        usual = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the server ends it
        try:
            self.process = subprocess.Popen(
                command,
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"MALLOC_ARENA_MAX": "2"},  # freed memory goes back
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, usual)
        theirs.close()
        self.connection.send_bytes(setup)

    def ask(self, question: Question, seconds: float) -> Reply | None:
        """Its reply; None if it died or takes longer."""
        try:
            self.connection.send_bytes(question.to_bytes())
        except (ConnectionError, OSError):
            return None
        return self.receive(seconds)

    def receive(self, seconds: float) -> Reply | None:
        """What it says next; None if it died or takes longer."""
        try:
            if not self.connection.poll(seconds):
                return None
            return Reply.from_bytes(self.connection.recv_bytes())
        except (EOFError, OSError):
            self.process.wait()
            return None

    def kill(self) -> None:
        """End it now, whatever it is doing."""
        self.process.kill()
        self.process.wait()
        self.connection.close()
