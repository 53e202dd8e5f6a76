"""What trackers are told: numbers by job, name and step, made of a run's events; and parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite
from typing import Any, NamedTuple

from konsil.config import PLACES

STRANGE = re.compile(r"[^\w\-. :/]")  # what MLflow's names may not have
# Of an experiment: where files lie, which is nobody's business and changes no number.
UNTOLD = ("plugins", "network.initial", *(f"federation.{place}" for place in PLACES))


class Scalar(NamedTuple):
    """One number of a job."""

    name: str  # no name lies below another one: MLflow's files are called so
    step: int  # the round after which it is so
    value: float
    time: float  # of day, in seconds


@dataclass
class Counted:
    """What is being counted of a job's round."""

    began: float | None = None
    bytes: dict[str, int] = field(default_factory=dict)


class Scalars:
    """Turns events, in their order, into numbers.

    validation/ROLE, validation_by_site/ROLE/SITE (also lambda_prime and selector_accuracy), round/
    seconds, sites, bytes_down and bytes_up; of a job that is done job/seconds, best/ROLE (client
    average of validation images) and test/ROLE/METRIC/SITE.
    """

    def __init__(self) -> None:
        self._counted: dict[str, Counted] = {}
        self._rounds: dict[str, int] = {}

    def of(self, event: Mapping[str, Any]) -> list[Scalar]:
        """The numbers that an event gives; most give none."""
        hear = getattr(self, f"_{event['event']}", None)
        found: Iterator[tuple[str, int, float]] = iter(()) if hear is None else hear(event)
        time = _seconds(event)
        return [Scalar(plain(n), at, value, time) for n, at, value in found if isfinite(value)]

    def _run_started(self, event: Mapping[str, Any]) -> Iterator[tuple[str, int, float]]:
        self._counted = {}  # a round that was cut short is no round
        yield from ()

    def _job_started(self, event: Mapping[str, Any]) -> Iterator[tuple[str, int, float]]:
        self._rounds[event["job"]] = event["rounds"]
        yield from ()

    def _round_started(self, event: Mapping[str, Any]) -> Iterator[tuple[str, int, float]]:
        self._counted[event["job"]] = Counted(_seconds(event))
        yield from ()

    def _site_done(self, event: Mapping[str, Any]) -> Iterator[tuple[str, int, float]]:
        counted = self._counted.get(event["job"], Counted())
        for way in ("down", "up"):
            if way in event:
                counted.bytes[way] = counted.bytes.get(way, 0) + event[way]
        yield from ()

    def _round_done(self, event: Mapping[str, Any]) -> Iterator[tuple[str, int, float]]:
        counted, number = self._counted.pop(event["job"], Counted()), event["round"]
        yield "round/sites", number, float(len(event["sites"]))
        if counted.began is not None:
            yield "round/seconds", number, _seconds(event) - counted.began
        for way, size in counted.bytes.items():
            yield f"round/bytes_{way}", number, float(size)

    def _validated(self, event: Mapping[str, Any]) -> Iterator[tuple[str, int, float]]:
        for measure, value in event["means"].items():
            yield f"validation/{measure}", event["round"], value
        for site, values in event.get("sites", {}).items():
            for measure, value in values.items():
                if measure != "images":
                    yield f"validation_by_site/{measure}/{site}", event["round"], value

    def _job_done(self, event: Mapping[str, Any]) -> Iterator[tuple[str, int, float]]:
        step = self._rounds.get(event["job"], 0)
        yield "job/seconds", step, event["seconds"]
        for role, value in event["score"].items():
            yield f"best/{role}", step, value
        for role, metrics in event.get("test", {}).items():
            for metric, by_site in metrics.items():
                for site, value in by_site.items():
                    yield f"test/{role}/{metric}/{site}", step, value


def parameters(plan: Mapping[str, Any], job: str) -> dict[str, str]:
    """The experiment of a job, flat: its own method and seed, and all that the jobs share."""
    experiment = dict(plan["experiment"])
    label, _, seed = job.rpartition("/seed")
    methods = {method.get("label"): method for method in experiment.pop("methods")}
    experiment.pop("seeds")
    told = {"plan": plan["hash"], "konsil": plan["version"], "images": plan["fingerprint"]}
    told |= {"seed": seed, "sites": len(plan["sites"]), "method": methods.get(label, {})}
    flat = dict(_flat(told | experiment))
    return {plain(name): text for name, text in flat.items() if name not in UNTOLD}


def plain(name: str) -> str:
    """A name that every tracker takes."""
    return STRANGE.sub("_", name)


def _flat(block: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for key, value in block.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{name}.")
        else:
            yield name, str(value)


def _seconds(event: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()
