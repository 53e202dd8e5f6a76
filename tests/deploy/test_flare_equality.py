"""Real processes, real certificates, NVIDIA FLARE between them: the numbers of `konsil run`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

import deployments

from konsil.config import Experiment, check_experiment
from konsil.data import open_federation
from konsil.deploy.local import deploy_local
from konsil.federation.plan import Plan
from konsil.testing import write_shades, write_squares
from konsil.watch.page import headline
from konsil.watch.places import find_place, find_runs
from konsil.watch.run import Watched

SITES = ["east", "north", "south"]
ROUNDS = 3
SECRETS = (b"Mueller", b"Anna", b"Klinikum")


COUNTS = {"east": 7, "north": 8, "south": 12}


@pytest.fixture(scope="module")
def patients(tmp_path_factory) -> Path:
    """Three sites whose every file is of a patient called Anna Mueller."""
    plain, folder = tmp_path_factory.mktemp("plain"), tmp_path_factory.mktemp("Klinikum")
    write_shades(plain, COUNTS)
    for path in plain.rglob("*.png"):
        copy = folder / path.relative_to(plain).with_name(f"Mueller_Anna_{path.name}")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    return folder


def tiny(folder: Path, methods: list[Any], task: str, network: dict[str, Any]) -> Experiment:
    raw = {
        "name": "tiny",
        "federation": {"folder": str(folder), "image_size": 32},
        "task": {"name": task},
        "network": network,
        "training": {"batch_size": 3},
        "methods": methods,
        "rounds": ROUNDS,
    }
    return check_experiment(raw, "test")


def test_the_same_bits_and_nothing_that_should_not_leave(patients, tmp_path):
    """One deployment, looked at from three sides: numbers, bytes on the wire, what leaves."""
    e = tiny(patients, ["fedsm"], "classification", {"name": "small"})
    said: list[str] = []
    deploy_local(e, tmp_path / "deployed", said.append)
    alone = deployments.in_process(e, tmp_path / "alone")
    deployments.same_files(tmp_path / "deployed", alone)
    assert (tmp_path / "deployed/fedsm/seed0/supermodel/model.json").exists()

    server = tmp_path / "deployed" / ".deploy" / "server"
    looked_at = [*deployments.contents(server), *without_sites(tmp_path / "deployed")]
    assert {"log.txt", "events.jsonl", "audit.jsonl", "plan.yaml"} <= {
        Path(name).name for name, _ in looked_at
    }
    leaks = [name for name, data in looked_at for s in SECRETS if s in data]
    assert leaks == []
    assert not [line for line in said for s in SECRETS if s.decode() in line]
    site_logs = b"".join(data for _, data in deployments.contents(server.parent / "south"))
    assert b"Klinikum" in site_logs  # the search finds what is there

    [run] = (server / "runs").iterdir()
    trails_agree(deployments.Submitted(run), server.parent)
    as_planned(deployments.Submitted(run), Plan.of(e, open_federation(e.federation, e.task)))
    watched(tmp_path / "deployed", run)


def watched(out: Path, run: Path) -> None:
    """`konsil watch` finds the run where its server keeps it, and what its log says."""
    assert find_runs(find_place(out)) == {run.name: run}
    found = Watched(run)
    story = found.look()
    assert headline(found) == "Finished: 1 of 1 jobs done"
    (job,) = story.jobs.values()
    assert {name: site.last for name, site in job.sites.items()} == dict.fromkeys(SITES, ROUNDS)
    assert {"global", "personal", "super"} <= job.averages().keys()


def without_sites(folder: Path) -> list[tuple[str, bytes]]:
    """What `fetch` brought to the admin."""
    return [(n, d) for n, d in deployments.contents(folder) if "/.deploy/" not in n]


def trails_agree(run: deployments.Submitted, base: Path) -> None:
    """What one side says that it sent is what the other side says that it received, by hash."""
    ours = {e["event"]: set() for e in run.trail}
    for event in run.trail:
        ours[event["event"]].add(event.get("sha256"))
    for event, other in (("sent", "received"), ("received", "sent")):
        theirs = {
            line.get("sha256")
            for site in SITES
            for line in deployments.read_trail(base / site / "state" / "audit.jsonl")
            if line["event"] == other
        }
        assert len(theirs) > ROUNDS * len(SITES)
        assert ours[event] - {None} == theirs - {None}


def as_planned(run: deployments.Submitted, plan: Plan) -> None:
    """Bytes on the wire against the plan's count: within 3 %, each way."""
    method = plan.method(plan.jobs[0])
    initial = method.initial_parts()
    down = 4 * sum(part.layout.size for part in method.sent(SITES[0], initial).values())
    up = 4 * sum(layout.size for layout in method.uploads(initial).values())
    for event, planned in (("sent", down), ("received", up)):
        sizes = [e["bytes"] for e in run.trail if e["event"] == event and e.get("kind") == "round"]
        assert len(sizes) == ROUNDS * len(SITES)
        assert planned < sum(sizes) / len(sizes) < 1.03 * planned
    done = [e for e in run.events if e["event"] == "site_done" and e["round"] <= ROUNDS]
    assert {(e["down"], e["up"]) for e in done} == {(down, up)}


@pytest.mark.slow
def test_the_same_bits_with_other_methods(tmp_path):
    write_squares(tmp_path / "squares", COUNTS)
    methods = ["fedavg", "fedsm-extra", {"name": "fedsoup", "start": 0.4}, "scaffold"]
    e = tiny(tmp_path / "squares", methods, "segmentation", {"name": "unet", "width": 2})
    deploy_local(e, tmp_path / "deployed", lambda _: None)
    deployments.same_files(tmp_path / "deployed", deployments.in_process(e, tmp_path / "alone"))


@pytest.mark.slow
def test_the_same_bits_with_every_setting_of_a_recipe(patients, tmp_path):
    fedsm = {"name": "fedsm", "lambda": "auto"}
    plain = tiny(patients, [fedsm, "fedsoup"], "classification", {"name": "small"})
    training = {
        "batch_size": 3,
        "schedule": "cosine",
        "augment": "strong",
        "keep": "ema",
        "clip": 1,
    }
    server = {"momentum": "auto", "weights": "equal", "fraction": 0.6, "compression": "int8"}
    raw = plain.model_dump(mode="json", exclude_unset=True)
    e = check_experiment(raw | {"training": training, "server": server}, "test")
    deploy_local(e, tmp_path / "deployed", lambda _: None)
    deployments.same_files(tmp_path / "deployed", deployments.in_process(e, tmp_path / "alone"))
