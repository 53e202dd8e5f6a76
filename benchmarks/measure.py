"""Ratios of things measured in turns, the goals they are held against, and their outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

Side = Callable[[], float]  # does its work once, gives the seconds (or bytes) that it took
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Ratio:
    """Quotients of neighbouring measurements: the median, and how far they spread."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, over: list[float], under: list[float]) -> Ratio:
        """The quotient of every pair that was measured side by side."""
        return cls(tuple(a / b for a, b in zip(over, under, strict=True)))

    @property
    def median(self) -> float:
        """What is reported and held against the goal."""
        return median(self.values)

    def __str__(self) -> str:
        return f"{self.median:.3f} ({min(self.values):.3f} to {max(self.values):.3f})"


@dataclass(frozen=True)
class Goal:
    """What a ratio is wanted to be."""

    direction: Literal["at most", "at least"]
    bound: float

    def met(self, ratio: Ratio) -> bool:
        """Whether the median is on the right side; the bound itself is."""
        if self.direction == "at most":
            return ratio.median <= self.bound
        return ratio.median >= self.bound

    def __str__(self) -> str:
        return f"{self.direction} {self.bound:g}"


@dataclass(frozen=True)
class Defined:
    """What a ratio is by definition, and which share it may be above that."""

    value: float
    share: float

    def met(self, ratio: Ratio) -> bool:
        """Whether the median is not too far above; cheaper than by definition is no fault."""
        return ratio.median / self.value - 1 <= self.share

    def __str__(self) -> str:
        return f"at most {self.share:.0%} above {self.value:.4g}"


@dataclass(frozen=True)
class Figure:
    """One ratio: what over what, and what it was wanted to be (None: it only explains)."""

    what: str
    ratio: Ratio
    goal: Goal | Defined | None = None

    @property
    def met(self) -> bool | None:
        """Whether the goal was met; None without one."""
        return None if self.goal is None else self.goal.met(self.ratio)


@dataclass
class Outcome:
    """The figures of one benchmark, and what must be known to read them."""

    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def warm_up(sides: Mapping[str, Side], progress: Progress) -> None:
    """Every side once, unmeasured: workers start, files are cached, memory is taken."""
    for name, side in sides.items():
        progress(f"{name}, warm-up")
        side()


def interleave(
    sides: Mapping[str, Side],
    repeats: int,
    progress: Progress,
    after_turn: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Every side `repeats` times, in turns: A B, B A, A B, ...

    Turns, because a shared machine is slower for minutes at a time; every other turn backwards,
    because what one side leaves behind (files to be flushed, a warm processor) meets the next.
    """
    measured: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(repeats):
        for name in list(sides)[:: -1 if turn % 2 else 1]:
            progress(f"{name}, turn {turn + 1} of {repeats}")
            measured[name].append(sides[name]())
        after_turn()
    return measured
