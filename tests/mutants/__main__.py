"""`make mutants`: put each fault into a copy of the package, and see whether a test notices.

    python tests/mutants [words]      only faults whose file or name has one of the words

The work tree is not touched. Python, torch and pytest are loaded once; each fault has a process
of its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch  # noqa: F401  so that no fault's process has to load it
from faults import ROOT, Fault, all_faults

FORK = get_context("fork")
PROCESSES = 2
PATIENCE = 600  # seconds; a fault that lets tests hang is noticed, too
VERDICTS = {0: "survived", 1: "caught", None: "caught"}


def main(words: Sequence[str]) -> int:
    """Run all, print the score; 0 if none survived."""
    faults = [f for f in all_faults() if not words or any(word in str(f) for word in words)]
    began, survivors = time.monotonic(), []
    with ProcessPoolExecutor(PROCESSES, FORK) as pool:
        for fault, verdict in zip(faults, pool.map(tried, faults), strict=True):
            print(f"{verdict:9}{fault}", flush=True)
            survivors += [fault] if verdict != "caught" else []
    minutes, spent = (time.monotonic() - began) / 60, os.times()
    work = (spent.children_user + spent.children_system) / 60
    print(f"\n{len(faults) - len(survivors)} of {len(faults)} caught, {minutes:.1f} min "
          f"({work:.1f} of processors)")  # fmt: skip
    for fault in survivors:
        print(f"  not caught: {fault}")
    return int(bool(survivors))


def tried(fault: Fault) -> str:
    """What the tests say to a copy of the package with this fault."""
    with TemporaryDirectory(prefix="konsil-mutant-") as name:
        folder = Path(name)
        copied(folder)
        path = folder / "konsil" / fault.file
        path.write_text(fault.put_into(path.read_text()))
        child = FORK.Process(target=run_tests, args=(folder, fault.tests))
        child.start()
        child.join(PATIENCE)
        child.kill()  # nothing, if it has ended
        return VERDICTS.get(child.exitcode, "broken")  # tests that cannot even be collected


def copied(folder: Path) -> None:
    """The package and its tests, without what Python has compiled."""
    without = shutil.ignore_patterns("__pycache__", "golden", "mutants")
    for name in ("konsil", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=without)
    shutil.copy(ROOT / "pyproject.toml", folder)


def run_tests(folder: Path, tests: Sequence[str]) -> None:
    """End this process with pytest's verdict; the tests that need no whole run come first."""
    os.chdir(folder)
    sys.path[:0] = [str(folder)]
    import konsil

    assert Path(konsil.__file__).is_relative_to(folder), konsil.__file__
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    options += [f"--rootdir={folder}", f"--basetemp={folder / 'tmp'}"]
    with open(folder / "output", "w") as file, contextlib.redirect_stdout(file):
        code = pytest.main([*options, *(f"tests/{test}" for test in tests)])
    os._exit(int(code))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
