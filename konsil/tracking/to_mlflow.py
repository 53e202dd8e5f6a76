"""MLflow: a run of its own a job, at MLFLOW_TRACKING_URI or in files below the run's folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from konsil.files import write_text
from konsil.tracking.scalars import Scalar, parameters
from konsil.tracking.tracker import Tracker

# Before it is imported: it tells its makers nothing, and a server that is away is not waited for.
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # files need no database; it asks for this

from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST, ErrorCode
from mlflow.tracking import MlflowClient

ADDRESS = "MLFLOW_TRACKING_URI"
AT_ONCE = 500  # metrics in a message; 1,000 is the most that a server takes
PARAMETERS = 100  # the same of parameters
LONGEST = 500  # characters of a parameter that every store keeps
NOTE = "mlflow.json"  # job -> its run


class MLflow(Tracker):
    """Goes on in the runs of earlier sessions, which it has noted."""

    def __init__(self, folder: Path) -> None:
        files = (folder / "mlflow").absolute().as_uri()
        self.client = MlflowClient(os.environ.get(ADDRESS) or files)
        self._note, self._runs, self._open = folder / NOTE, dict[str, str](), set[str]()
        if self._note.exists():
            self._runs = json.loads(self._note.read_text(encoding="utf-8"))

    def begin(self, job: str, plan: dict[str, Any]) -> set[tuple[str, int]]:
        run = self._known_run(job) or self._new_run(job, plan)
        own, told = run.info.run_id, run.data
        wanted = {name: text[:LONGEST] for name, text in parameters(plan, job).items()}
        missing = [Param(n, text) for n, text in wanted.items() if n not in told.params]
        for some in _portions(missing, PARAMETERS):
            self.client.log_batch(own, params=some)
        known = {name: self.client.get_metric_history(own, name) for name in told.metrics}
        return {(name, one.step) for name, steps in known.items() for one in steps}

    def write(self, job: str, scalars: Sequence[Scalar]) -> None:
        if job not in self._open:  # it may have been done, or stopped
            self.client.update_run(self._runs[job], status="RUNNING")
            self._open.add(job)
        told = [Metric(s.name, s.value, int(1000 * s.time), s.step) for s in scalars]
        for some in _portions(told, AT_ONCE):
            self.client.log_batch(self._runs[job], metrics=some)

    def end(self, job: str) -> None:
        if job in self._open:
            self._open.remove(job)
            self.client.set_terminated(self._runs[job], "FINISHED")

    def close(self) -> None:
        for job in self._open:
            self.client.set_terminated(self._runs[job], "KILLED")

    def _known_run(self, job: str) -> Any:
        """None if there is none, or none of that name where MLflow keeps its runs now."""
        if job not in self._runs:
            return None
        try:
            return self.client.get_run(self._runs[job])
        except MlflowException as error:
            if error.error_code != ErrorCode.Name(RESOURCE_DOES_NOT_EXIST):
                raise
            return None

    def _new_run(self, job: str, plan: dict[str, Any]) -> Any:
        name = str(plan["experiment"]["name"])
        found = self.client.get_experiment_by_name(name)
        where = found.experiment_id if found else self.client.create_experiment(name)
        run = self.client.create_run(where, tags={"konsil.job": job}, run_name=job)
        self._runs[job] = run.info.run_id
        write_text(self._note, json.dumps(self._runs, indent=1))
        return run


def _portions(all_: list[Any], size: int) -> Iterator[list[Any]]:
    for first in range(0, len(all_), size):
        yield all_[first : first + size]


def make(folder: Path) -> MLflow:
    """Its notes lie below a run's folder for trackers, and its files, if no server is named."""
    return MLflow(folder)
