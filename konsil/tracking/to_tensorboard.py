"""TensorBoard: a folder of event files a job, below the run's. No TensorFlow is needed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from konsil.tracking.scalars import Scalar, parameters
from konsil.tracking.tracker import Tracker

logging.getLogger("tensorboard").setLevel(logging.ERROR)  # of cut files it reads what is there


class TensorBoard(Tracker):
    """Writes beside what earlier sessions have written: TensorBoard shows both as one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._settings: dict[str, str] = {}  # of jobs that have nothing yet
        self._writers: dict[str, SummaryWriter] = {}

    def begin(self, job: str, plan: dict[str, Any]) -> set[tuple[str, int]]:
        known = _known(self.folder / job)
        if not known:
            table = [f"| {name} | {text} |" for name, text in parameters(plan, job).items()]
            self._settings[job] = "\n".join(["| key | value |", "|---|---|", *table])
        return known

    def write(self, job: str, scalars: Sequence[Scalar]) -> None:
        if job not in self._writers:
            self._writers[job] = SummaryWriter(str(self.folder / job))
        writer = self._writers[job]
        if job in self._settings:
            writer.add_text("experiment", self._settings.pop(job), 0)
        for scalar in scalars:
            writer.add_scalar(scalar.name, scalar.value, scalar.step, scalar.time)
        writer.flush()

    def end(self, job: str) -> None:
        if job in self._writers:
            self._writers.pop(job).close()

    def close(self) -> None:
        for job in list(self._writers):
            self.end(job)


def make(folder: Path) -> TensorBoard:
    """Below a run's folder for trackers."""
    return TensorBoard(folder / "tensorboard")


def _known(place: Path) -> set[tuple[str, int]]:
    if not place.is_dir():
        return set()
    told = EventAccumulator(str(place), size_guidance={SCALARS: 0})
    told.Reload()
    return {(name, one.step) for name in told.Tags()["scalars"] for one in told.Scalars(name)}
