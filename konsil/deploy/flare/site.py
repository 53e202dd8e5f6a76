"""In the FLARE client's process at a site: what it lets itself be asked, and what it says."""

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
        folder = Path(app_folder)
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file() and path.name not in SIGNATURES
        }
        if files == {name: text.encode() for name, text in site_app().items()}:
            return "", {}
        say("refused a job that is not Konsil's, or another version's")
        return "this site runs nothing but Konsil's sessions, of its own version", {}


class Reporter(FLComponent):
    """Says on the terminal whether the server is there."""

    def __init__(self) -> None:
        super().__init__()
        self._said = self._last = ""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Every heartbeat has two events if it is answered, one if not."""
        before, after = EventType.BEFORE_CLIENT_HEARTBEAT, EventType.AFTER_CLIENT_HEARTBEAT
        if event_type == after:
            self._say("connected")
        elif event_type == before == self._last:
            self._say("no connection to the server; trying again")
        if event_type in (before, after):
            self._last = event_type

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            say(text)
