"""The endpoints: who may ask, what a browser is sent, and what it is not sent twice."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from konsil.watch.server import Watcher, create_app
from tests.cli.test_experiments import called
from tests.watch.test_story import PLAN, START, a_round, log_of

LOCAL = "http://127.0.0.1:8009"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(PLAN))
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in START))
    return tmp_path


class Client:
    """Asks an application, without a server between."""

    def __init__(self, app: Any, url: str) -> None:
        self.app, self.url = app, url

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def asked() -> httpx.Response:
            way = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=way, base_url=self.url) as line:
                return await line.request(method, path, **options)

        return asyncio.run(asked())

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)


def client(place: Path, token: str = "", loopback: bool = True, url: str = LOCAL) -> Client:
    return Client(create_app(Watcher(place), token, loopback), url)


def test_a_browser_is_sent_what_it_does_not_have(run: Path):
    browser = client(run)
    first = browser.get("/api/run").json()
    assert set(first["parts"]) == {"head", "sites", "curves", "jobs", "troubles"}
    known = ",".join(f"{name}:{part['mark']}" for name, part in first["parts"].items())
    assert browser.get("/api/run", params={"known": known}).json()["parts"] == {}
    with open(run / "events.jsonl", "a") as log:
        log.writelines(json.dumps(event) + "\n" for event in a_round(1, 0, 10))
    news = browser.get("/api/run", params={"known": known}).json()["parts"]
    assert "round 1 of 4" in news["head"]["html"]
    assert "polyline" in news["curves"]["html"]
    assert "troubles" not in news


def test_the_page_has_all_parts_in_it_and_nothing_from_elsewhere(run: Path):
    answer = client(run).get("/")
    assert "Running: job 1 of 2" in answer.text
    assert "http" not in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    for name in ("page.css", "watch.css", "watch.js", "icon.svg"):
        assert client(run).get(f"/page/{name}").status_code == 200
        assert f"page/{name}" in answer.text
    assert client(run).get("/page/..%2Fserver.py").status_code == 404


def test_another_name_of_this_machine_is_refused(run: Path):
    """DNS rebinding: a page of somebody else's that has itself resolve to this machine."""
    for path in ("/", "/api/run", "/page/watch.js"):
        assert client(run, url="http://rebound.example").get(path).status_code == 400
    origin = {"origin": "http://elsewhere.example"}
    assert client(run).get("/api/run", headers=origin).status_code == 403


def test_it_only_reads(run: Path):
    before = {path: path.read_bytes() for path in run.iterdir()}
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert client(run).request(method, "/api/run").status_code in (405, 503)
    assert {path: path.read_bytes() for path in run.iterdir()} == before


def test_where_others_can_come_the_page_is_empty_without_the_token(run: Path):
    browser = client(run, "secret", loopback=False, url="http://machine:8009")
    page = browser.get("/")
    assert page.status_code == 200
    assert "tiny" not in page.text
    assert browser.get("/api/run").status_code == 401
    known = {"authorization": "Bearer secret"}
    assert "Running" in browser.get("/api/run", headers=known).json()["parts"]["head"]["html"]


def test_runs_below_a_folder(tmp_path: Path):
    for number in (2, 1):
        folder = tmp_path / f"without-{number}"
        folder.mkdir()
        (folder / "plan.yaml").write_text(yaml.safe_dump(PLAN))
        (folder / "events.jsonl").write_text(log_of(f"2026-01-0{number}T00:00:00+00:00"))
    browser = client(tmp_path)
    news = browser.get("/api/run").json()
    assert news["run"] == "without-2"  # something has happened there last
    assert news["runs"] == [["without-1", "stopped"], ["without-2", "stopped"]]
    assert browser.get("/api/run", params={"run": "without-1"}).json()["run"] == "without-1"
    unknown = browser.get("/api/run", params={"run": "without-3"})
    assert unknown.status_code == 404
    assert "without-1, without-2" in unknown.json()["detail"]


def test_how_a_session_ended_is_told_at_once(run: Path):
    browser = client(run)
    assert "Running" in browser.get("/api/run").json()["parts"]["head"]["html"]
    (run / "outcome.json").write_text(json.dumps({"state": "waiting", "reason": "south is away"}))
    head = browser.get("/api/run").json()["parts"]["head"]["html"]
    assert "Waiting for sites" in head
    assert "south is away" in head


def test_once_for_a_terminal(run: Path):
    done = called("watch", run, "--once")
    assert done.code == 0
    assert "Running: job 1 of 2, fedavg/seed0, round 0 of 4" in done.out
    assert "fedavg/seed0: training" in done.out


def test_what_is_no_run_is_refused_in_words(tmp_path: Path):
    done = called("watch", tmp_path / "nowhere")
    assert done.code == 1
    assert "nowhere: no such folder" in done.err
