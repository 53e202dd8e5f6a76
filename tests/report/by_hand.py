"""A run of three hospitals whose every number was worked out by hand: no model, few images.

north: eight patients who all gain 0.1 by joining; south: two patients, one with two images who
gains 0.05, one who loses 0.04; west: eight patients who all lose 0.05.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from konsil.evaluation.results import CLIENT_AVERAGE, GLOBAL, Row, write_results
from konsil.evaluation.scores import FILE, write_scores
from konsil.federation.plan import Plan
from konsil.testing import SIZE, write_squares

PATIENTS = {"north": [0, 1, 2, 3, 4, 5, 6, 7], "south": [0, 0, 1], "west": [0, 1, 2, 3, 4, 5, 6, 7]}
METHODS = ["centralized", "local", "fedavg", "fedsm"]
# method and role -> hospital -> Dice of its images; of fedsm super the mean of both seeds
DICE: dict[tuple[str, str], dict[str, list[float]]] = {
    ("centralized", "centralized"): {"north": [0.72] * 8, "south": [0.84] * 3, "west": [0.71] * 8},
    ("local", "local"): {"north": [0.60] * 8, "south": [0.80] * 3, "west": [0.70] * 8},
    ("fedavg", "global"): {"north": [0.58] * 8, "south": [0.77] * 3, "west": [0.66] * 8},
    ("fedsm", "super"): {"north": [0.70] * 8, "south": [0.85, 0.85, 0.76], "west": [0.65] * 8},
}
APART = 0.01  # fedsm at north with seed 0 is so much below 0.70, with seed 1 above
# like north, south, west; who answers; how sure; right: of every image of a hospital
SELECTOR: dict[str, list[tuple[list[float], str, float, int]]] = {
    "north": [([0.95, 0.03, 0.02], "north", 0.95, 1)] * 8,
    "south": [
        ([0.15, 0.75, 0.10], "south", 0.75, 1),
        ([0.15, 0.75, 0.10], "south", 0.75, 1),
        ([0.75, 0.15, 0.10], "global", 0.75, 0),
    ],
    "west": [([0.95, 0.03, 0.02], "north", 0.95, 0)] + [([0.02, 0.03, 0.95], "west", 0.95, 1)] * 7,
}
VALIDATION = {  # of the seeds' mean, after rounds 0, 1 and 2
    "centralized": {"centralized": [0.1, 0.8, 0.7]},
    "local": {"local": [0.1, 0.5, 0.6]},
    "fedavg": {"global": [0.1, 0.4, 0.5]},
    "fedsm": {"global": [0.1, 0.4, 0.5], "personal": [0.1, 0.6, 0.65]},
}
SECONDS = {"centralized": (40, 44), "local": (12, 10), "fedavg": (21, 22), "fedsm": (1234, 99)}


def write_run(folder: Path, make_plan: Callable[..., Plan], **given: Any) -> Plan:
    """The folder: plan, scores, results, events, and each job's result."""
    squares = folder.parent / "squares"
    if not squares.exists():
        write_squares(squares, {"north": 8, "south": 8, "west": 8})
    blocks = {"methods": METHODS, "seeds": [0, 1]} | given
    plan = make_plan(federation={"folder": str(squares), "image_size": SIZE}, **blocks)
    folder.mkdir(parents=True)
    (folder / "plan.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(plan.to_json()))))
    rows = [row for row in _scores() if _is_in(plan, row)]
    write_scores(folder / FILE, rows)
    write_results(folder / "results.csv", [row for row in results() if _is_in(plan, row._asdict())])
    _write_jobs(folder, plan)
    return plan


def _is_in(plan: Plan, row: dict[str, Any]) -> bool:
    return any((row["method"], row["seed"]) == (job.method, job.seed) for job in plan.jobs)


def _scores() -> Iterator[dict[str, Any]]:
    for (method, role), by_site in DICE.items():
        for seed in (0, 1):
            for site, values in by_site.items():
                for image, value in enumerate(values):
                    row: dict[str, Any] = {"method": method, "seed": seed, "role": role}
                    row |= {"site": site, "patient": PATIENTS[site][image], "image": image}
                    row |= {"structure": None, "dice": value + _shift(method, site, seed)}
                    yield row | (_selected(site, image) if role == "super" else {})


def _shift(method: str, site: str, seed: int) -> float:
    return APART * (2 * seed - 1) if (method, site) == ("fedsm", "north") else 0.0


def _selected(site: str, image: int) -> dict[str, Any]:
    like, asked, sure, right = SELECTOR[site][image]
    found = {f"like_{name}": value for name, value in zip(PATIENTS, like, strict=True)}
    return found | {
        "asked": asked,
        "selector_confidence": sure,
        "selector_accuracy": float(right),
        "unfamiliar": float(asked == "global"),
        "asked_specialist": float(asked != "global"),
    }


def results() -> list[Row]:
    """The means of the scores, as a run would leave them."""
    values: dict[tuple[str, int, str, str], dict[str, list[float]]] = {}
    for row in _scores():
        for metric in ("dice", "selector_accuracy", "asked_specialist", "unfamiliar"):
            if metric in row:
                key = row["method"], row["seed"], row["role"], metric
                values.setdefault(key, {}).setdefault(row["site"], []).append(row[metric])
    found = []
    for (method, seed, role, metric), by_site in values.items():
        means = {site: float(np.mean(own)) for site, own in by_site.items()}
        means[CLIENT_AVERAGE] = float(np.mean(list(means.values())))
        means[GLOBAL] = float(np.mean([value for own in by_site.values() for value in own]))
        found += [Row(method, seed, role, "test", s, metric, v, 19) for s, v in means.items()]
        if metric == "dice":
            found.append(Row(method, seed, role, "val", GLOBAL, metric, 0.5, 6))
    for seed in (0, 1):
        for metric, error in (("selector_error", 0.024), ("selector_error_raw", 0.1)):
            found.append(Row("fedsm", seed, "super", "test", GLOBAL, metric, error, 19))
    return found


def _write_jobs(folder: Path, plan: Plan) -> None:
    events = []
    for job in plan.jobs:
        seconds = SECONDS[job.method][job.seed]
        # a job that was stopped and went on has two parts
        events += [{"event": "job_done", "job": job.name, "seconds": s} for s in (3.0, seconds - 3)]
        history = [
            {
                "round": number,
                "sites": {site: {} for site in PATIENTS},
                "means": {role: v[number] for role, v in VALIDATION[job.method].items()},
            }
            for number in range(3)
        ]
        result = {"method": job.method, "seed": job.seed, "routing": {}, "history": history}
        (folder / job.name).mkdir(parents=True)
        (folder / job.name / "result.json").write_text(json.dumps(result))
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
