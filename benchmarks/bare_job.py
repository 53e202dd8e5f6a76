"""A FLARE job that moves bytes and does nothing else, written as its documentation suggests."""

from __future__ import annotations

import json
import os
from pathlib import Path
from threading import Semaphore
from time import perf_counter
from typing import Any

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from konsil.deploy.processes import end_with_parent

PAYLOAD = "payload"
TASK = "round"
GLANCE = 0.5  # seconds between two looks at the signal to stop


class Rounds(Controller):
    """To every site its own bytes, as many rounds as wanted; writes the seconds of each."""

    def __init__(self, rounds: int, size: int, result: str, **usual: Any) -> None:
        super().__init__(**usual)
        end_with_parent()
        self._rounds, self._size, self._result = rounds, size, Path(result)
        self._arrived = Semaphore(0)

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing before the flow."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing after the flow."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Round by round; what came back is counted and let go."""
        sites = [client.name for client in fl_ctx.get_engine().get_clients()]
        payloads = {site: os.urandom(self._size) for site in sites}
        seconds = []
        for _ in range(self._rounds):
            began = perf_counter()
            for site in sites:
                self._ask(site, payloads[site], fl_ctx)
            for _ in sites:
                while not self._arrived.acquire(timeout=GLANCE):
                    if abort_signal.triggered:
                        return
            seconds.append(perf_counter() - began)
        self._result.write_text(json.dumps(seconds), encoding="utf-8")

    def _ask(self, site: str, payload: bytes, fl_ctx: FLContext) -> None:
        data = Shareable()
        data[PAYLOAD] = payload
        task = Task(name=TASK, data=data, result_received_cb=self._received)
        self.send(task, fl_ctx, targets=[site])

    def _received(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        result = client_task.result
        if result.get_return_code(ReturnCode.OK) == ReturnCode.OK:
            if len(result.pop(PAYLOAD)) != self._size:
                raise AssertionError("a site did not send back what it was sent")
            self._arrived.release()

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Nobody waits for it."""


class Echo(Executor):
    """Sends back what it received."""

    def __init__(self) -> None:
        super().__init__()
        end_with_parent()

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """The same bytes."""
        result = Shareable()
        result[PAYLOAD] = shareable.pop(PAYLOAD)
        return result
