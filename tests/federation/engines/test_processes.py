"""Worker processes: the same bits as in one process, and what happens when one is lost."""

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest
from federations import copy_sites

from konsil import testing as toy
from konsil.errors import RoundFailed
from konsil.federation.engines.processes import ProcessEngine, deal_out
from konsil.federation.runner import Run
from konsil.federation.site_worker import site_folder

# one of every kind of traffic: means, controls, single models, phases
ALL_KINDS = [
    "centralized", "local", "fedavg", "fedsm", {"name": "fedsoup", "start": 0.4},
    "scaffold", "fedfomo", "fedsm-extra", "fedbn",
]  # fmt: skip
QUICK = {"task": {"name": "classification"}, "network": {"name": "small"}}


@pytest.fixture(scope="module")
def trio(shades, tmp_path_factory):
    """Three sites, two of them of one size."""
    folder = tmp_path_factory.mktemp("trio")
    sites = {"north": ("north", 4), "south": ("south", 6), "west": ("south", 5)}
    return copy_sites(shades, folder, sites)


@pytest.fixture(scope="module")
def in_process(trio, tmp_path_factory):
    """What a run of all methods leaves when it is computed in this process."""
    folder = tmp_path_factory.mktemp("inprocess")
    toy.whole_run(toy.plan_of(trio, methods=ALL_KINDS, rounds=3, **QUICK), folder)
    return toy.what_remains(folder)


@pytest.mark.parametrize("workers", [1, 2])  # with a site each, too: `test_plugins`
def test_every_file_is_the_same_whatever_the_number_of_workers(trio, in_process, tmp_path, workers):
    engine = {"name": "processes", "workers": workers}
    toy.whole_run(toy.plan_of(trio, methods=ALL_KINDS, rounds=3, engine=engine, **QUICK), tmp_path)
    files = toy.what_remains(tmp_path)
    assert files.keys() == in_process.keys()
    assert [name for name in files if files[name] != in_process[name]] == []


def test_sites_are_dealt_out_evenly(trio):
    plan = toy.plan_of(trio, **QUICK)
    assert {s: plan.images(s, "train") for s in plan.sites} == {"north": 4, "south": 6, "west": 6}
    home = deal_out(plan, 2)  # the largest first, each to the least laden
    assert [home[s] for s in ("south", "west", "north")] == [0, 1, 0]
    assert len({deal_out(plan, 3)[s] for s in plan.sites}) == 3
    assert {deal_out(plan, 1)[s] for s in plan.sites} == {0}


# --- losing a worker ----------------------------------------------------------------------------

ROUNDS = 3
TITLES = ("killed", "late", "damaged")


class Disturbed:
    """Calls `disturb` with the engine before round 2, and passes a deadline to that round only:
    starting a new worker takes longer than a round does here."""

    def __init__(
        self,
        engine: ProcessEngine,
        disturb: Callable[[ProcessEngine], None],
        deadline: float | None,
    ) -> None:
        self.engine, self.disturb, self.deadline = engine, disturb, deadline

    def exchange(self, requests, deadline=None):
        disturbed = requests[0].round == 2 and requests[0].kind == "round"
        if disturbed:
            self.disturb(self.engine)
        yield from self.engine.exchange(requests, self.deadline if disturbed else None)

    def close(self) -> None:
        self.engine.close()


def process_of(engine: ProcessEngine, site: str) -> int:
    return engine._workers[engine.home[site]].process.pid


@pytest.fixture(scope="module")
def two(shades, tmp_path_factory):
    """Two sites in two worker processes that all tests below share: plan, folder, engine."""
    folder = tmp_path_factory.mktemp("two")
    methods = [{"name": "fedavg", "label": title} for title in TITLES]
    plan = toy.plan_of(
        shades, methods=methods, rounds=ROUNDS, server={"min_sites": 1},
        engine={"name": "processes", "workers": 2}, **QUICK,
    )  # fmt: skip
    engine = ProcessEngine(plan, folder)
    yield plan, folder, engine
    pids = [w.process.pid for w in engine._workers.values()]
    assert pids
    engine.close()
    for pid in pids:  # no orphans
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def heard_of(two, title: str, disturb, deadline: float | None = None) -> list[tuple[str, dict]]:
    """The events of a job whose second round is disturbed."""
    plan, folder, engine = two
    events: list[tuple[str, dict]] = []
    toy.server(
        plan, folder, title, Disturbed(engine, disturb, deadline),
        notify=lambda event, **facts: events.append((event, facts)),
    ).train()  # fmt: skip
    return events


def sites_by_round(events) -> dict[int, list[str]]:
    return {f["round"]: f["sites"] for event, f in events if event == "round_done"}


def test_a_killed_worker_costs_its_site_one_round(two):
    def stop_and_kill(engine):
        pid = process_of(engine, "south")
        os.kill(pid, signal.SIGSTOP)  # in the middle of its round, however fast it is
        threading.Timer(0.5, os.kill, (pid, signal.SIGKILL)).start()

    events = heard_of(two, "killed", stop_and_kill)
    (missing,) = [f for event, f in events if event == "site_missing"]
    assert (missing["site"], missing["round"]) == ("south", 2)
    assert "its process ended with exit code -9" in missing["reason"]
    assert sites_by_round(events) == {
        1: ["north", "south"],
        2: ["north"],
        3: ["north", "south"],
    }


def test_a_site_that_is_late_is_missed_and_comes_back(two):
    stopped = []

    def stop(engine):
        stopped.append(process_of(engine, "south"))
        os.kill(stopped[0], signal.SIGSTOP)

    events = heard_of(two, "late", stop, deadline=8.0)
    missing = [f for event, f in events if event == "site_missing"]
    assert {"site": "south", "round": 2, "reason": "no answer before the deadline"} in missing
    assert sites_by_round(events)[2] == ["north"]
    assert sites_by_round(events)[3] == ["north", "south"]
    with pytest.raises(ProcessLookupError):  # a worker nobody waits for is ended
        os.kill(stopped[0], 0)


def test_a_workers_error_reaches_the_reader(two):
    plan, folder, engine = two
    server = toy.server(plan, folder, "damaged", engine)
    server._round(1)
    for site in plan.sites:
        (site_folder(folder / "damaged/seed0", site) / "state.safetensors").write_bytes(b"\0\1")
    with pytest.raises(RoundFailed) as caught:
        server._round(2)
    for site in plan.sites:
        assert f"{site}/state.safetensors" in str(caught.value)
    assert server.record.round == 1


def test_workers_end_with_their_coordinator(trio, tmp_path):
    """Their pipe is closed when the coordinator is gone, however it went."""
    engine = ProcessEngine(toy.plan_of(trio, **QUICK), tmp_path)
    worker = engine._worker(0)
    worker.connection.close()
    end = time.monotonic() + 120
    while worker.process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    assert worker.process.poll() == 0


RECIPE = {  # every setting of training, server and compute beyond the plain ones, at once
    "training": {
        "batch_size": 2, "optimizer": "adamw", "schedule": "cosine", "warmup": 1, "clip": 0.5,
        "augment": "strong", "augment_flips": "both", "keep": "ema", "weight_decay": 0.01,
    },
    "server": {"momentum": "auto", "weights": "equal", "fraction": 0.6, "compression": "int8"},
    "compute": {"precision": "bf16", "memory_format": "channels_last"},
    "methods": [{"name": "fedsm", "lambda": "auto"}, "fedsoup", "scaffold", "fedper"],
    "rounds": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def by_recipe(trio, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recipe")
    toy.whole_run(toy.plan_of(trio, **RECIPE, **QUICK), folder)
    return toy.what_remains(folder)


def test_a_recipe_is_the_same_bits_in_worker_processes(trio, by_recipe, tmp_path):
    engine = {"name": "processes", "workers": 2}
    toy.whole_run(toy.plan_of(trio, engine=engine, **RECIPE, **QUICK), tmp_path)
    assert toy.what_remains(tmp_path) == by_recipe


def test_a_recipe_is_the_same_bits_after_a_stop_in_every_round(trio, by_recipe, tmp_path):
    """What momentum, means of models and schedules need is in records and states."""
    plan = toy.plan_of(trio, **RECIPE, **QUICK)
    Run(plan, tmp_path).prepare(False, lambda path: None)
    for job in plan.jobs:
        for number in (1, 2):
            toy.server(plan, tmp_path, job.method)._round(number)  # and another one from here
    toy.whole_run(plan, tmp_path, resume=True)
    assert toy.what_remains(tmp_path) == by_recipe
