"""The FLARE job of a run: what the server starts, and what a site lets itself be started with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from konsil.deploy.deployment import RUN_NAME

CONTROLLER = "konsil.deploy.flare.controller.Session"
EXECUTOR = "konsil.deploy.flare.executor.Relay"
SERVER_APP, SITE_APP = "app_server", "app_site"
RUN_FILE = "konsil.json"  # what is to be run, beside the configuration of the server's app
MARK = "konsil-"  # how the names of our jobs begin
ARCHIVE = ("LOG", "konsil")  # how FLARE calls what a run leaves: a kind of log, of a party
PAYLOAD, ERROR, GRANTED = "payload", "error", "granted"  # all that is in a message
GOT_IT, ASK_TURN = "konsil.got-it", "konsil.turn"  # beside the tasks: see link.py
LARGE = 1_000_000  # bytes of an answer that has to wait for its turn
FETCH_EVERY = 0.2  # seconds between two questions of a site for work


@dataclass(frozen=True)
class RunOrder:
    """What an admin submits."""

    run: str
    experiment: dict[str, Any]
    roster: list[str]

    @classmethod
    def read(cls, app: Path) -> RunOrder:
        """The order in a deployed app."""
        order = cls(**json.loads((app / "config" / RUN_FILE).read_text(encoding="utf-8")))
        if not RUN_NAME.fullmatch(order.run):
            raise ValueError(f"{order.run!r}: not the name of a run")
        return order


def write_job(folder: Path, order: RunOrder) -> None:
    """A job's folder, as FLARE wants it."""
    meta = {
        "name": MARK + order.run,
        "resource_spec": {},
        "min_clients": 1,  # who must be there is decided by our scheduler
        "deploy_map": {SERVER_APP: ["server"], SITE_APP: list(order.roster)},
    }
    _write(folder / "meta.json", json.dumps(meta, indent=1))
    files = {SERVER_APP: server_app(order), SITE_APP: site_app()}
    for app, contents in files.items():
        for name, text in contents.items():
            _write(folder / app / name, text)


def server_app(order: RunOrder) -> dict[str, str]:
    """The server's part: the controller, and beside it what it is to run."""
    configuration = {
        "format_version": 2,
        "server": {"task_request_interval": FETCH_EVERY},
        "workflows": [{"id": "session", "path": CONTROLLER, "args": {}}],
        "components": [],
    }
    return {
        "config/config_fed_server.json": json.dumps(configuration, indent=1),
        f"config/{RUN_FILE}": json.dumps(asdict(order)),
    }


def site_app() -> dict[str, str]:
    """A site's part: always the same, so that a site can refuse any other."""
    configuration = {
        "format_version": 2,
        "executors": [{"tasks": ["*"], "executor": {"path": EXECUTOR, "args": {}}}],
        "components": [],
    }
    return {"config/config_fed_client.json": json.dumps(configuration, indent=1)}


def run_of(name: str) -> str | None:
    """Which run a job's name stands for; None for a job that is not ours."""
    run = name.removeprefix(MARK)
    return run if name.startswith(MARK) and RUN_NAME.fullmatch(run) else None


def roster_of(deploy_map: dict[str, Sequence[str]]) -> list[str]:
    """The sites of a job."""
    return list(deploy_map.get(SITE_APP, []))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
