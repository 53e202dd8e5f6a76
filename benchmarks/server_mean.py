"""The server's mean: time a site and peak memory, by the number of sites."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor

from benchmarks.measure import Figure, Goal, Outcome, Ratio, Side, interleave, warm_up
from benchmarks.peak import peak_of, supported
from benchmarks.setup import Setup
from konsil.networks import NetworkSpec, build_network
from konsil.weights import Layout, WeightedMean, Weights

DIFFERENT_UPLOADS = 3  # together more than a processor's cache, as uploads that arrive are


def mean_layout(network: str, width: int | None) -> Layout:
    """The layout of the network whose mean is taken."""
    return Layout.of(build_network(NetworkSpec(network, 3, 2, 64, width=width)))


def upload(layout: Layout, number: int) -> Weights:
    """Some site's weights."""
    return Weights(layout, torch.arange(layout.size, dtype=torch.float32).mul_(1 + number))


def server_mean(setup: Setup) -> Outcome:
    """WeightedMean: linear in the number of sites, and flat in memory; against a naive mean."""
    torch.set_num_threads(1)
    layout = mean_layout(setup.scale.mean_network, setup.scale.mean_width)
    outcome = Outcome(notes=[f"{layout.size / 1e6:.2f} M parameters, one thread"])
    outcome.figures += _time(setup, layout)
    if supported():
        outcome.figures += _memory(setup)
    else:
        outcome.notes.append("this system does not tell a process's peak memory: not measured")
    return outcome


def _time(setup: Setup, layout: Layout) -> list[Figure]:
    uploads = [upload(layout, number) for number in range(DIFFERENT_UPLOADS)]
    few, *more = setup.scale.mean_sites
    sides = {f"{sites} sites": _per_site(_streaming, uploads, sites) for sites in (few, *more)}
    sides["naive"] = _per_site(_naive, uploads, few)
    warm_up(sides, setup.progress)
    times = interleave(sides, setup.scale.repeats, setup.progress)
    base = times[f"{few} sites"]
    figures = [
        Figure(
            f"mean: time a site with {sites} sites / with {few}",
            Ratio.of(times[f"{sites} sites"], base),
            Goal("at most", 1.1),
        )
        for sites in more
    ]
    what = f"mean: Konsil (float64, streaming) / loop over float32 state dicts, {few} sites"
    return [*figures, Figure(what, Ratio.of(base, times["naive"]))]


def _per_site(mean: Callable[[list[Weights], int], object], uploads: list[Weights], n: int) -> Side:
    def side() -> float:
        began = perf_counter()
        mean(uploads, n)
        return (perf_counter() - began) / n

    return side


def _streaming(uploads: list[Weights], sites: int) -> Weights:
    mean = WeightedMean(uploads[0].layout)
    for number in range(sites):
        mean.add(uploads[number % len(uploads)], 1 + number)
    return mean.result()


def _naive(uploads: list[Weights], sites: int) -> dict[str, Tensor]:
    """The usual loop: entry by entry, in float32."""
    states = [{e.name: w[e.name] for e in w.layout.entries} for w in uploads]
    total = sum(1 + number for number in range(sites))
    mean = {name: torch.zeros_like(value) for name, value in states[0].items()}
    for number in range(sites):
        for name, value in states[number % len(states)].items():
            mean[name] += value * ((1 + number) / total)
    return mean


def _memory(setup: Setup) -> list[Figure]:
    few, *more = setup.scale.mean_sites
    sides = {f"memory, {sites} sites": _extra(setup, sites) for sites in (few, *more)}
    peaks = interleave(sides, setup.scale.repeats, setup.progress)
    return [
        Figure(
            f"mean: peak extra memory with {sites} sites / with {few}",
            Ratio.of(peaks[f"memory, {sites} sites"], peaks[f"memory, {few} sites"]),
            Goal("at most", 1.1),
        )
        for sites in more
    ]


def _extra(setup: Setup, sites: int) -> Side:
    scale = setup.scale
    case = {"network": scale.mean_network, "width": scale.mean_width, "sites": sites}

    def side() -> float:
        measured = peak_of({"case": "mean", **case})
        return float(measured["peak"] - measured["before"])

    return side
