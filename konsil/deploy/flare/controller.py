"""At the server, in the process of a session: runs the coordinator over a link of FLARE's."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from konsil.deploy.coordinator import coordinate
from konsil.deploy.flare.job import PLUGINS, RunOrder, run_folder
from konsil.deploy.flare.link import FlareLink, SessionEnded, log
from konsil.deploy.processes import end_with_parent
from konsil.deploy.sessions import Outcome
from konsil.errors import KonsilError
from konsil.files import locked

events = logging.getLogger("konsil.events")
LOOK_EVERY = 0.1  # seconds between two looks at what has arrived


class Session(Controller):
    """One attempt to bring a run to its end."""

    def __init__(self) -> None:
        super().__init__(task_check_period=LOOK_EVERY)
        self._link: FlareLink | None = None
        end_with_parent()

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing before the flow."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing after the flow."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run until the run is over, fails, or this session is asked to end."""
        order = RunOrder.read(Path(fl_ctx.get_prop(FLContextKey.APP_ROOT)))
        folder = run_folder(order.run)
        plugins = [Path(path) for path in json.loads(os.environ[PLUGINS])]
        link = self._link = FlareLink(self, fl_ctx, abort_signal)
        with locked(folder):  # a killed server's session may need a moment to end
            try:
                coordinate(order.experiment, order.roster, link, folder, [log_event], plugins)
            except SessionEnded:
                log.info("this session was asked to end")
                logging.shutdown()
                os._exit(0)  # all is on disk; FLARE would take its time, and the next one waits
            except KonsilError as error:  # the coordinator has written the outcome
                log.error("%s", error)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}; see the server's log"
                Outcome("failed", reason).write(folder)
                log.exception("the coordinator failed")

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: Any
    ) -> None:
        """Too late, or twice: nobody waits for it."""
        log.warning("%s: an answer of %s that nobody waits for was dropped", task_name, client.name)
        if self._link is not None:
            self._link.drop(client.name, result)


def log_event(event: dict[str, Any]) -> None:
    """Where an admin's `status` and `logs` find it."""
    events.info(json.dumps(event))
