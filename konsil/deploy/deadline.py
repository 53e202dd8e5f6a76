"""A round's deadline through all sessions: the clock does not begin anew with each of them."""

from __future__ import annotations

import json
import time
from pathlib import Path

from konsil.files import write_text
from konsil.messages import Request

FILE = ".asked.json"
AT_LEAST = 0.5  # of a deadline: answers that are ready need the time to be sent again


class RoundClock:
    """When the question that is being asked was first asked, whichever session that was in."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    def left(self, request: Request, deadline: float | None) -> float | None:
        """Seconds until the deadline, of which a new session has half at least."""
        if deadline is None:
            return None
        passed = max(0.0, time.time() - self._first_asked(request))
        return max(deadline - passed, AT_LEAST * deadline)

    def _first_asked(self, request: Request) -> float:
        question = [request.job, request.kind, request.round]
        if self._path.exists():
            asked = json.loads(self._path.read_text(encoding="utf-8"))
            if asked["question"] == question:
                return float(asked["time"])
        now = time.time()
        write_text(self._path, json.dumps({"question": question, "time": now}))
        return now

    def forget(self) -> None:
        """The question is given up; asked again, it has the whole deadline."""
        self._path.unlink(missing_ok=True)
