"""At a site, in the process of a session: hands messages to the site client, and answers back.

The site client (`konsil.deploy.parties`) outlives sessions: what it is computing goes on
when a session ends, and the next session asks for it again.
"""

import os
import time
from collections.abc import Callable
from multiprocessing.connection import Client, Connection

from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from konsil.deploy.flare.job import ASK_TURN, CLIENT_SOCKET, ERROR, GOT_IT, GRANTED, PAYLOAD
from konsil.deploy.processes import end_with_parent

Stopped = Callable[[], bool]
SERVER = "server"  # as FLARE calls it among the sites
LARGE = 1_000_000  # bytes of an answer that has to wait for its turn
ANSWER = 10.0  # seconds for an answer beside the tasks
TURN_EVERY = 0.2
GLANCE = 0.5  # seconds between two looks at the signal to stop
ATTEMPTS = 2  # a site client that dies of the same question twice would die of it again
PATIENCE = 60.0  # seconds for the site client to come (back) up


class Relay(Executor):
    """One message at a time, as FLARE brings them."""

    def __init__(self) -> None:
        super().__init__()
        end_with_parent()

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """The site client's answer to one message."""
        payload = shareable.pop(PAYLOAD)
        self._server(GOT_IT, fl_ctx, wait=0.0)
        result = Shareable()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                result[PAYLOAD] = ask(task_name, payload, lambda: bool(abort_signal.triggered))
                break
            except Gone as error:
                self.logger.error(f"{task_name}, attempt {attempt}: {error}")
                result[ERROR] = str(error)
        while len(result.get(PAYLOAD, b"")) > LARGE and not abort_signal.triggered:
            if self._server(ASK_TURN, fl_ctx, ANSWER).get(GRANTED):
                break
            time.sleep(TURN_EVERY)
        return result

    def _server(self, topic: str, fl_ctx: FLContext, wait: float) -> Shareable:
        """A word beside the tasks; an empty answer if none is awaited, or none came."""
        answers = fl_ctx.get_engine().send_aux_request(
            [SERVER], topic, Shareable(), wait, fl_ctx, optional=True
        )
        answer: Shareable = (answers or {}).get(SERVER) or Shareable()
        return answer


class Gone(Exception):
    """The site client does not answer."""


def ask(topic: str, payload: bytes, stopped: Stopped) -> bytes:
    """Put one question to the site client, however long it takes."""
    with _connect(os.environ[CLIENT_SOCKET], stopped) as connection:
        try:
            connection.send_bytes(topic.encode())
            connection.send_bytes(str(len(payload)).encode())
            if refusal := _heard(connection, stopped):  # anything but `GO_ON`
                return refusal
            connection.send_bytes(payload)
            return _heard(connection, stopped)
        except (EOFError, ConnectionError):
            raise Gone("the site's process ended while it was at work; see its log") from None


def _heard(connection: Connection, stopped: Stopped) -> bytes:
    while not connection.poll(GLANCE):
        if stopped():
            raise Gone("the session was ended")
    return connection.recv_bytes()


def _connect(address: str, stopped: Stopped) -> Connection:
    end = time.monotonic() + PATIENCE
    while not stopped():
        try:
            return Client(address, family="AF_UNIX")
        except (FileNotFoundError, ConnectionError):
            if time.monotonic() > end:
                raise Gone("the site's process does not run") from None
            time.sleep(GLANCE)
    raise Gone("the session was ended")
