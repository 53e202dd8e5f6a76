"""Rounds against rounds: plain PyTorch, FedSM, worker processes."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import torch

from benchmarks.measure import Figure, Goal, Outcome, Ratio, Side, interleave, warm_up
from benchmarks.plain import PlainProcess
from benchmarks.rounds import RoundByRound
from benchmarks.setup import PlainSize, Setup
from konsil.federation.performance import tried
from konsil.federation.plan import Plan
from konsil.weights import Weights

# After one round the two computations may differ by this share of the way the weights have gone.
SAME_COMPUTATION = 0.01


def fedavg_vs_plain(setup: Setup) -> Outcome:
    """A FedAvg round in process over a plain PyTorch loop's in its own, validation in both."""
    # Konsil twice: with its defaults, and computing as `performance: auto` finds best
    outcome = Outcome()
    for size in setup.scale.plain:
        plan = setup.plan("fedavg", size.pixels, images=size.images)
        trial = tried(_open_plan(setup, size))
        with ExitStack() as stack:
            konsil = stack.enter_context(RoundByRound(plan, setup.folder))
            plain = stack.enter_context(closing(PlainProcess(plan)))
            best = replace(plan, experiment=trial.experiment)
            auto = stack.enter_context(RoundByRound(best, setup.folder))
            start = konsil.weights
            sides: dict[str, Side] = {"konsil": konsil, "auto": auto, "plain": plain}
            warm_up(sides, setup.progress)
            first = check_same_computation(start, konsil.weights, plain.weights)
            times = interleave(sides, setup.scale.repeats, setup.progress)
        for side, how in (("konsil", "float32, "), ("auto", "performance: auto, ")):
            what = f"FedAvg in process / plain PyTorch loop, {_size(size.pixels)}, {how}1 thread"
            ratio = Ratio.of(times[side], times["plain"])
            outcome.figures.append(Figure(what, ratio, Goal("at most", size.goal)))
        outcome.notes += [
            f"{_size(size.pixels)}, {_federation(size.images)}: after round 1 the weights of the "
            f"two float32 sides differ by {first:.1e} of the way they have gone; performance: auto "
            f"found {'; '.join(trial.lines)}"
        ]
    return outcome


def _open_plan(setup: Setup, size: PlainSize) -> Plan:
    """Where a trial chooses all but processes and threads, which the plain loop has one of."""
    return setup.plan(
        "fedavg",
        size.pixels,
        images=size.images,
        engine={"name": "inprocess"},
        performance="auto",
    )


def check_same_computation(start: Weights, ours: Weights, plain: Weights) -> float:
    """How far apart the two sides are after a round; not far, or they did not do the same."""
    apart = distance(start, ours, plain)
    close = torch.allclose(ours.flat, plain.flat, rtol=1e-3, atol=2e-3)
    if not close or apart > SAME_COMPUTATION:
        raise AssertionError(f"the plain loop does not compute what Konsil computes: {apart:.3g}")
    return apart


def distance(start: Weights, ours: Weights, plain: Weights) -> float:
    """Difference of two models, as a share of the way that one has gone from the start.

    It cannot be zero: a convolution's bias in front of a norm layer has a gradient of rounding
    noise alone, which Adam turns into steps of full length, and the two Adams round differently.
    """
    return (ours - plain).norm() / (ours - start).norm()


# lambda given, as in the paper: finding it takes passes over validation images (benchmark methods)
PAPERS_FEDSM = {"name": "fedsm", "lambda": 0.7, "selector_optimizer": "closed_form"}


def fedsm_vs_fedavg(setup: Setup) -> Outcome:
    """A FedSM round (two networks, a selector in closed form) over a FedAvg round, in process."""
    outcome = Outcome()
    for size in (setup.scale.size, setup.scale.small_size):
        with ExitStack() as stack:
            sides = {
                name: stack.enter_context(
                    RoundByRound(setup.plan(method, size, setup.scale.threads), setup.folder)
                )
                for name, method in (("fedsm", PAPERS_FEDSM), ("fedavg", "fedavg"))
            }
            warm_up(sides, setup.progress)
            times = interleave(sides, setup.scale.repeats, setup.progress)
        ratio = Ratio.of(times["fedsm"], times["fedavg"])
        what = f"FedSM round / FedAvg round, {_size(size)}, {_threads(setup.scale.threads)}"
        outcome.figures.append(Figure(what, ratio, Goal("at most", 2.1)))
    outcome.notes.append(_federation(setup.scale.images))
    return outcome


def processes_vs_inprocess(setup: Setup) -> Outcome:
    """A FedAvg round in process over the same round in two worker processes of one thread."""
    with ExitStack() as stack:

        def training(threads: int, **engine: Any) -> RoundByRound:
            plan = setup.plan("fedavg", threads=threads, engine=engine)
            return stack.enter_context(RoundByRound(plan, setup.folder))

        sides = {
            "processes": training(1, name="processes", workers=2),
            "1 worker": training(1, name="processes", workers=1),
        }
        for threads in sorted({1, setup.scale.threads}):
            sides[f"in process, {_threads(threads)}"] = training(threads, name="inprocess")
        warm_up(sides, setup.progress)
        times = interleave(sides, setup.scale.repeats, setup.progress)
    outcome = Outcome(
        notes=["the start of the workers is not measured", _federation(setup.scale.images)]
    )
    for name in list(sides)[2:]:
        ratio = Ratio.of(times[name], times["processes"])
        what = f"{name} / 2 worker processes, {_size(setup.scale.size)}"
        outcome.figures.append(Figure(what, ratio, Goal("at least", 1.1)))
    what = f"what messages cost: 1 worker process / in process, 1 thread, {_size(setup.scale.size)}"
    messages = Ratio.of(times["1 worker"], times["in process, 1 thread"])
    outcome.figures.append(Figure(what, messages))
    return outcome


def _size(pixels: int) -> str:
    return f"{pixels} x {pixels}"


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


def _federation(counts: dict[str, int]) -> str:
    return f"retina federation, {len(counts)} sites, {sum(counts.values())} images, half to train"
