"""In the FLARE client's process at a site: what it lets itself be asked, and what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nvflare.apis.app_validation import AppValidator
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.lighter.tool_consts import NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE

from konsil.deploy.flare.job import site_app
from konsil.deploy.processes import say

SIGNATURES = (NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE)
# What a session needs of all that a FLARE server may ask of a client. Not: to look into files, to
# restart or stop the site, to turn its log elsewhere, to tell where it keeps what.
ALLOWED = (
    *("DeployProcessor", "StartJobProcessor", "AbortAppProcessor", "AbortTaskProcessor"),
    *("CheckResourceProcessor", "CancelResourceProcessor", "DeleteRunNumberProcessor"),
    *("NotifyJobStatusProcessor", "ClientStatusProcessor"),
)


def allow_only_sessions() -> None:
    """Take from FLARE's client every command that a session does not need."""
    from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

    known = ClientRequestProcessors.request_processors
    ClientRequestProcessors.request_processors = [
        processor for processor in known if type(processor).__name__ in ALLOWED
    ]


class OnlyOurs(AppValidator):
    """Refuses every app but the one that this very version of Konsil would have written."""

    def validate(self, app_folder: str) -> tuple[str, dict[str, Any]]:
        """An error, or none."""
        folder = Path(app_folder)
        files = {
            path.relative_to(folder).as_posix(): path
            for path in folder.rglob("*")
            if path.is_file() and path.name not in SIGNATURES
        }
        ours = {name: json.loads(text) for name, text in site_app().items()}
        if set(files) == set(ours) and all(
            json.loads(path.read_text(encoding="utf-8")) == ours[name]
            for name, path in files.items()
        ):
            return "", {}
        say("refused a job that is not Konsil's, or another version's")
        return "this site runs nothing but Konsil's sessions, of its own version", {}


class Reporter(FLComponent):
    """Says on the terminal whether the server is there."""

    def __init__(self) -> None:
        super().__init__()
        self._connected: bool | None = None
        self._waiting = False

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Every heartbeat has two events if it is answered, one if not."""
        if event_type == EventType.BEFORE_CLIENT_HEARTBEAT:
            if self._waiting:
                self._is(False)
            self._waiting = True
        elif event_type == EventType.AFTER_CLIENT_HEARTBEAT:
            self._waiting = False
            self._is(True)

    def _is(self, connected: bool) -> None:
        if connected != self._connected:
            self._connected = connected
            say("connected" if connected else "no connection to the server; trying again")
