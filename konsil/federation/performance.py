"""`performance: auto`: how this machine computes an experiment fastest, found by a short trial.

What is chosen changes the last bits (threads, kernels, memory format, precision), so it becomes
part of the plan, and a run that is resumed keeps it. What the experiment says is never overruled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from konsil.config import ComputeConfig, Experiment, Precision
from konsil.errors import RunError
from konsil.federation.compute import prepare_process
from konsil.federation.plan import Plan
from konsil.federation.runner import read_plan
from konsil.ingredients.learner import Learner
from konsil.networks import arranged, build_network
from konsil.tasks import Task
from konsil.weights import BoundNetwork

GAIN = 1.03  # how much faster than the plain way another must be to be taken
TURNS = 5
TURN = 0.1  # seconds that one measurement takes at least
SHOWN = ("float32", "bf16")  # docs/performance.md
Step = Callable[[], None]


@dataclass(frozen=True)
class Trial:
    """What was measured, and the experiment that computes as was found best."""

    experiment: Experiment
    lines: tuple[str, ...]  # for people


def with_performance(plan: Plan, folder: Path | None = None) -> Trial:
    """The plan's experiment with `performance: auto` resolved: as the run in `folder`, if any.

    Experiments without it come back as they are.
    """
    experiment = plan.experiment
    if experiment.performance != "auto":
        return Trial(experiment, ())
    if folder is not None and (folder / "plan.yaml").exists():
        before = read_plan(folder)["experiment"]
        compute = ComputeConfig.model_validate(before["compute"])
        return Trial(_resolved(experiment, compute, before["engine"]), ())
    return tried(plan)


def tried(plan: Plan) -> Trial:
    """Measure training steps on random images, and choose."""
    compute, lines = plan.experiment.compute, []
    prepare_process(compute)
    for key, values in _alternatives(compute).items():
        ways = [compute.model_copy(update={key: value}) for value in values]
        speeds = _speeds(plan, ways)
        chosen = _fastest(speeds)
        compute = ways[chosen]
        lines += [f"{key} {values[chosen]} ({_told(values, speeds)})"] if len(values) > 1 else []
    layouts = _layouts(plan, compute)
    rates = [rate(plan, compute, layout) for layout in layouts] if len(layouts) > 1 else [1.0]
    chosen = _fastest([r / rates[0] for r in rates])
    compute = compute.model_copy(update={"threads": layouts[chosen].threads})
    if len(layouts) > 1:
        lines.append(f"{layouts[chosen]} ({_told(layouts, [r / rates[0] for r in rates])})")
    engine = plan.experiment.engine.model_dump(mode="json") | layouts[chosen].engine
    prepare_process(compute)
    return Trial(_resolved(plan.experiment, compute, engine), tuple(lines))


def _alternatives(compute: ComputeConfig) -> Mapping[str, Sequence[Any]]:
    """What is tried of each key that the experiment leaves open, the plain way first."""
    found: dict[str, Sequence[Any]] = {}
    if "kernels" not in compute.model_fields_set:
        found["kernels"] = ("reference", "fast")
    if "memory_format" not in compute.model_fields_set:
        found["memory_format"] = ("contiguous", "channels_last")
    if compute.precision == "auto":
        found["precision"] = precisions(compute.device)
    elif "precision" not in compute.model_fields_set:  # what was shown to cost no Dice, and no more
        found["precision"] = [p for p in precisions(compute.device) if p in SHOWN]
    return found


def _fastest(speeds: Sequence[float]) -> int:
    """The place of the fastest way, or of the first if that is hardly slower."""
    best = max(range(len(speeds)), key=lambda place: speeds[place])
    return best if speeds[best] >= GAIN else 0


def precisions(device: str) -> tuple[Precision, ...]:
    """What a device may compute with; float32 first."""
    if device.startswith("cuda") and not torch.cuda.is_bf16_supported():
        return "float32", "fp16"
    return ("float32",) if device.startswith("mps") else ("float32", "bf16")


def _speeds(plan: Plan, ways: Sequence[ComputeConfig]) -> list[float]:
    """How much faster each way is than the first: medians of quotients measured in turns."""
    steps = [training_step(plan, way) for way in ways]
    for step in steps:
        step()
    times = 1
    while (took := _seconds(steps[0], times)) < TURN:
        times = max(times + 1, round(times * TURN / max(took, 1e-4)))
    turns = [[_seconds(step, times) for step in steps] for _ in range(TURNS)]
    return [median(turn[0] / turn[place] for turn in turns) for place in range(len(ways))]


def _seconds(step: Step, times: int) -> float:
    began = perf_counter()
    for _ in range(times):
        step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return perf_counter() - began


def training_step(plan: Plan, compute: ComputeConfig) -> Step:
    """One step of the plan's network on a batch of noise, computed in this way."""
    context = plan.context(plan.jobs[0], plan.sites)
    spec, training, device = context.network, context.training, torch.device(compute.device)
    noise = torch.Generator().manual_seed(0)
    shape = (training.batch_size, spec.in_channels, spec.image_size, spec.image_size)
    x = torch.rand(shape, generator=noise).to(device)
    y = _labels(context.task, shape).to(device)
    with torch.random.fork_rng(devices=[]):
        net = arranged(build_network(spec), compute)
    learner = Learner(BoundNetwork(net, device), training, precision=compute.precision)

    def step() -> None:
        torch.set_num_threads(compute.threads)
        learner.step(context.task.loss(learner(x), y))

    return step


def _labels(task: Task, shape: tuple[int, int, int, int]) -> torch.Tensor:
    if task.targets == "masks":
        return torch.ones(shape[0], len(task.labels), *shape[2:])
    return torch.arange(shape[0]) % len(task.labels)


# How a machine's cores are dealt out


@dataclass(frozen=True)
class Layout:
    """So many processes of so many threads; one process is this one."""

    workers: int
    threads: int

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        if self.workers == 1:
            return f"one process of {threads}"
        return f"{self.workers} worker processes of {threads}"

    @property
    def engine(self) -> dict[str, Any]:
        """The keys of the experiment's engine that say so."""
        return {"name": "processes", "workers": self.workers} if self.workers > 1 else {}


def _layouts(plan: Plan, compute: ComputeConfig) -> list[Layout]:
    """What is tried; the first is what the experiment says, or the plain way."""
    engine, cores = plan.experiment.engine, os.cpu_count() or 1
    written = "threads" in compute.model_fields_set
    found = [Layout(1, compute.threads)]
    if compute.device != "cpu" or engine.name == "processes":
        return found
    if not written and cores > 1:
        found.append(Layout(1, cores))
    workers = min(cores // compute.threads, len(plan.sites))
    if not engine.model_fields_set and workers > 1:
        found.append(Layout(workers, compute.threads))
    return found


def rate(plan: Plan, compute: ComputeConfig, layout: Layout) -> float:
    """Steps a second of all processes together."""
    way = compute.model_copy(update={"threads": layout.threads})
    if layout.workers == 1:
        step = training_step(plan, way)
        step()
        return median(_steps_a_second(step) for _ in range(TURNS))
    plan = replace(plan, experiment=plan.experiment.model_copy(update={"compute": way}))
    setup = json.dumps(plan.to_json())
    crew = [Colleague(setup) for _ in range(layout.workers)]
    try:
        for colleague in crew:
            colleague.heard()  # it is ready
        for colleague in crew:
            colleague.tell("go")
        return sum(float(colleague.heard()) for colleague in crew)
    finally:
        for colleague in crew:
            colleague.process.kill()
            colleague.process.communicate()


class Colleague:
    """A process that computes at the same time as others (`main`)."""

    def __init__(self, setup: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.tell(setup)

    def tell(self, line: str) -> None:
        """One line to it."""
        print(line, file=self.process.stdin, flush=True)

    def heard(self) -> str:
        """The next line from it."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RunError("performance: auto: a process of the trial ended; see above")
        return line


def _steps_a_second(step: Step) -> float:
    began, steps = perf_counter(), 0
    while perf_counter() - began < TURN:
        step()
        steps += 1
    return steps / (perf_counter() - began)


def _resolved(
    experiment: Experiment, compute: ComputeConfig, engine: Mapping[str, Any]
) -> Experiment:
    return experiment.model_copy(
        update={
            "performance": "plain",
            "compute": compute,
            "engine": type(experiment.engine).model_validate(engine),
        }
    )


def _told(values: Sequence[Any], speeds: Sequence[float]) -> str:
    """Every value with how fast it is."""
    return ", ".join(f"{v} x {s:.2f}" for v, s in zip(values, speeds, strict=True))


def main() -> None:
    """One of several processes that compute at once: a plan comes in, steps a second go out."""
    plan = Plan.from_json(json.loads(sys.stdin.readline()))
    compute = plan.experiment.compute
    prepare_process(compute)
    step = training_step(plan, compute)
    step()
    print("ready", flush=True)
    sys.stdin.readline()
    print(median(_steps_a_second(step) for _ in range(TURNS)), flush=True)


if __name__ == "__main__":
    main()
