"""Processes that share the work: order, mistakes, and ends in the middle."""

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
    made = list(by_processes(lambda k: (k * k, os.getpid()), MANY))
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

    with pytest.raises(DataError, match="ended from outside"):
        list(by_processes(work, MANY))


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
    assert len(workers) == 2
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
