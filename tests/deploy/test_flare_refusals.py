"""What a site's policy refuses, over the real engine: readable at the site and for the admin."""

from __future__ import annotations

import pytest

pytest.importorskip("nvflare")

import deployments
from deployments import Deployed, wait_for

from konsil.config import check_experiment
from konsil.deploy.admin import connect
from konsil.deploy.agreement import without_places
from konsil.deploy.deployment import ADMIN, SERVER
from konsil.federation.plan import Plan
from konsil.federation.runner import read_plan
from konsil.testing import write_shades

pytestmark = pytest.mark.slow
SITES = ["north", "south"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shades")
    write_shades(folder, {"north": 8, "south": 12})

    def of(method: str, rounds: int = 2):
        raw = {
            "federation": {"folder": str(folder), "image_size": 32},
            "task": {"name": "classification"},
            "network": {"name": "small"},
            "methods": [method],
            "rounds": rounds,
        }
        return check_experiment(raw, "test")

    return of


@pytest.fixture(scope="module")
def deployed(tiny, tmp_path_factory):
    """South lets no method in but FedAvg, and no message above 20 KB."""
    policy = tmp_path_factory.mktemp("policy") / "policy.yaml"
    policy.write_text("methods: [fedavg]\nmax_payload: 20 KB\n")
    with Deployed(
        tiny("fedavg"), tmp_path_factory.mktemp("deployed"), policies={"south": policy}
    ) as made:
        yield made


@pytest.mark.parametrize(
    ("method", "topic", "why"),
    [
        ("fedsm", "greet", "method fedsm: this site's policy allows fedavg"),
        ("fedavg", "request", "bytes: max_payload of this site's policy is 20 KB"),
    ],
)
def test_refused_in_words_on_both_sides(deployed: Deployed, tiny, method, topic, why):
    run = deployed.submit(tiny(method), f"refused-{method}")
    wait_for(lambda: run.outcome.state == "waiting" or why in str(deployed.said), "a refusal")
    wait_for(lambda: run.outcome.state == "waiting", "the end of the session")
    assert why in run.outcome.reason
    assert "south: refused: " in run.outcome.reason
    assert "north: " not in run.outcome.reason
    assert [s for s in deployed.said if s.startswith(f"south: refused ({topic})") and why in s]
    trail = deployments.read_trail(deployed.state("south") / "audit.jsonl")
    assert [e for e in trail if e["event"] == "refused" and why in e["reason"]]
    with connect(deployed.kits[ADMIN]) as admin:
        wait_for(lambda: why in admin.status(run.folder.name, events=False).reason, "the reason")
        admin.stop(run.folder.name)
        assert admin.status(run.folder.name, events=False).state == "stopped"


def test_a_changed_plan_is_refused_in_words_on_both_sides(tiny, tmp_path):
    """Changed on the server's disk in mid-run: by itself, and together with its hash."""
    many = tiny("fedavg", rounds=200)
    with Deployed(many, tmp_path / "deployed") as deployed:
        run = deployed.submit(many, "changed")
        wait_for(lambda: run.has("round_done", round=1), "round 1")
        deployed.kill(SERVER)
        path = run.folder / "plan.yaml"
        path.write_text(path.read_text().replace("rounds: 200", "rounds: 300"))
        deployed.start(SERVER)
        why = "changed/plan.yaml was changed"
        wait_for(lambda: why in run.outcome.reason, "the server's refusal")
        assert run.outcome.state == "failed"
        wait_for(lambda: any(why in said for said in deployed.said), "a word at the server")

        old = read_plan(run.folder)
        new = Plan.from_json(old).hash
        path.write_text(path.read_text().replace(old["hash"], new))
        with connect(deployed.kits[ADMIN]) as admin:
            wait_for(lambda: admin.status("changed", events=False).state == "failed", "its end")
            assert why in admin.status("changed", events=False).reason
            admin.submit(without_places(many), deployed.sites, "changed")
            why = f"this site agreed to plan {old['hash']}, now it is shown plan {new}"
            wait_for(lambda: why in run.outcome.reason, "the sites' refusal")
            assert [site for site in deployed.sites if f"{site}: refused: " in run.outcome.reason]
            wait_for(
                lambda: why in admin.status("changed", events=False).reason, "the admin's view"
            )
        for site in deployed.sites:
            assert [
                s for s in deployed.said if s.startswith(f"{site}: refused (agree)") and why in s
            ]
