"""Peak memory of a whole training, by the number of sites."""

from __future__ import annotations

from benchmarks.ground import Ground
from benchmarks.measure import Figure, Goal, Outcome, Ratio
from benchmarks.peak import ROUNDS, peak_of, supported


def memory(ground: Ground) -> Outcome:
    """Peak memory of FedSM in process with many sites over that with few."""
    if not supported():
        return Outcome(notes=["this system does not tell a process's peak memory: not measured"])
    few, many = ground.scale.memory_sites
    peaks: dict[int, list[float]] = {few: [], many: []}
    extra: dict[int, list[float]] = {few: [], many: []}
    for turn in range(ground.scale.memory_repeats):
        for sites in (few, many):
            ground.progress(f"{sites} sites, turn {turn + 1} of {ground.scale.memory_repeats}")
            measured = _measure(ground, sites)
            peaks[sites].append(measured["peak"])
            extra[sites].append(measured["peak"] - measured["before"])
    whole = Ratio.of(peaks[many], peaks[few])
    above = Ratio.of(extra[many], extra[few])
    what = f"FedSM with {many} sites / with {few}, {ground.scale.small_size} pixels"
    return Outcome(
        [
            Figure(f"peak memory, {what}", whole, Goal("at most", 1.2)),
            Figure(f"the same without what the libraries take, {what}", above),
        ],
        [
            f"{ground.scale.memory_images} images a site, {ROUNDS} rounds, in process; with {few} "
            f"sites the peak was {min(peaks[few]) / 2**20:.0f} MiB"
        ],
    )


def _measure(ground: Ground, sites: int) -> dict[str, int]:
    federation = ground.many_sites(sites)
    plan = ground.plan("fedsm", ground.scale.small_size, federation=federation)
    folder = ground.folder / "memory"
    return peak_of({"case": "training", "plan": plan.to_json(), "folder": str(folder)})
