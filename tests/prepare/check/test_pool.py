"""Processes that share the work: order, mistakes, and ends in the middle."""

import mmap
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from konsil.data.findings import BadFile
from konsil.errors import DataError
from konsil.prepare.check import pool
from konsil.prepare.check.pool import by_processes, by_threads

MANY = list(range(pool.WORTH_IT + 50))

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux")


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(pool, "THREADS", 2)


def test_results_come_in_order_from_several_processes():
    both = multiprocessing.get_context("fork").Barrier(2)

    def work(k):
        if k in (0, pool.CHUNK):  # the first of two chunks: neither goes on without the other
            both.wait(timeout=60)
        return k * k, os.getpid()

    made = list(by_processes(work, MANY))
    assert [square for square, _ in made] == [k * k for k in MANY]
    processes = {process for _, process in made}
    assert len(processes) == 2
    assert os.getpid() not in processes


def test_few_things_are_done_here():
    assert set(by_processes(lambda _: os.getpid(), MANY[:10])) == {os.getpid()}


def test_threads_keep_the_order():
    assert list(by_threads(lambda k: -k, MANY)) == [-k for k in MANY]


def test_a_bad_file_travels_with_its_name():
    def refuse(k):
        bad = BadFile("what", "cure", f"detail {k}")
        bad.name = f"{k}.png"
        return bad

    made = list(by_processes(refuse, MANY))
    assert [(bad.what, bad.detail, bad.name) for bad in made[:2]] == [
        ("what", "detail 0", "0.png"),
        ("what", "detail 1", "1.png"),
    ]


def test_a_mistake_in_the_work_is_raised_here():
    def work(k):
        if k == 70:
            raise ZeroDivisionError(k)
        return k

    with pytest.raises(ZeroDivisionError, match="70"):
        list(by_processes(work, MANY))


def test_a_process_that_is_killed_is_told():
    def work(k):
        if k == 100:
            os.kill(os.getpid(), signal.SIGKILL)
        return k

    with pytest.raises(DataError, match=r"ended while it opened (.* or )?100\.png( or .*)?: "):
        list(by_processes(work, MANY, name=lambda k: f"{k}.png"))


def children() -> list[str]:
    path = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
    with open(path) as file:
        return file.read().split()


def test_who_stops_listening_leaves_no_process_behind():
    before = children()
    results = by_processes(lambda k: bytes(10_000), MANY)
    next(results)
    assert len(children()) == len(before) + 2
    results.close()
    assert children() == before


@pytest.mark.parametrize("way", [by_processes, by_threads])
def test_work_is_not_done_far_ahead_of_who_takes_it(way):
    """What is made and not yet taken would fill the memory."""
    done = mmap.mmap(-1, 2000)

    def work(k):
        done[k] = 1
        return k

    results = way(work, range(2000))
    next(results)
    time.sleep(0.3)
    assert sum(done[:]) <= pool.AHEAD * 2 * pool.CHUNK
    assert list(results) == list(range(1, 2000))
    assert sum(done[:]) == 2000


def test_an_interrupt_ends_all_without_a_word(tmp_path):
    """Ctrl-C reaches every process of the terminal; the parent alone has something to say."""
    script = (
        "import signal, time\n"
        "from konsil.prepare.check import pool\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job has none\n"
        "pool.THREADS = 2\n"
        "def work(k):\n"
        "    time.sleep(0.005)\n"
        "    return k\n"
        "try:\n"
        "    for k in pool.by_processes(work, range(400_000)):\n"
        "        if k == 0:\n"
        "            print('started', flush=True)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert parent.stdout.readline() == b"started\n"
    os.killpg(parent.pid, signal.SIGINT)
    said, complaints = parent.communicate(timeout=60)
    assert (said, complaints) == (b"interrupted\n", b"")
    with pytest.raises(ProcessLookupError):
        os.killpg(parent.pid, 0)


def test_processes_end_when_their_parent_is_killed(tmp_path):
    script = (
        "import os, time\n"
        "from konsil.prepare.check import pool\n"
        "pool.THREADS = 2\n"
        "def work(k):\n"
        "    open(f'{os.environ[\"PIDS\"]}/{os.getpid()}', 'w').close()\n"
        "    time.sleep(0.005)\n"
        "    return bytes(10_000)\n"
        "results = pool.by_processes(work, range(400))\n"
        "next(results)\n"
        "print('started', flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        env={**os.environ, "PIDS": str(tmp_path)},
    )
    assert parent.stdout.readline() == b"started\n"
    parent.kill()
    parent.wait()
    parent.stdout.close()
    workers = [int(path.name) for path in tmp_path.iterdir()]
    assert workers
    end = time.monotonic() + 30
    while any(map(alive, workers)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(alive, workers))


def alive(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
