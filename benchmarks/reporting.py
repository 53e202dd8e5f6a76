"""A report against the same page without intervals, and evaluation against its bare passes."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from benchmarks.measure import Figure, Goal, Outcome, Ratio, Side, interleave, warm_up
from benchmarks.setup import Setup
from konsil.config import PLAIN, check_experiment
from konsil.data import open_federation, test_images, training_data
from konsil.evaluation import batches
from konsil.evaluation.results import CLIENT_AVERAGE, GLOBAL, Row, write_results
from konsil.evaluation.routing import PROBABILITY, SCORE_OF, SHARE
from konsil.evaluation.scores import FILE, Scored, write_scores
from konsil.federation.assembly import Assembly
from konsil.federation.compute import settings_kept
from konsil.federation.engines import InProcessEngine
from konsil.federation.examiner import Examiner
from konsil.federation.messages import Split
from konsil.federation.plan import Job, Plan
from konsil.federation.server import Record, Server
from konsil.federation.site_worker import site_folder
from konsil.files import write_text
from konsil.networks import build_network
from konsil.report.page import Page, render, write_page
from konsil.report.runs import open_runs
from konsil.supermodel import SuperModel
from konsil.weights import BoundNetwork, Weights

METHODS = (
    "centralized", "local", "fedavg", "ft", "fedsm", {"name": "fedsm", "label": "fedsm-auto"},
    "fedsm-soup", "fedsoup", "fedprox", "scaffold", "fedavgm", "fedbn", "ditto", "fedsm-extra",
)  # fmt: skip
ROUNDS, SEEDS = 150, (0, 1, 2)
LEARNED = 3  # rounds before evaluation, so that masks look like masks
SITES = dict.fromkeys(("aster", "birch", "cedar", "dahlia", "elm"), 8)
TESTS = 60  # test images of each of them, whose scores are made up
STRUCTURES = ("_disc", "_cup")
SECONDS = 20.0  # that a report may take
SPLITS: dict[Split, str] = {"val": "validation", "test": "test (with every metric)"}


def reporting(setup: Setup) -> Outcome:
    """A report of 14 methods / the same without intervals; evaluation / its forward passes."""
    outcome = Outcome()
    _report(setup, outcome)
    _evaluation(setup, outcome)
    return outcome


# --- a report -------------------------------------------------------------------------------------


def _report(setup: Setup, outcome: Outcome) -> None:
    setup.progress("results made up")
    folder = made_up(setup)
    out = setup.folder / "report.html"
    sides: dict[str, Side] = {
        "report": lambda: _seconds_of_report(folder, out),
        "without intervals": lambda: _seconds_without_intervals(folder, out),
    }
    warm_up(sides, setup.progress)
    times = interleave(sides, setup.scale.repeats, setup.progress)
    of = f"{len(SITES)} sites, {len(METHODS)} methods, {len(SEEDS)} seeds"
    of += f", {len(SITES) * TESTS} test images"
    bare = times["without intervals"]
    outcome.figures += [
        Figure(f"a report of {of} / the same page without intervals and tests",
               Ratio.of(times["report"], bare)),
        Figure(f"its seconds / {SECONDS:g}", Ratio.of(times["report"], [SECONDS] * len(bare)),
               Goal("at most", 1)),
    ]  # fmt: skip
    outcome.notes.append(
        f"a report: {median(times['report']):.1f} s, {out.stat().st_size / 1e6:.1f} MB; "
        f"without intervals {median(bare):.1f} s"
    )


def _seconds_of_report(folder: Path, out: Path) -> float:
    began = perf_counter()
    write_page(open_runs([folder]), out)
    return perf_counter() - began


def _seconds_without_intervals(folder: Path, out: Path) -> float:
    """The files read, everything drawn and written, by means alone."""
    began = perf_counter()
    page = Page(open_runs([folder]))
    page.__dict__["found"] = None  # as where only means are known
    write_text(out, render(page))
    return perf_counter() - began


def made_up(setup: Setup) -> Path:
    """A run's folder with results of no models: what a page reads."""
    folder = setup.folder / "made-up"
    shutil.rmtree(folder, ignore_errors=True)
    plan = _plan(setup, SITES, 32, methods=list(METHODS), rounds=ROUNDS, seeds=list(SEEDS))
    write_text(folder / "plan.yaml", yaml.safe_dump(json.loads(json.dumps(plan.to_json()))))
    noise = np.random.default_rng(0)
    scored = [one for job in plan.jobs for one in _scored(plan, job, noise)]
    task = plan.context(plan.jobs[0], plan.sites).task
    patients = dict.fromkeys(plan.sites, range(TESTS))
    write_scores(folder / FILE, (row for one in scored for row in one.rows(task, patients)))
    write_results(folder / "results.csv", (row for one in scored for row in _rows(plan, one)))
    done = [{"event": "job_done", "job": job.name, "seconds": 60.0} for job in plan.jobs]
    write_text(folder / "events.jsonl", "".join(json.dumps(one) + "\n" for one in done))
    for job in plan.jobs:
        write_text(folder / job.name / "result.json", json.dumps(_result(plan, job, noise)))
    return folder


def _plan(setup: Setup, sites: dict[str, int], size: int, **further: Any) -> Plan:
    """An experiment on the retina."""
    federation = {"synthetic": "retina", "images": sites, "image_size": size}
    raw = {
        "name": "benchmark",
        "federation": federation | {"cache": str(setup.folder / "cache")},
        "network": setup.scale.network,
        "training": PLAIN,
    }
    experiment = check_experiment(raw | further, "benchmark")
    return Plan.of(experiment, open_federation(experiment.federation, experiment.task))


def _roles(plan: Plan, job: Job) -> list[str]:
    method = plan.method(job)
    return [*method.shared_roles, *method.private_roles, *["super"] * method.super_model]


def _scored(plan: Plan, job: Job, noise: np.random.Generator) -> Iterator[Scored]:
    """What would be told of every test image, every metric and every column of selectors."""
    for role in _roles(plan, job):
        columns = {}
        for site in plan.sites:
            names = [f"{m}{s}" for m in ("dice", "hd95", "surface_dice") for s in ("", *STRUCTURES)]
            names += [f"{m}{s}" for m in ("_overlap", "_area") for s in STRUCTURES]
            if role == "super":
                names += ["selector_accuracy", "selector_confidence", "selector_confidence_raw"]
                names += ["asked_specialist", "unfamiliar"]
                names += [f"{PROBABILITY}{k}" for k in range(len(plan.sites))]
                names += [f"{SHARE}{k}" for k in range(len(plan.sites) + 1)]
                names += [f"{SCORE_OF}{name}" for name in (GLOBAL, *plan.sites)]
            columns[site] = {name: noise.uniform(0.01, 1, TESTS).tolist() for name in names}
        yield Scored(job.method, job.seed, role, plan.sites, columns)


def _rows(plan: Plan, one: Scored) -> Iterator[Row]:
    names = [name for name in one.columns[plan.sites[0]] if not name.startswith("_")]
    for name in names:
        for site in (*plan.sites, CLIENT_AVERAGE, GLOBAL):
            asked = [site] if site in plan.sites else plan.sites
            values = [value for each in asked for value in one.columns[each][name]]
            value = float(np.mean(values))
            yield Row(one.method, one.seed, one.role, "test", site, name, value, len(values))
            if name == "dice":
                yield Row(one.method, one.seed, one.role, "val", site, name, value, len(values))


def _result(plan: Plan, job: Job, noise: np.random.Generator) -> dict[str, Any]:
    roles = [role for role in _roles(plan, job) if role != "super"]
    history = [
        {"round": k, "sites": {site: {} for site in plan.sites},
         "means": {role: 1 - 1 / (2 + k) + noise.normal(0, 0.01) for role in roles}}
        for k in range(ROUNDS + 1)
    ]  # fmt: skip
    return {"method": job.method, "seed": job.seed, "routing": {}, "history": history}


# --- evaluation -----------------------------------------------------------------------------------


def _evaluation(setup: Setup, outcome: Outcome) -> None:
    """All roles of FedSM at all sites, against the same networks' passes over the same images."""
    setup.progress("FedSM trained")
    scale = setup.scale
    plan = _plan(setup, scale.images, scale.size, methods=["fedsm"], rounds=LEARNED)
    with settings_kept(), tempfile.TemporaryDirectory(dir=setup.folder) as scratch:
        torch.set_num_threads(1)
        record, model = trained(plan, Path(scratch))
        for split, words in SPLITS.items():
            passes = Passes(plan, Path(scratch), record, model, split)
            sides: dict[str, Side] = {
                "evaluation": partial(_rows_of, plan, Path(scratch), record, model, split),
                "forward passes": partial(_seconds_of, passes.all),
            }
            warm_up(sides, setup.progress)
            times = interleave(sides, scale.repeats, setup.progress)
            what = f"evaluating all roles of FedSM on all sites, {words} images, "
            what += f"{scale.size} x {scale.size} / the bare forward passes"
            ratio = Ratio.of(times["evaluation"], times["forward passes"])
            outcome.figures.append(Figure(what, ratio, Goal("at most", 1.2)))


def trained(plan: Plan, folder: Path) -> tuple[Record, SuperModel]:
    """A finished training whose sites still have their models, and its super model."""
    engine, job = InProcessEngine(plan, folder), plan.jobs[0]
    record = Server(plan, job, engine, folder, lambda event, **facts: None).train()
    model = Assembly(plan, job, engine).super_model(record, "best")
    assert model is not None  # FedSM has one
    return record, model


def _rows_of(plan: Plan, folder: Path, record: Record, model: SuperModel, split: Split) -> float:
    """Its seconds; each time of other sites, which remember what they have said of a model."""
    examiner = Examiner(plan, plan.jobs[0], InProcessEngine(plan, folder))
    (other,) = (one for one in SPLITS if one != split)
    examiner.rows(record, "best", None, (other,))  # networks are there by the end of a training
    return _seconds_of(lambda: examiner.rows(record, "best", model, (split,)))


class Passes:
    """What evaluation cannot do without: every network over every image that it is asked about.

    The global model and each site's own on its images; the selector, whom it asks, and, of test
    images, every model alone, because scores.parquet says what each would score there.
    """

    def __init__(
        self, plan: Plan, folder: Path, record: Record, model: SuperModel, split: Split
    ) -> None:
        method = plan.method(plan.jobs[0])
        self.network = BoundNetwork(build_network(method.context.network), torch.device("cpu"))
        self.network.mode(training=False)
        self.shared = record.shared.updated(record.best)["global"]
        self.own = {site: _own(plan, folder, site) for site in plan.sites}
        self.model, self.plan, self.split = model, plan, split

    @torch.no_grad()
    def all(self) -> None:
        """Every role at every site."""
        for site in self.plan.sites:
            data = self.plan.data_folder
            tests = self.split == "test"
            images = test_images(data, site) if tests else training_data(data, (site,)).val
            inputs = [x for x, _ in batches(images, torch.device("cpu"))]
            for weights in (self.shared, self.own[site]):
                self._pass(weights, inputs)
            for x in inputs:
                self.model.answer(x)
            if tests:
                for name in self.model.answerers:
                    self._pass(self.model.models[name], inputs)

    def _pass(self, weights: Weights, inputs: list[Tensor]) -> None:
        self.network.load(weights)
        for x in inputs:
            self.network.net(x)


def _own(plan: Plan, folder: Path, site: str) -> Weights:
    """A site's own model, as it was handed out."""
    home = site_folder(folder / plan.jobs[0].name, site)
    return Weights.load(home / "best" / "personal.safetensors")


def _seconds_of(work: Callable[[], Any]) -> float:
    began = perf_counter()
    work()
    return perf_counter() - began
