"""At the server, in the process of a session: runs the coordinator over a link of FLARE's.

Bytes travel as FLARE tasks: one a site, with its own bytes.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.fuel.utils.buffer_list import ConsumableBufferList

from konsil.deploy.coordinator import coordinate
from konsil.deploy.flare.job import (
    ASK_TURN,
    ERROR,
    GOT_IT,
    GRANTED,
    PAYLOAD,
    PLUGINS,
    RunOrder,
    run_folder,
)
from konsil.deploy.processes import end_with_parent
from konsil.deploy.sessions import Outcome
from konsil.errors import KonsilError
from konsil.federation.messages import Failure
from konsil.files import locked

if TYPE_CHECKING:  # tests put another coordinator in its place
    from konsil.deploy.coordinator import Answer, BytesFor

LOOK_EVERY = 0.1  # seconds between two looks at what has arrived
GLANCE = 0.25  # seconds between two looks at the signal to stop
AT_ONCE = 3  # large messages on their way at the same time, each way
LEASE = 30.0  # seconds; a slower message is not waited for, the next one sets out beside it
COME = 2.0  # seconds for a site to come for its message; one that is busy holds up nobody

# FLARE 2.9 writes every message out for a debug line that nobody reads: 0.4 s for 31 MB.
ConsumableBufferList.__repr__ = lambda self: f"{len(self)} buffers"

log, events = logging.getLogger("konsil.link"), logging.getLogger("konsil.events")


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
        observers = [lambda event: events.info(json.dumps(event))]  # for an admin's `status`
        link = self._link = FlareLink(self, fl_ctx, abort_signal)
        with locked(folder):  # a killed server's session may need a moment to end
            try:
                coordinate(order.experiment, order.roster, link, folder, observers, plugins)
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


class SessionEnded(Exception):
    """FLARE asks this session to stop; the run goes on in another, if it is to go on."""


class Turns:
    """Few messages are on their way at once, so that memory does not grow with the sites."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._until: dict[str, float] = {}

    def take(self, site: str, lease: float, sets_out: bool = False) -> bool:
        """Whether it is this site's turn now; if its message sets out, it is."""
        with self._lock:
            now = time.monotonic()
            self._until = {s: end for s, end in self._until.items() if end > now}
            its_turn = sets_out or site in self._until or len(self._until) < AT_ONCE
            if its_turn:
                self._until[site] = now + lease
            return its_turn

    def give_back(self, site: str) -> None:
        """Its message has arrived."""
        with self._lock:
            self._until.pop(site, None)


class FlareLink:
    """A link (see coordinator.py) for one session.

    A site that is away keeps its question standing: it may come back before the deadline. If its
    process for this session is gone, the supervisor ends the session and another one asks again.
    """

    def __init__(self, controller: Controller, fl_ctx: FLContext, abort: Signal) -> None:
        self.controller, self.context, self._abort = controller, fl_ctx, abort
        self.down, self._up = Turns(), Turns()
        self.arrivals: SimpleQueue[Answer | None] = SimpleQueue()
        self._late: SimpleQueue[tuple[str, bytes]] = SimpleQueue()
        self._topics: set[str] = set()
        engine = fl_ctx.get_engine()
        self._present = {client.name for client in engine.get_clients()}
        engine.register_aux_message_handler(GOT_IT, self._got)
        engine.register_aux_message_handler(ASK_TURN, self._asked)

    def send(
        self, topic: str, sites: Sequence[str], message: BytesFor, deadline: float | None = None
    ) -> Iterator[Answer]:
        """A message is made when its site comes for it, and again if it has to be sent again."""
        end = None if deadline is None else time.monotonic() + deadline
        self.arrivals = SimpleQueue()
        self._keep_collections_short(topic)
        unsent = sorted(sites, key=lambda site: not self.here(site))  # who is away, last
        questions: dict[str, Question] = {}
        try:
            while unsent or questions:
                while unsent and self.down.take(unsent[0], COME):
                    site = unsent.pop(0)
                    questions[site] = Question(self, topic, site, message)
                answer = self._next(end)
                if answer is not None and answer[0] in questions:
                    site = answer[0]
                    questions.pop(site).close()
                    log.info("%s: %s answered", topic, site)
                    yield answer
                    del answer
                    self._up.give_back(site)
                    free_memory()
                elif end is not None and time.monotonic() >= end:
                    break
            for site in [*questions, *unsent]:
                log.info("%s: no answer of %s before the deadline", topic, site)
                here = self.here(site)
                reason = "no answer before the deadline" if here else "not connected"
                yield site, Failure(site, reason)
        finally:
            for site, question in questions.items():
                question.close()
                self.down.give_back(site)

    def _keep_collections_short(self, topic: str) -> None:
        """What is there now stays (libraries, above all): collections need not look at it."""
        if topic not in self._topics:  # more has been imported since the last one
            self._topics.add(topic)
            gc.collect()
            gc.freeze()

    def drop(self, site: str, result: Shareable) -> None:
        """An answer that nobody waits for."""
        if PAYLOAD in result:
            self._late.put((site, result.pop(PAYLOAD)))

    def too_late(self) -> list[tuple[str, bytes]]:
        """What has arrived since nobody waited for it any more."""
        return [self._late.get() for _ in range(self._late.qsize())]

    def _next(self, end: float | None) -> Answer | None:
        """The next to arrive; None when there may be something else to do."""
        if self._abort.triggered:
            raise SessionEnded
        left = GLANCE if end is None else min(GLANCE, end - time.monotonic())
        try:
            return self.arrivals.get(timeout=max(0.0, left))
        except Empty:
            return None

    def _got(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """A site has all of its message: the next one may set out."""
        free_memory()
        self.down.give_back(fl_ctx.get_peer_context().get_identity_name())
        self.arrivals.put(None)
        return Shareable()

    def _asked(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """A site has a large answer, and asks whether it may send it now."""
        reply = Shareable()
        site = fl_ctx.get_peer_context().get_identity_name()
        reply[GRANTED] = self._up.take(site, LEASE)
        return reply

    def here(self, site: str) -> bool:
        """Whether a site is connected now, and was when this session began."""
        left = self.controller.get_client_disconnect_time
        return site in self._present and not left(site)


@dataclass
class Question:
    """One site's task, asked again should FLARE give it up."""

    link: FlareLink
    topic: str
    site: str
    message: BytesFor | None  # none when no answer is wanted any more

    def __post_init__(self) -> None:
        self._arrivals = self.link.arrivals  # no later question gets this one's answer
        self._task = self._ask()

    def _ask(self) -> Task:
        task = Task(
            name=self.topic,
            data=Shareable(),
            timeout=0,  # the deadline is the link's: it says who has failed
            before_task_sent_cb=self._fetched,
            result_received_cb=self._received,
            task_done_cb=self._done,
        )
        self.link.controller.send(task, self.link.context, targets=[self.site])
        return task

    def _fetched(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        """The site comes for its message. FLARE sends a copy: the task itself need not keep it."""
        data = Shareable()
        if self.message is not None:
            self.link.down.take(self.site, LEASE, sets_out=True)
            data[PAYLOAD] = self.message(self.site)
        client_task.task.data = data

    def _received(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        """Called by FLARE, which holds its locks: take the bytes and be gone."""
        result = client_task.result
        code = result.get_return_code(ReturnCode.OK)
        answer: bytes | Failure
        if code == ReturnCode.OK and PAYLOAD in result:
            answer = result.pop(PAYLOAD)
        else:
            reason = result.get(ERROR) or f"its session failed ({code}); see the site's log"
            answer = Failure(self.site, str(reason))
        client_task.result = None
        self._arrivals.put((self.site, answer))

    def _done(self, task: Task, fl_ctx: FLContext) -> None:
        """A site that was taken for dead may be back: its question must still stand then."""
        if task.completion_status != TaskCompletionStatus.OK and self.message is not None:
            log.info("%s: asking %s again (%s)", self.topic, self.site, task.completion_status)
            self._task = self._ask()

    def close(self) -> None:
        """No answer is wanted any more."""
        self.message = None
        self._task.data = Shareable()
        self.link.controller.cancel_task(self._task)


def free_memory() -> None:
    """Give back what messages held: FLARE's are cycles, and a heap of chunks has many holes."""
    gc.collect()
    with suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
