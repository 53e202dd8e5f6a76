"""Where a round's time goes that is not spent on training: timed inside one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from time import perf_counter
from typing import Any

from benchmarks.measure import Figure, Goal, Outcome, Ratio, warm_up
from benchmarks.rounds import RoundByRound
from benchmarks.setup import Setup
from konsil.federation import site_worker
from konsil.federation.intake import Intake
from konsil.federation.server import Record
from konsil.federation.state import SiteState
from konsil.ingredients.method import Method
from konsil.ingredients.site import Site
from konsil.weights import WeightedMean

WATCHED: tuple[tuple[Any, str, str], ...] = (
    (Method, "local", "training"),
    (Site, "columns", "validation"),
    (SiteState, "load", "state files"),
    (SiteState, "save", "state files"),
    (Record, "save", "state files"),
    (site_worker, "check_finite", "checks"),
    (Intake, "accept", "checks"),
    (Intake, "__init__", "mean"),
    (WeightedMean, "add", "mean"),
    (WeightedMean, "result", "mean"),
)
WORK = ("training", "validation")  # what the plain loop does, too


class Stopwatch:
    """Seconds a label: what a watched call spends in another watched call is the other's."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = [0.0]

    def watched(self, function: Callable[..., Any], label: str) -> Callable[..., Any]:
        """The function, timed."""

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            began = perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                took = perf_counter() - began
                own = took - self._inner.pop()
                self._inner[-1] += took
                self.seconds[label] = self.seconds.get(label, 0.0) + own

        return timed

    @contextmanager
    def watching(self, owner: Any, name: str, label: str) -> Iterator[None]:
        """Time a function of a class or module as long as this lasts."""
        usual = vars(owner)[name]
        if isinstance(usual, classmethod):
            setattr(owner, name, classmethod(self.watched(usual.__func__, label)))
        else:
            setattr(owner, name, self.watched(usual, label))
        try:
            yield
        finally:
            setattr(owner, name, usual)


def overheads(setup: Setup) -> Outcome:
    """The share of a FedAvg round that neither trains nor validates, and what it is spent on."""
    shares: dict[str, list[float]] = {}
    with RoundByRound(setup.plan("fedavg", threads=setup.scale.threads), setup.folder) as konsil:
        warm_up({"fedavg": konsil}, setup.progress)
        for turn in range(setup.scale.repeats):
            setup.progress(f"round {turn + 1} of {setup.scale.repeats}")
            for label, share in shares_of_a_round(konsil).items():
                shares.setdefault(label, []).append(share)
    work = [sum(values) for values in zip(*(shares[label] for label in WORK), strict=True)]
    idle = Ratio(tuple(1 - share for share in work))
    what = "time of a FedAvg round not spent on training or validation / whole round"
    figures = [Figure(what, idle, Goal("at most", 0.05))]
    for label, values in shares.items():
        figures.append(Figure(f"{label} / whole round", Ratio(tuple(values))))
    scale = setup.scale
    note = f"in process, {scale.threads} threads, {len(scale.images)} sites, {scale.size} pixels"
    return Outcome(figures, [note])


def shares_of_a_round(training: RoundByRound) -> dict[str, float]:
    """Label -> share of the next round; `rest` is what nothing watched."""
    watch = Stopwatch()
    with ExitStack() as stack:
        for owner, name, label in WATCHED:
            stack.enter_context(watch.watching(owner, name, label))
        whole = training()
    shares = {label: seconds / whole for label, seconds in watch.seconds.items()}
    return shares | {"rest": 1 - sum(shares.values())}
