"""A server as people start it, and files to ask it about."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import numpy as np
import psutil
import pytest
from PIL import Image

from tests.data.volume_files import grid, noise, write_nifti, write_series
from tests.supermodel.test_segment_volume import super_model

PATIENCE = 120.0


class Served:
    """A running server and a client of it."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.page = process, url
        self.url = url.partition("#")[0].rstrip("/")
        self.token = unquote(url.partition("#token=")[2])
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE, trust_env=False)

    def predict(self, *files: Path, **form: Any) -> httpx.Response:
        """The answer to files, as JSON."""
        include = form.pop("include", [])
        return self.client.post(
            "/api/predict", files=uploads(*files), data=form, params={"include": include}
        )

    def mask(self, *files: Path, **form: Any) -> bytes:
        """The mask's file."""
        answer = self.client.post("/api/mask", files=uploads(*files), data=form)
        assert answer.status_code == 200, answer.text
        return answer.content

    def memory(self) -> int:
        """Bytes that the server and its workers have."""
        mine = psutil.Process(self.process.pid)
        found = 0
        for one in (mine, *mine.children(recursive=True)):
            with psutil.Process.oneshot(one):
                found += one.memory_info().rss
        return found

    def workers(self) -> list[int]:
        """Their process numbers."""
        return [one.pid for one in psutil.Process(self.process.pid).children()]


def uploads(*files: Path) -> list[tuple[str, tuple[str, bytes]]]:
    """Files as a form sends them."""
    return [("files", (file.name, file.read_bytes())) for file in files]


@contextmanager
def serving(model: Path, *options: object, **environment: str) -> Iterator[Served]:
    """`konsil serve` on a port that is free."""
    command = [sys.executable, "-m", "konsil", "serve", str(model), "--port", "0"]
    process = subprocess.Popen(
        [*command, *map(str, options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | environment,
        # as from a terminal: what a shell starts in the background would not hear of Ctrl-C
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if found := re.search(r"serving .* on (\S+) \(", line):
                yield Served(process, found[1])
                break
        else:
            pytest.fail("".join(said))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve") / "model"
    super_model().save(folder)
    return folder


@pytest.fixture(scope="session")
def served(model: Path) -> Iterator[Served]:
    with serving(model, "--workers", 1) as server:
        yield server


@pytest.fixture(scope="session")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A picture, a volume and a DICOM series."""
    root = tmp_path_factory.mktemp("ward")
    Image.fromarray(noise((40, 60)).astype(np.uint8)).save(root / "photo.png")
    write_nifti(root / "v.nii.gz", noise((20, 24, 5)), grid()[1])
    write_series(root / "T2", noise((20, 24, 4)), grid()[1], SeriesNumber=1)
    return root
