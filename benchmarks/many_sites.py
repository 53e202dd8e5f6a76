"""More sites than cores: what a round costs a site, and all of it in memory, by their number."""

from __future__ import annotations

from benchmarks.measure import Figure, Goal, Outcome, Ratio
from benchmarks.peak import ROUNDS, peak_of, supported
from benchmarks.setup import Setup


def many_sites(setup: Setup) -> Outcome:
    """A FedAvg round in process with 100 and 500 small sites over one with 6, a site each."""
    if not supported():
        return Outcome(notes=["this system does not tell a process's peak memory: not measured"])
    few, *many = setup.scale.crowds
    measured: dict[int, list[dict[str, float]]] = {sites: [] for sites in setup.scale.crowds}
    for turn in range(setup.scale.repeats):
        for sites in setup.scale.crowds[:: -1 if turn % 2 else 1]:
            setup.progress(f"{sites} sites, turn {turn + 1} of {setup.scale.repeats}")
            measured[sites].append(_measure(setup, sites))
    outcome = Outcome()
    for sites in many:
        pairs = list(zip(measured[sites], measured[few], strict=True))
        a_site = Ratio(tuple(a["seconds"] / sites / (b["seconds"] / few) for a, b in pairs))
        peak = Ratio(tuple(a["peak"] / b["peak"] for a, b in pairs))
        who = f"{sites} sites / with {few}"
        outcome.figures += [
            Figure(f"processor time of a round, a site, with {who}", a_site, Goal("at most", 1.1)),
            Figure(f"peak memory with {who}", peak, Goal("at most", 1.2)),
        ]
    scale = setup.scale
    outcome.notes.append(
        f"FedAvg in process, round {ROUNDS}, {scale.crowd_images} images a site, half to train, "
        f"{scale.small_size} pixels, {scale.crowd_network}"
    )
    return outcome


def _measure(setup: Setup, sites: int) -> dict[str, float]:
    scale = setup.scale
    plan = setup.plan(
        "fedavg",
        scale.small_size,
        federation=setup.many_sites(sites, max(scale.crowds), scale.crowd_images),
        network=scale.crowd_network,
    )
    folder = str(setup.folder / "crowd")
    return peak_of({"case": "training", "plan": plan.to_json(), "folder": folder})
