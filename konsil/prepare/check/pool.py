"""Work shared among the cores, its results in order and never many ahead of who takes them.

Threads help with volumes, whose decoders run long without Python. Opening a small picture is
mostly Python, and there two threads only get into each other's way (measured: 1.5 times the work,
none of the time saved). Pictures are therefore shared among processes. They are forked, for
starting Python anew would take longer than a thousand pictures; after the fork they read files,
decode, count and send, and touch no lock that another thread could have held.
"""

import mmap
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from konsil.data.recipe import THREADS
from konsil.errors import DataError

Given = TypeVar("Given")
Made = TypeVar("Made")
CHUNK = 16  # things that a process does between two messages
AHEAD = 32  # chunks a worker: what is made and not yet taken must not fill the memory
WORTH_IT = 200  # things to do: with fewer, starting processes costs more than it saves


def by_threads(
    work: Callable[[Given], Made], given: Sequence[Given]
) -> Generator[Made, None, None]:
    """What `work` makes of each, in order."""
    yield from _in_order(ThreadPoolExecutor(THREADS), lambda k: work(given[k]), len(given))


def by_processes(
    work: Callable[[Given], Made], given: Sequence[Given], name: Callable[[Given], str] = str
) -> Generator[Made, None, None]:
    """The same; by threads where processes do not pay.

    If a process dies, the error says by `name` what the processes had in hand.
    """
    if THREADS < 2 or len(given) < WORTH_IT or sys.platform != "linux":
        yield from by_threads(work, given)
        return
    in_hand = mmap.mmap(-1, len(given))  # memory that all processes share, a byte for each thing
    fork = multiprocessing.get_context("fork")
    processes = ProcessPoolExecutor(THREADS, fork, _begin, (work, given, in_hand))
    try:
        yield from _in_order(processes, _do, len(given))
    except BrokenProcessPool:
        at = " or ".join(name(one) for k, one in enumerate(given) if in_hand[k])
        raise DataError(
            f"a process ended while it opened {at or 'files'}: it was ended from outside, or the "
            "file crashes its decoder. If memory is short, close other programs, or check one site "
            "at a time; if not, take the file away and check again"
        ) from None


def _in_order(executor: Executor, do: Callable[[int], Any], count: int) -> Iterator[Any]:
    """What is done for 0 to `count`. However it ends, no thread and no process is left behind."""
    ahead = AHEAD * THREADS * CHUNK
    try:
        for begin in range(0, count, ahead):
            yield from executor.map(do, range(begin, min(begin + ahead, count)), chunksize=CHUNK)
    finally:
        executor.shutdown(cancel_futures=True)


# --- in a process -------------------------------------------------------------------------------

_task: tuple[Callable[[Any], Any], Sequence[Any], mmap.mmap]


def _begin(*task: Any) -> None:
    global _task
    _task = task
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asked decides when to end
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _do(k: int) -> Any:
    work, given, in_hand = _task
    in_hand[k] = 1
    made = work(given[k])
    in_hand[k] = 0
    return made
