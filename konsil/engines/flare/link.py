"""Bytes between the coordinator and the sites, as FLARE tasks: one a site, with its own bytes."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterator, Mapping
from queue import Empty, SimpleQueue

from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from konsil.deploy.link import Answer
from konsil.engines.flare.job import ERROR, PAYLOAD
from konsil.messages import Failure

GLANCE = 0.25  # seconds between two looks at the signal to stop

log = logging.getLogger("konsil.link")


class SessionEnded(Exception):
    """FLARE asks this session to stop; the run goes on in another, if it is to go on."""


class FlareLink:
    """A link for one session.

    A site that is away keeps its question standing: it may come back before the deadline. If its
    process for this session is gone, the keeper ends the session and another one asks again.
    """

    def __init__(
        self, controller: Controller, fl_ctx: FLContext, abort: Signal, present: set[str]
    ) -> None:
        self._controller, self._context = controller, fl_ctx
        self._abort, self._present = abort, present

    def send(
        self, topic: str, messages: Mapping[str, bytes], deadline: float | None = None
    ) -> Iterator[Answer]:
        """To each site its own bytes; answers in the order of arrival."""
        end = None if deadline is None else time.monotonic() + deadline
        arrivals: SimpleQueue[Answer] = SimpleQueue()
        questions = {
            site: Question(self._controller, self._context, topic, site, message, arrivals)
            for site, message in messages.items()
        }
        try:
            while questions:
                answer = self._next(arrivals, end)
                if answer is None:
                    break
                site = answer[0]
                questions.pop(site).close()
                log.info("%s: %s answered", topic, site)
                yield answer
            for site in questions:
                log.info("%s: no answer of %s before the deadline", topic, site)
                yield site, Failure(site, self._absence(site))
        finally:
            for question in questions.values():
                question.close()
            gc.collect()  # FLARE's tasks are cycles, and models hang on them

    def _next(self, arrivals: SimpleQueue[Answer], end: float | None) -> Answer | None:
        """The next to arrive; None when the time is over."""
        while True:
            if self._abort.triggered:
                raise SessionEnded
            left = GLANCE if end is None else min(GLANCE, end - time.monotonic())
            try:
                return arrivals.get(timeout=max(0.0, left))
            except Empty:
                if end is not None and time.monotonic() >= end:
                    return None

    def _absence(self, site: str) -> str:
        gone = site not in self._present or self._controller.get_client_disconnect_time(site)
        return "not connected" if gone else "no answer before the deadline"


class Question:
    """One site's task, asked again should FLARE give it up."""

    def __init__(
        self,
        controller: Controller,
        fl_ctx: FLContext,
        topic: str,
        site: str,
        message: bytes,
        arrivals: SimpleQueue[Answer],
    ) -> None:
        self._controller, self._context = controller, fl_ctx
        self._topic, self._site, self._arrivals = topic, site, arrivals
        self._message: bytes | None = message
        self._task = self._ask()

    def _ask(self) -> Task:
        data = Shareable()
        data[PAYLOAD] = self._message
        task = Task(
            name=self._topic,
            data=data,
            timeout=0,  # the deadline is the link's: it says who has failed
            result_received_cb=self._received,
            task_done_cb=self._done,
        )
        self._controller.send(task, self._context, targets=[self._site])
        return task

    def _received(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        """Called by FLARE, which holds its locks: take the bytes and be gone."""
        result = client_task.result
        code = result.get_return_code(ReturnCode.OK)
        answer: bytes | Failure
        if code == ReturnCode.OK and PAYLOAD in result:
            answer = result.pop(PAYLOAD)
        else:
            reason = result.get(ERROR) or f"its session failed ({code}); see the site's log"
            answer = Failure(self._site, str(reason))
        client_task.result = None
        self._arrivals.put((self._site, answer))

    def _done(self, task: Task, fl_ctx: FLContext) -> None:
        """A site that was taken for dead may be back: its question must still stand then."""
        if task.completion_status != TaskCompletionStatus.OK and self._message is not None:
            log.info("%s: asking %s again (%s)", self._topic, self._site, task.completion_status)
            self._task = self._ask()

    def close(self) -> None:
        """No answer is wanted any more."""
        self._message = None
        self._task.data.pop(PAYLOAD, None)
        self._controller.cancel_task(self._task)
