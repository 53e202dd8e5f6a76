"""Processes that end with their parent, and write to a log instead of a terminal."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from konsil.errors import KonsilError, RunError
from konsil.files import take_lock

Report = Callable[[str], None]
PARENT = "KONSIL_PARENT"  # the environment variable that names the parent's process
GLANCE = 0.3  # seconds between two looks at the parent
GRACE = 5.0  # seconds between the request to end and the end
SAY = "konsil: "  # how a line for people begins, among a process's own noise


def end_with_parent() -> None:
    """This process ends soon after the one that started it, however that one ended.

    By looking, not by a signal of the kernel: that one also comes when only the *thread* that
    started this process ends. Who the parent is must be told: it may be gone already.
    """
    parent = int(os.environ.get(PARENT) or os.getppid())
    if parent == os.getpid():
        return  # it is being watched already
    os.environ[PARENT] = str(os.getpid())  # for what this process starts

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(GLANCE)
        os._exit(1)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


def say(text: str) -> None:
    """A line for people, from a process that runs under another."""
    sys.stdout.write(f"{SAY}{text}\n")  # in one piece: threads say things too
    sys.stdout.flush()


def passed_on(report: Report) -> Report:
    """Hears all that a process prints, and passes on what it says to people."""

    def hear(line: str) -> None:
        if line.startswith(SAY):
            report(line.removeprefix(SAY))

    return hear


def run_below(start: Callable[..., None], *arguments: object) -> None:
    """The main function of a process under another: what goes wrong is said there."""
    end_with_parent()
    try:
        start(*arguments, say)
    except KonsilError as error:
        say(f"error: {error}")
        sys.exit(1)


class Child:
    """A Python module at work in a process of its own; what it prints goes to a log."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        log: Path,
        hear: Report,
        environment: Mapping[str, str] = {},
        keep_open: Sequence[int] = (),
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-u", "-m", module, *arguments]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment, PARENT: str(os.getpid())},
            pass_fds=keep_open,
            start_new_session=True,  # Ctrl-C is ours to handle
        )
        self._listener = threading.Thread(target=self._listen, args=[log, hear], daemon=True)
        self._listener.start()

    def _listen(self, log: Path, hear: Report) -> None:
        assert self.process.stdout is not None
        with open(log, "ab", buffering=0) as file:
            for line in self.process.stdout:
                with suppress(OSError):  # a full disk: who does not listen on blocks who speaks
                    file.write(line)
                hear(line.decode(errors="replace").rstrip())

    @property
    def code(self) -> int | None:
        """How it ended; None while it runs."""
        return self.process.poll()

    def end(self, grace: float = GRACE) -> None:
        """Ask it to end, then end it; what it started ends with it."""
        with suppress(ProcessLookupError):
            self.process.terminate()
        try:
            self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._listener.join(GRACE)  # the pipe may be held open by a grandchild for a moment


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that is set by Ctrl-C and by SIGTERM, instead of an exception anywhere."""
    stopped = threading.Event()
    usual = {s: signal.signal(s, lambda *_: stopped.set()) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


@contextmanager
def alone_in(folder: Path, who: str, patience: float = 30.0) -> Iterator[int]:
    """Only one process tree works here; the lock's descriptor, for children that hold it too.

    What is left of a tree that was killed needs a moment to notice: hence the patience.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = take_lock(folder / ".running", patience)
    if lock is None:
        raise RunError(f"{folder}: {who} runs here already")
    with lock:
        yield lock.fileno()
