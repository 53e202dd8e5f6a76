"""Processor time and peak memory of a command and of all that it starts, whoever their parents.

`python -m benchmarks.peers.meter RESULT COMMAND...`, Linux only, in a process of its own: it
becomes the parent of every orphan below it (a child subreaper), so that daemons are counted too,
and it ends what the command leaves behind.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
PR_SET_CHILD_SUBREAPER = 36
LOOK_EVERY = 0.2  # seconds
LONGEST = 3600.0  # seconds of a run: a side that waits for what never comes is stopped
PATIENCE = 5.0  # seconds that what is left behind has to end by itself
SIGCHLD_BIT = 1 << (signal.SIGCHLD - 1) if hasattr(signal, "SIGCHLD") else 0
ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Cost:
    """What a command took, with everything below it."""

    code: int  # that it ended with
    seconds: float  # of processors, in programs and in the kernel for them
    unwaited: float  # of these, seconds of processes that nobody waited for
    peak: int  # bytes in use at one moment, pages shared among processes counted once
    processes: int  # that were seen
    left: int  # processes that had to be ended


class Stat(NamedTuple):
    """A process as the kernel's table has it."""

    parent: int
    born: int  # tells it from another that gets its number
    ticks: int  # its own and those of children it has waited for


class Seen(NamedTuple):
    """What was last known of a process."""

    stat: Stat
    forgotten: bool  # its parent ignores the end of children, and the kernel forgets their time


def supported() -> bool:
    """Whether this system has all that is asked of it here."""
    return sys.platform == "linux" and (PROC / "self" / "smaps_rollup").exists()


def measure(command: list[str], result: Path, log: Path, environment: dict[str, str]) -> Cost:
    """The cost of a command, measured by this module in a process of its own.

    `log` gets all that it prints. The files of `benchmarks` are found from its process and below.
    """
    if not supported():
        raise SystemExit("benchmarks.peers measures with /proc: it needs Linux, 4.14 or newer")
    meter = [sys.executable, "-m", "benchmarks.peers.meter", str(result), *command]
    with log.open("wb") as output:
        done = subprocess.run(
            meter, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(meter)}: {done.returncode}\n{log.read_text()[-2000:]}")
    return Cost(**json.loads(result.read_text(encoding="utf-8")))


class Meter:
    """Looks at all processes below this one, again and again."""

    def __init__(self) -> None:
        self.me = os.getpid()
        self.seen: dict[int, Seen] = {}
        self.count = self.peak = self.lost = 0
        self.code: int | None = None

    def run(self, command: list[str]) -> Cost:
        """The command from start to end, and the end of all that it leaves behind."""
        become_subreaper()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))
        limit = time.monotonic() + LONGEST
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        try:
            while self.code is None:
                self.look()
                self.reap(child.pid)
                if time.monotonic() > limit:
                    raise AssertionError(f"still running after {LONGEST:g} s: {command}")
                time.sleep(LOOK_EVERY)
        finally:
            left = self.end_the_rest(child.pid)
        child.returncode = self.code  # it is waited for here, not there
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        ticks = os.sysconf("SC_CLK_TCK")
        unwaited = self.lost / ticks
        seconds = usage.ru_utime + usage.ru_stime + unwaited
        assert self.code is not None
        return Cost(self.code, seconds, unwaited, self.peak, self.count, left)

    def look(self) -> set[int]:
        """Who is there now; memory in use, and whose time nobody will be told."""
        table = below(self.me)
        memory = sum(map(proportional_bytes, table))
        self.peak = max(self.peak, memory)
        for pid, seen in list(self.seen.items()):
            if pid not in table or table[pid].born != seen.stat.born:
                self._gone(pid)
        for pid, stat in table.items():
            self.count += pid not in self.seen
            forgotten = stat.parent != self.me and ignores_children(stat.parent)
            self.seen[pid] = Seen(stat, forgotten)
        return set(table)

    def reap(self, child: int) -> bool:
        """Wait for all that have ended; whether anybody is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.seen.pop(pid, None)  # its time is in our children's
            if pid == child:
                self.code = os.waitstatus_to_exitcode(status)

    def end_the_rest(self, child: int) -> int:
        """Ask all that are left to end, then make them; how many there were."""
        left = self.look()
        began = time.monotonic()
        while self.reap(child):
            patient = time.monotonic() - began < PATIENCE
            for pid in self.look():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM if patient else signal.SIGKILL)
            time.sleep(LOOK_EVERY / 4)
        self.look()
        return len(left)

    def _gone(self, pid: int) -> None:
        seen = self.seen.pop(pid)
        if seen.forgotten:
            self.lost += seen.stat.ticks


def become_subreaper() -> None:
    """Orphans below this process become its children instead of the system's."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def below(root: int) -> dict[int, Stat]:
    """All processes below one of them."""
    table = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (stat := stat_of(int(entry.name))) is not None:
            table[int(entry.name)] = stat
    children: dict[int, list[int]] = {}
    for pid, stat in table.items():
        children.setdefault(stat.parent, []).append(pid)
    found: dict[int, Stat] = {}
    ahead = list(children.get(root, []))
    while ahead:
        pid = ahead.pop()
        found[pid] = table[pid]
        ahead += children.get(pid, [])
    return found


def stat_of(pid: int) -> Stat | None:
    """The kernel's line on a process; None if it is gone."""
    try:
        line = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = line[line.rindex(")") + 2 :].split()  # the name before may hold anything
    return Stat(int(fields[1]), int(fields[19]), sum(map(int, fields[11:15])))


def proportional_bytes(pid: int) -> int:
    """Memory of a process; of a page that it shares with others, its part."""
    with suppress(OSError):
        text = (PROC / str(pid) / "smaps_rollup").read_text(encoding="ascii", errors="replace")
        for line in text.splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    return 0


def ignores_children(pid: int) -> bool:
    """Whether a process lets the kernel forget its children's ends, as Ray's daemon does."""
    with suppress(OSError):
        for line in (PROC / str(pid) / "status").read_text(encoding="utf-8").splitlines():
            if line.startswith("SigIgn:"):
                return bool(int(line.split()[1], 16) & SIGCHLD_BIT)
    return False


def main() -> None:
    """Measure the command of the command line, write what it took."""
    result, *command = sys.argv[1:]
    cost = Meter().run(command)
    Path(result).write_text(json.dumps(asdict(cost)), encoding="utf-8")


if __name__ == "__main__":
    main()
