"""The FLARE job of a run: what the server starts, and what a site lets itself be started with.

Light, like all that FLARE's own processes import: no torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from konsil.deploy.deployment import RUN_NAME
from konsil.files import write_text

CONTROLLER = "konsil.deploy.flare.controller.Session"
EXECUTOR = "konsil.deploy.flare.executor.Relay"
SERVER_APP, SITE_APP = "app_server", "app_site"
RUN_FILE = "config/konsil.json"  # what is to be run, in the server's app
MARK = "konsil-"  # how the names of our jobs begin
ARCHIVE = ("LOG", "konsil")  # how FLARE calls what a run leaves: a kind of log, of a party
PAYLOAD, ERROR, GRANTED = "payload", "error", "granted"  # all that is in a message
GOT_IT, ASK_TURN = "konsil.got-it", "konsil.turn"  # beside the tasks: see controller.py
FETCH_EVERY = 0.2  # seconds between two questions of a site for work
# Environment variables: where the server works, its plugins (JSON), and a site client's socket.
SERVER_FOLDER, PLUGINS, CLIENT_SOCKET = "KONSIL_SERVER", "KONSIL_PLUGINS", "KONSIL_CLIENT"


@dataclass(frozen=True)
class RunOrder:
    """What an admin submits."""

    run: str
    experiment: dict[str, Any]
    roster: list[str]

    @classmethod
    def read(cls, app: Path) -> RunOrder:
        """The order in a deployed app."""
        order = cls(**json.loads((app / RUN_FILE).read_text(encoding="utf-8")))
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
    server = {
        "format_version": 2,
        "server": {"task_request_interval": FETCH_EVERY},
        "workflows": [{"id": "session", "path": CONTROLLER, "args": {}}],
        "components": [],
    }
    files = {
        "meta.json": json.dumps(meta, indent=1),
        f"{SERVER_APP}/config/config_fed_server.json": json.dumps(server, indent=1),
        f"{SERVER_APP}/{RUN_FILE}": json.dumps(asdict(order)),
        **{f"{SITE_APP}/{name}": text for name, text in site_app().items()},
    }
    for name, text in files.items():
        write_text(folder / name, text)


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


def run_folder(run: str) -> Path:
    """Where the server keeps a run, through all of its sessions."""
    return Path(os.environ[SERVER_FOLDER]) / "runs" / run
