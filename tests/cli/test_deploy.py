"""docs/deploy.md with two hospitals, typed as it stands there: every command, real processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from konsil.testing import write_shades

KONSIL = Path(sys.executable).with_name("konsil")
SITES = ["north", "south"]
PATIENCE = 240.0  # seconds; only a process that hangs needs them
EXPERIMENT = """
name: trial
federation: {file: federation.yaml, image_size: 32, channels: 3}
task: {name: classification}
network: {name: small}
methods: [fedsm]
rounds: 2
"""
POLICY = "methods: [fedsm]\nscores: means\nmin_training_images: 3\nmin_sites_in_mean: 2\n"


class Desk:
    """A folder in which somebody types commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "KONSIL_KIT": "kits/admin", "COLUMNS": "200"}

    def konsil(self, *words: str, code: int = 0) -> str:
        """What a command prints; it must end with this code."""
        done = subprocess.run(
            [KONSIL, *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        said = done.stdout + done.stderr
        assert done.returncode == code, f"konsil {' '.join(words)}:\n{said}"
        return said

    @contextlib.contextmanager
    def running(self, name: str, *words: str) -> Iterator[Path]:
        """A command that runs until Ctrl-C; its log."""
        log = self.folder / f"{name}.log"
        with open(log, "w") as file:
            process = subprocess.Popen(
                [KONSIL, *words],
                cwd=self.folder,
                env=self.environment,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
            try:
                yield log
            finally:
                process.send_signal(signal.SIGINT)
                process.wait(30)

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.folder / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def until(self, *words: str, says: str) -> str:
        """Type a command again and again until it says something."""
        end = time.monotonic() + PATIENCE
        while says not in (said := self.konsil(*words)):
            assert time.monotonic() < end, said
            time.sleep(1)
        return said


@pytest.fixture
def desk(tmp_path) -> Desk:
    """Two hospitals with a folder of images each, and nothing else yet."""
    for site, count in zip(SITES, (8, 12), strict=True):
        write_shades(tmp_path / f"data-{site}", {f"clinic-{site}": count})
    (tmp_path / "trial.yaml").write_text(EXPERIMENT)
    (tmp_path / "policy.yaml").write_text(POLICY)
    return Desk(tmp_path)


def free_port() -> str:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


BOTH = [word for site in SITES for word in ("--site", site)]


def provisioned(desk: Desk) -> None:
    """Steps 1 and 3: kits, and federation files with the sites' names."""
    desk.konsil(
        *("deploy", "plan", "deploy.yaml", "--server", "localhost", "--port", free_port()),
        *(*BOTH, "--admin", "lead@university.org", "--name", "trial"),
    )
    assert "Keep kits/authority to yourself" in desk.konsil("deploy", "provision", "deploy.yaml")
    for site in SITES:
        desk.konsil("data", "init", f"data-{site}")


def test_before_the_server_is_there(desk: Desk):
    provisioned(desk)
    assert "is there already" in desk.konsil("deploy", "plan", "deploy.yaml", *BOTH, code=1)
    before = desk.konsil(*_preflight("north"), code=1)
    assert "is the server started" in before
    assert "no site north in it, as this kit calls this hospital" in before
    assert "does not answer" in desk.konsil("deploy", "status", code=1)
    wrong = desk.konsil("site", "preflight", "kits/server", "--data", "data-north", code=1)
    assert "kits/server" in wrong


@pytest.mark.slow
def test_step_by_step(desk: Desk):
    provisioned(desk)
    for site in SITES:
        desk.edit(f"data-{site}/federation.yaml", f"clinic-{site}:", f"{site}:")
        desk.konsil("data", "check", f"data-{site}")
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            desk.running("server", "server", "start", "kits/server", "--folder", "srv")
        )
        end = time.monotonic() + PATIENCE
        while "ready" not in (desk.folder / "server.log").read_text():
            assert time.monotonic() < end
            time.sleep(0.5)
        for site in SITES:
            found = desk.konsil(*_preflight(site))
            looks = [line.split()[1] for line in found.splitlines()]
            assert looks == [
                *("policy:", "disk:", "memory:", "clock:", "certificate:", "server:", "data:")
            ]
            stack.enter_context(desk.running(site, *_start(site)))

        run = desk.konsil("deploy", "submit", "trial.yaml", *BOTH).strip()
        assert run.startswith("trial-")
        desk.until("deploy", "status", run, says="state     finished")
        [facts] = json.loads(desk.konsil("deploy", "status", "--json"))
        assert (facts["run"], facts["state"], facts["roster"]) == (run, "finished", SITES)
        assert "request: north answered" in desk.konsil("deploy", "logs")
        desk.konsil("deploy", "fetch", "--out", "fetched")

        longer = ("--set", "rounds=500", "--run", "longer")
        desk.konsil("deploy", "submit", "trial.yaml", *BOTH, *longer)
        refused = desk.konsil("deploy", "submit", "trial.yaml", *BOTH, "--run", "longer", code=1)
        assert "at work already" in refused
        desk.until("deploy", "status", "longer", says="state     running")
        assert "longer: stopped" in desk.konsil("deploy", "stop", "longer")
        assert "stopped" in desk.konsil("deploy", "status")

    assert "agreed to plan" in (desk.folder / "north.log").read_text()
    assert "super" in desk.konsil("show", "fetched")
    assert "north" in desk.konsil("show", "fetched", "--audit")
    assert "agreed" in desk.konsil("show", "konsil-south")


def _preflight(site: str) -> tuple[str, ...]:
    return (
        "site",
        "preflight",
        f"kits/{site}",
        "--data",
        f"data-{site}",
        "--policy",
        "policy.yaml",
    )


def _start(site: str) -> tuple[str, ...]:
    return ("site", "start", f"kits/{site}", "--data", f"data-{site}", "--policy", "policy.yaml")
