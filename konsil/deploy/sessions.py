"""What a session leaves for the next, and when one begins, ends, and is followed. No FLARE here."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from konsil.files import write_text

if TYPE_CHECKING:  # FLARE's own processes import no torch
    from konsil.federation.messages import Request

State = Literal["waiting", "running", "finished", "failed", "stopped"]
OVER: tuple[State, ...] = ("finished", "failed", "stopped")
PATIENCE = 20.0  # seconds that a run which goes on waits for a site that is away
PAUSE = (5.0, 600.0)  # seconds until a run that missed sites tries again: at first, and at most
STRIKES = 5  # sessions in a row that die without getting anywhere: then a person must look
STARTED = (40.0, 3600.0)  # seconds for a site to start its part of a session: at first, and at most
ABORTED, ABANDONED = "FINISHED:ABORTED", "FINISHED:ABANDONED"
AT_LEAST = 0.5  # of a deadline: answers that are ready need the time to be sent again
FULL_SESSIONS = 2  # that have so much; the round must go on some day
BRIEF = 60.0  # seconds for those after them


# --- at the coordinator, in the run's folder ------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """How a session ended: what the coordinator leaves; nothing is left if it was killed."""

    state: Literal["", "finished", "waiting", "failed"] = ""
    reason: str = ""

    FILE = "outcome.json"

    @classmethod
    def read(cls, folder: Path) -> Outcome:
        """How the last session in this folder ended."""
        try:
            return cls(**json.loads((folder / cls.FILE).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return cls()

    def write(self, folder: Path) -> None:
        """Leave it in the folder, whatever happens next."""
        write_text(folder / self.FILE, json.dumps(asdict(self)), durable=True)

    @classmethod
    def forget(cls, folder: Path) -> None:
        """A new session begins: nothing is known of its end."""
        (folder / cls.FILE).unlink(missing_ok=True)


class RoundClock:
    """A round's deadline through all sessions: the clock does not begin anew with each of them."""

    FILE = ".asked.json"

    def __init__(self, folder: Path) -> None:
        self._path = folder / self.FILE

    def left(self, request: Request, deadline: float | None) -> float | None:
        """Seconds until the deadline. A session has some of it even if all has passed."""
        if deadline is None:
            return None
        question: list[object] = [request.job, request.kind, request.round]
        first, sessions = self._asked(question)
        note = {"question": question, "time": first, "sessions": sessions + 1}
        write_text(self._path, json.dumps(note))
        share = AT_LEAST * deadline
        least = share if sessions < FULL_SESSIONS else min(share, BRIEF)
        return max(deadline - max(0.0, time.time() - first), least)

    def _asked(self, question: list[object]) -> tuple[float, int]:
        """Since when it is asked, and by how many sessions before this one."""
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


# --- at the supervisor, in the job of every session -----------------------------------------------


@dataclass(frozen=True)
class Note:
    """The supervisor's memory of a run, which it keeps in the job of every session."""

    state: State = "waiting"
    reason: str = ""
    session: int = 1
    not_before: float = 0.0  # time of day
    tries: int = 0  # sessions in a row that missed sites
    strikes: int = 0
    events: int = 0  # size of the run's event log when the session was made
    ended: str = ""  # why the supervisor ended it
    unable: int = 0  # sessions in a row that were ended for a site which could not take part

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> Note:
        """The note in a job's meta data."""
        return cls(**meta.get("konsil", {}))

    def as_meta(self) -> dict[str, Any]:
        """The note, for a job's meta data."""
        return {"konsil": asdict(self)}


def may_begin(
    roster: Sequence[str],
    connected: Mapping[str, float],  # since when
    note: Note,
    submitted: float,
    enrolled: bool,
    now: float,
) -> bool:
    """Whether a waiting session may begin. The first one needs every site: they agree on a plan."""
    present = [site for site in roster if site in connected]
    if not present:
        return False
    news = any(connected[site] > submitted for site in present)
    if now < note.not_before and not news:
        return False
    return len(present) == len(roster) or (enrolled and now > submitted + PATIENCE)


def ended_for(site: str, came_back: bool, note: Note) -> Note:
    """The note of a session that is ended, so that the next one has this site in it."""
    if came_back:
        return replace(note, ended=f"{site} is back", unable=0)
    reason = f"{site} is connected and did not start; see its log"
    return replace(note, ended=reason, unable=note.unable + 1)


def time_to_start(note: Note) -> float:
    """Seconds before a session is ended for a site that has not started its part.

    Longer and longer, so that the others' rounds go on in between.
    """
    return min(STARTED[0] * 2**note.unable, STARTED[1])


def after(status: str, note: Note, outcome: Outcome, events: int, now: float) -> Note:
    """What follows a session that is over: the note of the next, or one that is over."""
    if outcome.state == "finished" or outcome.state == "failed":
        return replace(note, state=outcome.state, reason=outcome.reason)
    if status == ABORTED and not note.ended:
        return replace(note, state="stopped", reason="stopped by an admin")
    reason = note.ended or outcome.reason
    another = Note(session=note.session + 1, events=events, reason=reason, unable=note.unable)
    if outcome.state == "waiting":
        pause = min(PAUSE[0] * 2**note.tries, PAUSE[1])
        return replace(another, tries=note.tries + 1, not_before=now + pause)
    if note.ended or status == ABANDONED:
        return another
    strikes = 1 if events > note.events else note.strikes + 1
    if strikes >= STRIKES:
        reason = f"{strikes} sessions in a row ended without a word; see the server's log"
        return replace(note, state="failed", reason=reason)
    reason = "its process ended without a word"
    return replace(another, strikes=strikes, reason=reason, not_before=now + PAUSE[0])
