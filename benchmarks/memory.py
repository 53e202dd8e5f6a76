"""Peak memory of a whole training, by the number of sites."""

from __future__ import annotations

from benchmarks.measure import Figure, Goal, Outcome, Ratio
from benchmarks.peak import ROUNDS, peak_of, supported
from benchmarks.setup import Setup


def memory(setup: Setup) -> Outcome:
    """Peak memory of FedSM in process with many sites over that with few."""
    if not supported():
        return Outcome(notes=["this system does not tell a process's peak memory: not measured"])
    few, many = setup.scale.memory_sites
    peaks: dict[int, list[float]] = {few: [], many: []}
    extra: dict[int, list[float]] = {few: [], many: []}
    for turn in range(setup.scale.memory_repeats):
        for sites in (few, many):
            setup.progress(f"{sites} sites, turn {turn + 1} of {setup.scale.memory_repeats}")
            measured = _measure(setup, sites)
            peaks[sites].append(measured["peak"])
            extra[sites].append(measured["peak"] - measured["before"])
    whole = Ratio.of(peaks[many], peaks[few])
    above = Ratio.of(extra[many], extra[few])
    what = f"FedSM with {many} sites / with {few}, {setup.scale.small_size} pixels"
    return Outcome(
        [
            Figure(f"peak memory, {what}", whole, Goal("at most", 1.2)),
            Figure(f"the same without what the libraries take, {what}", above),
        ],
        [
            f"{setup.scale.memory_images} images a site, {ROUNDS} rounds, in process; with {few} "
            f"sites the peak was {min(peaks[few]) / 2**20:.0f} MiB"
        ],
    )


def _measure(setup: Setup, sites: int) -> dict[str, float]:
    scale = setup.scale
    federation = setup.many_sites(sites, max(scale.memory_sites), scale.memory_images)
    plan = setup.plan("fedsm", setup.scale.small_size, federation=federation)
    folder = setup.folder / "memory"
    return peak_of({"case": "training", "plan": plan.to_json(), "folder": str(folder)})
