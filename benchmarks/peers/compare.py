"""The sides in turns, what a round of each costs, and whether all did the same work."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measure import Figure, Goal, Outcome, Progress, Ratio, interleave, warm_up
from benchmarks.peers import work
from benchmarks.peers.environments import python_of
from benchmarks.peers.federation import Size
from benchmarks.peers.meter import Cost, measure

ROOT = Path(__file__).parent.parent.parent
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
TIME, MEMORY = Goal("at least", 1.5), Goal("at least", 1.0)


@dataclass(frozen=True)
class Way:
    """A side: which script, in whose environment, with how many processes."""

    script: str
    environment: str = ""  # a peer's; without one, Konsil's own
    workers: int = 1
    tuned: bool = False


WAYS = {
    "Konsil": Way("konsil_side"),
    "Konsil, performance: auto": Way("konsil_side", tuned=True),
    "Konsil, 2 worker processes": Way("konsil_side", workers=2),
    "a plain loop": Way("plain_side"),
    "pfl": Way("pfl_side", "pfl"),
    "Flower": Way("flower_side", "flower", workers=2),
    "FLARE": Way("flare_side", "flare", workers=6),
    "FLARE, 2 threads": Way("flare_side", "flare", workers=2),
}
BASE, PLAIN = "Konsil", "a plain loop"
TUNED, PARALLEL = "Konsil, performance: auto", "Konsil, 2 worker processes"


def cost_a_round(few: Cost, many: Cost, rounds: int) -> float:
    """Processor seconds of one of the rounds that the longer run has more; the start is in both."""
    return (many.seconds - few.seconds) / rounds


@dataclass
class Side:
    """A call is two runs, a shorter and a longer one; it gives what a round costs."""

    name: str
    way: Way
    python: Path
    size: Size
    folder: Path  # the work's
    peaks: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)  # of the global models
    rounds: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        few, many = self.run(self.size.few), self.run(self.size.many)
        self.peaks.append(many.peak)
        self.losses.append(work.mean_loss(self.folder / work.DATA, self.weights))
        self.rounds.append(cost_a_round(few, many, self.size.many - self.size.few))
        return self.rounds[-1]

    def warm(self) -> float:
        """The shorter run alone, of which nothing is kept."""
        return self.run(self.size.few).seconds

    @property
    def weights(self) -> Path:
        """The global model of the last run."""
        return self.folder / f"{self._file}.npy"

    @property
    def _file(self) -> str:
        return f"{self.way.script}-{self.way.workers}{'-tuned' * self.way.tuned}"

    def run(self, rounds: int) -> Cost:
        """One run from start to end, as a process that knows nothing of the others."""
        self.weights.unlink(missing_ok=True)
        log = self.folder / f"{self._file}.log"
        command = [str(self.python), "-m", f"benchmarks.peers.{self.way.script}"]
        command += ["--work", str(self.folder), "--rounds", str(rounds)]
        command += ["--out", str(self.weights), "--workers", str(self.way.workers)]
        command += ["--tuned"] * self.way.tuned
        result = self.folder / f"{self._file}.json"
        # a client has one thread, and PYTHONPATH reaches the processes of processes
        environment = {**os.environ, **QUIET, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        cost = measure(command, result, log, environment)
        if cost.code != 0 or not self.weights.exists():
            end = log.read_text(encoding="utf-8", errors="replace")[-3000:]
            raise AssertionError(f"{self.name} ended with {cost.code}, no model:\n{end}")
        return cost


def check_same_work(start: float, losses: Mapping[str, list[float]], apart: float) -> None:
    """Stop if a side's model is not about as good as the plain loop's.

    Every side shuffles in its own way, so that bits differ; a side that trained less, weighted
    otherwise or sent back the first weights is far off.
    """
    reached = sum(losses[PLAIN]) / len(losses[PLAIN])
    gained = start - reached
    if gained <= 0:
        raise AssertionError(
            f"the plain loop learned nothing: loss {start:.3f}, then {reached:.3f}"
        )
    for name, values in losses.items():
        for value in values:
            if not abs(value - reached) <= apart * gained:  # also what is no number
                raise AssertionError(
                    f"{name} did not do the same work: loss {value:.3f}, the plain loop's "
                    f"{reached:.3f}, at the start {start:.3f}"
                )


def compare(
    size: Size, folder: Path, environments: Path, names: list[str], progress: Progress
) -> Outcome:
    """Everything in turns in a folder with the work, then ratios of each side over Konsil's."""
    sides = {name: _side(name, size, folder, environments) for name in names}
    warm_up({name: side.warm for name, side in sides.items()}, progress)
    start = work.mean_loss(folder / work.DATA, folder / work.START)

    def check() -> None:  # after every turn: a full comparison takes an hour
        check_same_work(start, {n: side.losses for n, side in sides.items()}, size.apart)

    interleave(sides, size.repeats, progress, check)
    return outcome_of(sides, start)


def outcome_of(sides: Mapping[str, Side], start: float) -> Outcome:
    """Ratios of processor time a round and of peak memory, with their goals."""
    outcome = Outcome()
    for ours in (BASE, TUNED):
        for name, side in sides.items():
            if name not in (BASE, TUNED) and ours in sides:
                goals = (TIME, MEMORY) if side.way.environment else (None, None)
                outcome.figures += _figures(name, side, ours, sides[ours], goals)
    if PARALLEL in sides:
        for name, side in sides.items():
            if side.way.environment and side.way.workers > 1:
                outcome.figures += _figures(name, side, PARALLEL, sides[PARALLEL], (None, None))
    outcome.notes = [_note(name, side) for name, side in sides.items()]
    outcome.notes.append(f"loss before the first round: {start:.3f}")
    return outcome


def _figures(
    name: str, side: Side, other: str, base: Side, goals: tuple[Goal | None, Goal | None]
) -> list[Figure]:
    time, memory = goals
    return [
        Figure(
            f"processor time a round: {name} / {other}", Ratio.of(side.rounds, base.rounds), time
        ),
        Figure(f"peak memory: {name} / {other}", Ratio.of(side.peaks, base.peaks), memory),
    ]


def _note(name: str, side: Side) -> str:
    return (
        f"{name}: {min(side.rounds):.2f} to {max(side.rounds):.2f} processor seconds a round, "
        f"{min(side.peaks) / 2**20:.0f} to {max(side.peaks) / 2**20:.0f} MiB, loss "
        f"{min(side.losses):.3f} to {max(side.losses):.3f}"
    )


def _side(name: str, size: Size, folder: Path, environments: Path) -> Side:
    way = WAYS[name]
    python = python_of(environments, way.environment) if way.environment else Path(sys.executable)
    return Side(name, way, python, size, folder)
