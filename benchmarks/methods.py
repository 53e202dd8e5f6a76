"""Every method's local training against FedAvg's, beside what it costs by definition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import process_time

from benchmarks.ground import Ground
from benchmarks.measure import Defined, Figure, Outcome, Ratio, interleave, warm_up
from benchmarks.rounds import RoundByRound
from konsil.engines import Engine
from konsil.messages import Failure, Reply, Request
from konsil.method import all_methods
from konsil.plan import Plan

WITHIN = 0.1  # above the definition
BASE = "fedavg"


class Timed:
    """An engine, and the processor time that its sites took; the server's is not in it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.seconds = 0.0

    def exchange(
        self, requests: Sequence[Request], deadline: float | None = None
    ) -> Iterator[Reply | Failure]:
        began = process_time()
        for answer in self.engine.exchange(requests, deadline):
            self.seconds += process_time() - began
            yield answer
            began = process_time()

    def close(self) -> None:
        self.engine.close()


class LocalRounds(RoundByRound):
    """A training of which only what the sites do is timed."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        super().__init__(plan, folder)
        self.server.engine = self.timed = Timed(self.engine)
        self.passes = self.server.method.passes()

    def __call__(self) -> float:
        """The next round; the processor time of its sites."""
        self.timed.seconds = 0.0
        super().__call__()
        return self.timed.seconds


def methods(ground: Ground) -> Outcome:
    """A local round of every method over FedAvg's, beside the method's own `passes()`."""
    outcome = Outcome(notes=_notes(ground))
    with LocalRounds(_plan(ground, BASE), ground.folder) as base:
        for name in all_methods():
            with LocalRounds(_plan(ground, name), ground.folder) as ours:
                sides = {name: ours, "FedAvg": base}
                warm_up(sides, ground.progress)  # round 1 is validated, further ones are not
                times = interleave(sides, ground.scale.repeats, ground.progress)
            ratio = Ratio.of(times[name], times["FedAvg"])
            what = f"{name}: local round / FedAvg's"
            outcome.figures.append(Figure(what, ratio, Defined(ours.passes, WITHIN)))
    return outcome


def _plan(ground: Ground, method: str) -> Plan:
    return ground.plan(method, ground.scale.small_size, validate=False)


def _notes(ground: Ground) -> list[str]:
    counts = ground.scale.images
    size = ground.scale.small_size
    return [
        f"retina federation, {len(counts)} sites, {sum(counts.values())} images, {size} x {size}, "
        "1 thread; processor time, no validation but what a method's definition asks for",
        "default settings and early rounds: a method with phases is in its first",
    ]
