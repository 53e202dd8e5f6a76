"""Every method's local training against FedAvg's, beside what it costs by definition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import process_time

from benchmarks.measure import Defined, Figure, Outcome, Ratio, interleave, warm_up
from benchmarks.rounds import RoundByRound
from benchmarks.setup import Setup
from konsil.federation.engines import Engine
from konsil.federation.messages import Failure, Reply, Request
from konsil.federation.plan import Plan
from konsil.ingredients.method import METHODS

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
        self.passes = self.server.method.work()

    def __call__(self) -> float:
        """The next round; the processor time of its sites."""
        self.timed.seconds = 0.0
        super().__call__()
        return self.timed.seconds


def names() -> list[str]:
    return list(METHODS.all())


def methods(setup: Setup) -> Outcome:
    """A local round of every method over FedAvg's, beside the method's own `passes()`."""
    outcome = Outcome(notes=_notes(setup))
    with LocalRounds(_plan(setup, BASE), setup.folder) as base:
        for name in names():
            with LocalRounds(_plan(setup, name), setup.folder) as ours:
                sides = {name: ours, "FedAvg": base}
                warm_up(sides, setup.progress)  # round 1 is validated, further ones are not
                times = interleave(sides, setup.scale.repeats, setup.progress)
            ratio = Ratio.of(times[name], times["FedAvg"])
            what = f"{name}: local round / FedAvg's"
            outcome.figures.append(Figure(what, ratio, Defined(ours.passes, WITHIN)))
    return outcome


def _plan(setup: Setup, method: str) -> Plan:
    return setup.plan(method, setup.scale.small_size, validate=False)


def _notes(setup: Setup) -> list[str]:
    counts = setup.scale.images
    size = setup.scale.small_size
    return [
        f"retina federation, {len(counts)} sites, {sum(counts.values())} images, {size} x {size}, "
        "1 thread; processor time, no validation but what a method's definition asks for",
        "default settings and early rounds: a method with phases is in its first",
    ]
