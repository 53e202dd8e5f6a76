"""A real training that can be stopped after every round, to let another take its turn."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, Self

import torch

from konsil.federation.engines import make_engine
from konsil.federation.plan import Plan
from konsil.federation.server import Server
from konsil.weights import Weights


class _RoundDone(Exception):
    """Leaves a training as a kill would; going on is what resuming does."""


class RoundByRound:
    """Server, engine, hosts and state files as `konsil run` has them; a call is one round."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.run_folder = Path(tempfile.mkdtemp(dir=folder, prefix="run-"))
        self.threads = plan.experiment.compute.threads
        self.engine = make_engine(plan, self.run_folder)
        self.server = Server(plan, plan.jobs[0], self.engine, self.run_folder, self._watch)
        self._began = self._seconds = 0.0

    def __call__(self) -> float:
        """The next round; its seconds, from the first request to the written record."""
        torch.set_num_threads(self.threads)  # another training may have had its turn
        try:
            self.server.train()
        except _RoundDone:
            return self._seconds
        raise AssertionError("the plan has fewer rounds than are measured")

    def _watch(self, event: str, **facts: Any) -> None:
        if event == "round_started":
            self._began = perf_counter()
        if event == "round_done":
            self._seconds = perf_counter() - self._began
            raise _RoundDone

    @property
    def weights(self) -> Weights:
        """The global model as it is now."""
        return self.server.record.shared["global"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.engine.close()
        shutil.rmtree(self.run_folder)  # with fifty sites, gigabytes
