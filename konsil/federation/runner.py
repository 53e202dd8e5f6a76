"""A run: every method of an experiment with every seed, and what it leaves in its folder."""

import json
import platform
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from io import FileIO
from pathlib import Path
from typing import Any

import torch
import yaml

from konsil.errors import KonsilError, RoundFailed, RunError, UploadRefused
from konsil.evaluation import scores
from konsil.evaluation.results import CLIENT_AVERAGE, Row, write_results
from konsil.evaluation.routing import SCORE_OF
from konsil.federation.assembly import Assembly
from konsil.federation.compute import check_device, prepare_process
from konsil.federation.engines import Engine, make_engine
from konsil.federation.examiner import SPLITS, Examiner
from konsil.federation.messages import Checkpoint
from konsil.federation.plan import NOT_NUMBERS, Job, Plan
from konsil.federation.questions import CHECKPOINTS
from konsil.federation.server import Record, Server
from konsil.federation.site_worker import site_folder
from konsil.federation.state import StateFiles
from konsil.files import remove_parts, store_once, take_lock, write_text
from konsil.observers.eventlog import EventLog
from konsil.supermodel import GLOBAL, Facts, SuperModel
from konsil.supermodel.rules import Even, Fixed, to_json
from konsil.tasks import task_settings
from konsil.version import __version__
from konsil.weights import Weights

Observer = Callable[[dict[str, Any]], None]
RESULT_FILES: dict[Checkpoint, str] = {"best": "results.csv", "last": "results-last.csv"}
ROUTING_FACTS = ("routing", "temperature", "limit")  # of a super model, chosen by validation
TOLD = ("val", "test")  # of which images a super model's folder tells the scores


class Run:
    """A plan at work in a folder."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        observers: Sequence[Observer] = (),
        search: bool = False,
    ) -> None:
        """`search`: its jobs are tries, to be compared by validation images.

        No test image is opened, and a job whose training fails (a learning rate may be too large)
        is left without a result instead of ending the run.
        """
        self.plan, self.folder, self.search = plan, folder, search
        self.observers = list(observers)
        self._lock: FileIO | None = None

    def prepare(self, resume: bool, write_splits: Callable[[Path], None] | None) -> None:
        """Claim a new folder, or make sure that the old one holds this very plan.

        Without `write_splits` nobody here knows which image is where: the sites do.
        """
        check_device(self.plan.experiment.compute.device)
        path = self.folder / "plan.yaml"
        found = list(self.folder.iterdir()) if self.folder.exists() else []
        if path.exists():
            self._check_same_plan(resume)
        elif write_splits is not None and any(not p.name.startswith(".") for p in found):
            raise RunError(f"{self.folder}: not empty and not a run; choose another --out")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = lock(self.folder)
        remove_parts(self.folder)
        if not path.exists():
            facts = self.plan.to_json() | {"environment": environment()}
            write_text(path, yaml.safe_dump(facts, sort_keys=False))
        if write_splits is not None:
            write_splits(self.folder / "splits.csv")

    def close(self) -> None:
        """Let others work in the folder; a traceback may keep this run from being forgotten."""
        if self._lock is not None:
            self._lock.close()

    def _check_same_plan(self, resume: bool) -> None:
        if not resume:
            raise RunError(
                f"{self.folder}: holds a run already; add --resume to go on with it, or choose "
                "another --out (in Python resume=True, out=...)"
            )
        old = read_plan(self.folder)
        check_version(self.folder, old)
        if old["hash"] != self.plan.hash:
            changed = differences(old, json.loads(json.dumps(self.plan.to_json())))
            raise RunError(
                f"{self.folder}: holds a run of another plan ({', '.join(changed)} differ); "
                "resume with the same experiment, or choose another --out"
            )

    def go(self, start: Callable[[], Engine] | None = None) -> list[Row]:
        """Train and evaluate every job that is not done yet; the rows of all.

        `start` starts another engine than the one that the experiment names.
        """
        prepare_process(self.plan.experiment.compute)  # the server computes as the sites do
        log = EventLog(self.folder / "events.jsonl")
        self.observers.append(log)
        engine: Engine | None = None
        try:
            self._notify("run_started", plan=self.plan.hash)
            for job in self.plan.jobs:
                if self._result_path(job).exists():
                    self._forget_state(job)  # it may have been killed before it could
                    continue
                if engine is None:
                    engine = start() if start else make_engine(self.plan, self.folder)
                self._try(job, engine) if self.search else self._job(job, engine)
            self._notify("run_done")
            return self.write_results()
        except (KonsilError, KeyboardInterrupt) as stop:  # for those who only watch
            self._notify("run_stopped", reason=str(stop) or "interrupted")
            raise
        finally:
            if engine is not None:
                engine.close()
            log.close()
            self.observers.remove(log)

    def _try(self, job: Job, engine: Engine) -> None:
        try:
            self._job(job, engine)
        except (RoundFailed, UploadRefused) as failure:
            self._notify("job_failed", job=job.name, reason=str(failure))

    def _job(self, job: Job, engine: Engine) -> None:
        began = time.monotonic()

        def notify(event: str, **facts: Any) -> None:
            self._notify(event, job=job.name, **facts)

        server = Server(self.plan, job, engine, self.folder, notify)
        notify("job_started", rounds=self.plan.experiment.rounds, done=server.record.round)
        record = server.train()
        result = self._examine(job, engine, record, notify)
        write_text(self._result_path(job), json.dumps(result))
        self.write_results()
        self._forget_state(job)
        # the best round may be the last, and the super model has the sites' best specialists
        store_once(self.folder / job.name, "*.safetensors")
        metric, best = server.method.context.task.main_metric, result["best"]
        average = "val", CLIENT_AVERAGE, metric
        score = {r.role: r.value for r in best if (r.split, r.site, r.metric) == average}
        seconds, test = time.monotonic() - began, _test_scores(best)
        notify("job_done", seconds=seconds, score=score, metric=metric, test=test)

    def _examine(
        self, job: Job, engine: Engine, record: Record, notify: Callable[..., None]
    ) -> dict[str, Any]:
        examiner = Examiner(self.plan, job, engine)
        assembly = Assembly(self.plan, job, engine)
        splits = ("val",) if self.search else SPLITS
        result: dict[str, Any] = {"method": job.method, "seed": job.seed, "routing": {}}
        for checkpoint in CHECKPOINTS:
            notify("examining", checkpoint=checkpoint)
            model = assembly.super_model(record, checkpoint)
            result[checkpoint] = examiner.rows(record, checkpoint, model, splits)
            self._save_checkpoint(job, examiner, record, checkpoint)
            if model is not None:
                facts = asdict(model.facts)
                result["routing"][checkpoint] = {n: facts[n] for n in ROUTING_FACTS}
            if checkpoint == "best":
                folder = self.folder / job.name / ("model" if model is None else "supermodel")
                model = model or self._plain_model(job, examiner, record)
                if model is not None:  # the coordinator of `local` between hospitals has none
                    told = self._told(job, result[checkpoint])
                    told["intervals"] = examiner.intervals
                    model.changed(**told).save(folder)
        self._write_scores(job, examiner)
        result["history"] = record.history
        return result

    def _write_scores(self, job: Job, examiner: Examiner) -> None:
        """Every test image's scores, of the sites that told them."""
        patients = {site: own for site, own in examiner.patients.items() if own}
        rows: list[dict[str, Any]] = []
        for role, said in examiner.scores.items():
            told = {site: reply.columns for site, reply in said.items() if reply.means is None}
            scored = scores.Scored(job.method, job.seed, role, self.plan.sites, told)
            rows += scored.rows(examiner.task, patients)
        if rows:
            scores.write_scores(self.folder / job.name / scores.FILE, rows)

    def _plain_model(self, job: Job, examiner: Examiner, record: Record) -> SuperModel | None:
        """What there is to ask of a method without a selector: one model, or one a site, or both.

        Sites' own models are there if the sites are: between hospitals they stay where they are.
        """
        method, shared = examiner.method, examiner.shared(record, "best")
        models: dict[str, Weights] = {}
        for role in method.shared_roles:  # one at most: the mean, or pooled training's
            models[GLOBAL] = shared[role]
        for site in self.plan.sites:
            own = site_folder(self.folder / job.name, site) / "best"
            for role in method.private_roles:
                if (path := own / f"{role}.safetensors").exists():
                    models[site] = Weights.load(path)
        if not models:
            return None
        facts = Facts(
            task=method.context.task.name,
            targets=method.context.task.targets,
            labels=list(self.plan.labels),
            sites=list(self.plan.sites),
            network=method.context.network.to_json(),
            selector={},
            routing=to_json(Fixed() if GLOBAL in models else Even()),
            withheld=[site for site in self.plan.sites if site not in models],
            plan=self.plan.hash,
        )
        return SuperModel(facts, models)

    def _told(self, job: Job, rows: Sequence[Row]) -> dict[str, Any]:
        """What a super model's folder says beyond what the model computes with."""
        told: dict[str, Any] = {}
        scored: dict[str, dict[str, int]] = {}
        for row in rows:
            if row.split in TOLD and row.site in self.plan.sites and not _of_one(row.metric):
                scored.setdefault(row.split, {})[row.site] = row.n
                of_role = told.setdefault(row.split, {}).setdefault(row.role, {})
                of_role.setdefault(row.site, {})[row.metric] = row.value
        provenance = {
            "konsil": self.plan.version,
            "method": self.plan.method(job).name,
            "seed": job.seed,
            "rounds": self.plan.experiment.rounds,
            "images": {site: self.plan.images(site, "train") for site in self.plan.sites},
            "scored": scored,  # images, of each split
            # to compute as the run did, and to train on as it did
            "compute": self.plan.experiment.compute.model_dump(mode="json"),
            "training": self.plan.training(job).model_dump(mode="json"),
            "task": task_settings(self.plan.experiment.task).model_dump(mode="json", by_alias=True),
        }
        readings = {site: dict(words) for site, words in self.plan.readings.items()}
        return {"reading": readings, "scores": told, "provenance": provenance}

    def _save_checkpoint(
        self, job: Job, examiner: Examiner, record: Record, checkpoint: Checkpoint
    ) -> None:
        folder = self.folder / job.name / "checkpoints" / checkpoint
        folder.mkdir(parents=True, exist_ok=True)
        method = examiner.method
        asked = {*method.shared_roles, *(part for part, _ in method.best_by)}
        for name, part in examiner.shared(record, checkpoint).sent().items():
            if checkpoint == "last" or name in asked:
                part.save(folder / f"{name}.safetensors")

    def write_results(self) -> list[Row]:
        """The result files, from the jobs that are done; the rows of the best checkpoints."""
        paths = [self._result_path(job) for job in self.plan.jobs]
        done = [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]
        rows = {c: [Row(*row) for result in done for row in result[c]] for c in RESULT_FILES}
        for checkpoint, name in RESULT_FILES.items():
            write_results(self.folder / name, rows[checkpoint])
        of_images = [path.with_name(scores.FILE) for path in paths if path.exists()]
        if told := [path for path in of_images if path.exists()]:
            scores.join_scores(self.folder / scores.FILE, told)
        return rows["best"]

    def _result_path(self, job: Job) -> Path:
        return self.folder / job.name / "result.json"

    def _forget_state(self, job: Job) -> None:
        """A finished job needs no optimiser moments: gigabytes, with many sites and seeds."""
        for site in (self.folder / job.name).glob("sites/*"):
            remove_parts(site)
            StateFiles(site, self.plan.hash).forget()
        shutil.rmtree(self.folder / job.name / "server", ignore_errors=True)

    def _notify(self, event: str, **facts: Any) -> None:
        for observer in self.observers:
            observer({"event": event, **facts})


def _test_scores(rows: Sequence[Row]) -> dict[str, dict[str, dict[str, float]]]:
    """By role, metric and site."""
    told: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        if row.split == "test" and not _of_one(row.metric):
            told.setdefault(row.role, {}).setdefault(row.metric, {})[row.site] = row.value
    return told


def _of_one(metric: str) -> bool:
    """Whether it is what one model of the super model's would score alone."""
    return metric.startswith(SCORE_OF)


def lock(folder: Path) -> FileIO:
    """Only one process works in a run folder; the lock goes with the process, however it ends."""
    taken = take_lock(folder / ".lock")
    if taken is None:
        raise RunError(f"{folder}: another process is working on this run")
    return taken


def read_plan(folder: Path) -> dict[str, Any]:
    """What a run folder's plan.yaml says."""
    try:
        facts = yaml.safe_load((folder / "plan.yaml").read_text(encoding="utf-8"))
        facts["hash"], facts["experiment"], facts["sites"]  # all must be there
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        raise RunError(f"{folder}: not a run folder (no readable plan.yaml)") from None
    return dict(facts)


def check_version(folder: Path, plan: dict[str, Any]) -> None:
    """What is kept between rounds is read by the version that wrote it, and by no other."""
    if plan.get("version") != __version__:
        raise RunError(
            f"{folder}: this run was begun by Konsil {plan.get('version')}, this is Konsil "
            f"{__version__}: run it to its end with that version, or begin a new run in another "
            "folder"
        )


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """The keys in which two plans differ, of those that may not."""
    if path in ("hash", "environment", *NOT_NUMBERS) or old == new:
        return []
    if path == "experiment.methods" and [m["label"] for m in old] == [m["label"] for m in new]:
        old, new = ({m["label"]: m for m in methods} for methods in (old, new))
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return [path]
    below = [
        differences(old.get(k), new.get(k), f"{path}.{k}" if path else k)
        for k in sorted({*old, *new})
    ]
    return [key for keys in below for key in keys]


def environment() -> dict[str, Any]:
    """On what the run began: other hardware or libraries may give other last bits."""
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
