"""A round's deadline through all sessions: the clock does not begin anew with each of them."""

from __future__ import annotations

import json
import time
from pathlib import Path

from konsil.federation.messages import Request
from konsil.files import write_text

FILE = ".asked.json"
AT_LEAST = 0.5  # of a deadline: answers that are ready need the time to be sent again
FULL_SESSIONS = 2  # that have so much; the round must go on some day
BRIEF = 60.0  # seconds for those after them


class RoundClock:
    """When the question that is being asked was first asked, whichever session that was in."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    def left(self, request: Request, deadline: float | None) -> float | None:
        """Seconds until the deadline. A session has some of it even if all has passed."""
        if deadline is None:
            return None
        first, sessions = self._asked(request)
        share = AT_LEAST * deadline
        least = share if sessions <= FULL_SESSIONS else min(share, BRIEF)
        return max(deadline - max(0.0, time.time() - first), least)

    def _asked(self, request: Request) -> tuple[float, int]:
        """Since when, and by how many sessions: this one is noted."""
        question: list[object] = [request.job, request.kind, request.round]
        first, sessions = self._before(question)
        note = {"question": question, "time": first, "sessions": sessions + 1}
        write_text(self._path, json.dumps(note))
        return first, sessions + 1

    def _before(self, question: list[object]) -> tuple[float, int]:
        try:
            asked = json.loads(self._path.read_text(encoding="utf-8"))
            if asked["question"] == question:
                return float(asked["time"]), int(asked["sessions"])
        except (OSError, ValueError, KeyError, TypeError):
            pass  # not there, or cut short by a power cut: then the clock begins now
        return time.time(), 0

    def forget(self) -> None:
        """The question is given up; asked again, it has the whole deadline."""
        self._path.unlink(missing_ok=True)
