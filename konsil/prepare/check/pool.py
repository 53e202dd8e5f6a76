"""Work shared among the cores.

Threads help with volumes, whose decoders run long without Python. Opening a small picture is
mostly Python, and there two threads only get into each other's way (measured: 1.5 times the work,
none of the time saved). Pictures are therefore shared among processes. They are forked, for
starting Python anew would take longer than a thousand pictures; after the fork they read files,
decode, count and send, and touch no lock that another thread could have held.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.pool import ThreadPool
from typing import Any, TypeVar

from konsil.data.recipe import THREADS
from konsil.errors import DataError

Given = TypeVar("Given")
Made = TypeVar("Made")
Work = Callable[[Given], Made]
Results = Generator[Made, None, None]
CHUNK = 16
WORTH_IT = 200  # things to do: with fewer, starting processes costs more than it saves


def by_threads(
    work: Callable[[Given], Made], given: Sequence[Given]
) -> Generator[Made, None, None]:
    """What `work` makes of each, in order."""
    with ThreadPool(THREADS) as pool:
        yield from pool.imap(work, given)


def by_processes(
    work: Callable[[Given], Made], given: Sequence[Given]
) -> Generator[Made, None, None]:
    """What `work` makes of each, in order; by threads where processes do not pay."""
    if THREADS < 2 or len(given) < WORTH_IT or sys.platform != "linux":
        yield from by_threads(work, given)
        return
    pool = _Pool(work, given, THREADS)
    try:
        yield from pool.results()
    finally:
        pool.dismiss()


class _Pool:
    """Processes of which each has every n-th chunk to do, and a pipe to hand results in."""

    def __init__(self, work: Callable[[Any], Any], given: Sequence[Any], count: int) -> None:
        fork = multiprocessing.get_context("fork")
        self._chunks = [given[begin : begin + CHUNK] for begin in range(0, len(given), CHUNK)]
        self._pipes: list[Connection] = []
        self._processes = []
        for number in range(count):
            ours, theirs = fork.Pipe(duplex=False)
            self._pipes.append(ours)
            own = self._chunks[number::count]
            arguments = (work, own, theirs, list(self._pipes))
            process = fork.Process(target=_work_through, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)

    def results(self) -> Iterator[Any]:
        for number in range(len(self._chunks)):
            try:
                made = self._pipes[number % len(self._pipes)].recv()
            except EOFError:
                raise DataError(
                    "a process that opened files was ended from outside; if memory is short, close "
                    "other programs, or check one site at a time"
                ) from None
            if isinstance(made, Exception):
                raise made
            yield from made

    def dismiss(self) -> None:
        for pipe in self._pipes:
            pipe.close()  # who is still at work finds nobody listening, and ends
        for process in self._processes:
            process.join()


def _work_through(
    work: Callable[[Any], Any],
    chunks: Sequence[Sequence[Any]],
    results: Connection,
    inherited: Sequence[Connection],
) -> None:
    """In a process of the pool. It ends when the work is done or nobody listens any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the others are told by their pipes
    for pipe in inherited:
        pipe.close()  # or a pipe would seem to be listened to for ever
    with suppress(ConnectionError):
        for chunk in chunks:
            try:
                made: Any = [work(one) for one in chunk]
            except Exception as error:  # a mistake in the program: for the one who asked
                made = error
            results.send(made)
