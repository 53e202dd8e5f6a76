"""Messages over NVIDIA FLARE: a real server, real sites, mutual TLS, and an echo at both ends."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from konsil.deploy.admin import Admin, Status, connect
from konsil.deploy.deployment import ADMIN, SERVER
from konsil.deploy.flare.job import RunOrder, run_of, site_app, write_job
from konsil.deploy.flare.site import OnlyOurs
from konsil.deploy.kit import Kit
from konsil.deploy.local import Local
from konsil.deploy.processes import alone_in
from konsil.errors import ConfigError, RunError

ECHO = Path(__file__).parent / "echo"
SITES = ["north", "south", "west"]
LARGE = 20_000_000
PATIENCE = 240.0  # seconds; only a hung run needs them


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """One deployment for all tests, in a folder with a space, which FLARE alone cannot stand."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ECHO))
        base = tmp_path_factory.mktemp("a folder")
        with Local(SITES, base, {}, {}, said.append) as deployment:
            yield deployment


said: list[str] = []


@pytest.fixture
def admin(local):
    with connect(local.kits[ADMIN]) as connection:
        yield connection


def finish(admin: Admin, run: str) -> Status:
    end = time.monotonic() + PATIENCE
    while not (status := admin.status(run)).over:
        assert time.monotonic() < end, "\n".join(said[-30:])
        time.sleep(0.5)
    return status


def test_each_site_gets_its_own_bytes_and_late_ones_are_not_waited_for(local, admin, tmp_path):
    steps = [
        {"topic": "echo", "sizes": {"north": 0, "south": 1, "west": 70_000}},
        {"topic": "echo", "sizes": dict.fromkeys(SITES, LARGE)},
        {"topic": "wait-1"},  # south answers a second later
        {"topic": "wait-4", "deadline": 1.5},
        {"topic": "echo", "sizes": {"west": 10, "north": 10}},  # not everybody is asked
        {"topic": "die"},  # south's process ends of it, and of the same question again
        {"topic": "echo"},
    ]
    run = admin.submit({"name": "echo", "steps": steps}, SITES)
    status = finish(admin, run)
    assert (status.state, status.session, status.roster) == ("finished", 1, SITES)
    assert [event["number"] for event in status.events] == list(range(len(steps)))

    admin.fetch(run, tmp_path)
    found = [json.loads((tmp_path / f"{n}.json").read_text()) for n in range(len(steps))]
    answers = [dict(step["answers"]) for step in found]
    for number in (0, 1, 2, 4, 6):
        assert answers[number] == found[number]["expected"]
    assert len(set(found[1]["expected"].values())) == len(SITES)  # different bytes indeed
    assert found[2]["answers"][-1][0] == "south"  # in the order of arrival
    assert answers[3]["south"] == "no answer before the deadline"
    assert answers[3]["north"] == found[3]["expected"]["north"]
    assert found[3]["seconds"] >= 1.5
    assert "ended while it was at work" in answers[5]["south"]
    assert answers[5]["west"] == found[5]["expected"]["west"]
    assert any("the site client ended (7)" in line for line in said)


def test_what_a_person_stopped_stays_stopped_until_it_is_submitted_again(local, admin, tmp_path):
    steps = [{"topic": "echo", "once": True}, {"topic": "echo", "sizes": {"nobody": 1}}]
    run = admin.submit({"name": "long", "steps": steps}, SITES, "long")
    with pytest.raises(RunError, match="at work already"):
        admin.submit({"name": "long", "steps": steps}, SITES, "long")
    with pytest.raises(RunError, match="fetched when it is over"):
        admin.fetch(run, tmp_path / "early")
    folder = local.base / SERVER / "runs" / run
    end = time.monotonic() + PATIENCE
    while not (folder / "0.json").exists():
        assert time.monotonic() < end, "\n".join(said[-30:])
        time.sleep(0.2)
    admin.stop(run)
    assert admin.status(run).state == "stopped"
    admin.fetch(run, tmp_path / "stopped")
    assert [path.name for path in (tmp_path / "stopped").iterdir()] == ["0.json"]

    again = [steps[0], {"fail": "nothing to be done"}]  # the first step is known to be done
    admin.submit({"name": "long", "steps": again}, SITES, "long")
    status = finish(admin, run)
    assert (status.state, status.reason) == ("failed", "nothing to be done")
    assert any("failed nothing to be done" in line for line in said)


def test_a_job_of_somebody_else_does_not_run(admin, tmp_path):
    """Signed by the admin, sent to the sites that there are, and still not begun."""
    write_job(tmp_path / "job", RunOrder("foreign", {}, SITES))
    meta = json.loads((tmp_path / "job/meta.json").read_text())
    (tmp_path / "job/meta.json").write_text(json.dumps(meta | {"name": "foreign"}))
    job = admin._session.submit_job(str(tmp_path / "job"))
    time.sleep(3)
    assert admin._session.get_job_status(job) == "SUBMITTED"
    assert "foreign" not in admin.runs()
    admin._session.abort_job(job)


def test_an_admin_looks_neither_into_a_site_nor_into_the_server(admin):
    """FLARE's server passes on what is for a site; a site of ours does not even know it."""
    to_a_site = ("ls north", "cat north local/resources.json", "shutdown client north")
    for command in to_a_site:
        assert "invalid_request" in str(admin._session.do_command(command)), command
    for command in ("ls server", "shutdown server", "report_env", "sys_info server"):
        assert "not authorized" in str(admin._session.do_command(command)), command


def test_a_second_server_does_not_start_beside_the_first(local):
    with (
        pytest.raises(RunError, match="a server runs here already"),
        alone_in(local.base / SERVER, "a server", patience=0.5),
    ):
        pass


def test_a_site_runs_nothing_but_the_session_of_its_own_version(tmp_path):
    app = tmp_path / "app"
    for name, text in site_app().items():
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text(text)
    assert OnlyOurs().validate(str(app)) == ("", {})
    (app / "custom").mkdir()
    (app / "custom" / "code.py").write_text("")
    assert "nothing but Konsil's sessions" in OnlyOurs().validate(str(app))[0]
    (app / "custom" / "code.py").unlink()
    assert OnlyOurs().validate(str(app))[0] == ""
    changed = json.loads(next(iter(site_app().values())))
    changed["executors"][0]["executor"]["path"] = "os.system"
    (app / "config/config_fed_client.json").write_text(json.dumps(changed))
    assert OnlyOurs().validate(str(app))[0] != ""


def test_the_names_of_runs_stay_in_their_folder():
    assert run_of("konsil-a.b-1") == "a.b-1"
    assert [run_of(n) for n in ("other", "konsil-", "konsil-../x", "konsil-.x")] == [None] * 4


def test_a_kit_of_another_party_is_named(local):
    with pytest.raises(ConfigError, match="not the start-up kit of the server"):
        Kit.read(local.kits["north"], "server")
