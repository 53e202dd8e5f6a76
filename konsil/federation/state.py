"""What a site keeps on its own disk between rounds."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from konsil.errors import StateError
from konsil.federation.messages import RoundReply
from konsil.federation.storage import read_parts, write_parts
from konsil.weights import Weights

NOTHING = RoundReply(measures={}, images=0, weights={})


@dataclass
class SiteState:
    """What a site keeps between rounds, and the reply it owes for the last one.

    The file is the only home of this state: it is read before a round and replaced after it, so
    that a killed run is simply one that reads it again.
    """

    round: int = 0  # the last round done
    private: dict[str, Weights] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    best: dict[str, Weights] = field(default_factory=dict)  # private roles, by validation
    last: dict[str, Weights] = field(default_factory=dict)
    scores: dict[str, list[float]] = field(default_factory=dict)  # those that could be the best
    reply: RoundReply = NOTHING
    upload: dict[str, Weights] = field(default_factory=dict)  # the parts of that reply

    SECTIONS = ("private", "best", "last", "upload")

    @classmethod
    def load(cls, path: Path, plan: str) -> SiteState:
        """The state on disk; a fresh one if there is none."""
        if not path.exists():
            return cls()
        header, parts = read_parts(path)
        if header.pop("plan") != plan:
            raise StateError(f"{path}: this site's state belongs to another plan; move it away")
        for section in cls.SECTIONS:
            header[section] = {name: parts[stored] for name, stored in header[section].items()}
        header["reply"] = RoundReply.read(header["reply"])
        return cls(**header)

    def save(self, path: Path, plan: str, durable: bool) -> None:
        """Replace the state on disk; weights that stand in several places are written once."""
        stored: dict[tuple[int, str], str] = {}
        parts: dict[str, Weights] = {}
        header: dict[str, Any] = {
            "plan": plan,
            "round": self.round,
            "notes": self.notes,
            "scores": self.scores,
            "reply": self.reply.model_dump(),
        }
        for section in self.SECTIONS:
            header[section] = {}
            for name, weights in getattr(self, section).items():
                same = weights.flat.data_ptr(), weights.layout.key  # empty ones all lie at 0
                key = stored.setdefault(same, f"{section}/{name}")
                parts[key] = weights
                header[section][name] = key
        write_parts(path, header, parts, durable)


class StateFiles:
    """A site's state on its disk: after the last round it has done, and as it was before that.

    A round counts at both sides or at neither. A reply that the server did not take (too late, or
    refused) leaves its site one round ahead: the next request says after which round the server
    goes on, and the site goes back there.
    """

    NAMES = ("state.safetensors", "before.safetensors")

    def __init__(self, folder: Path, plan: str) -> None:
        self.folder, self._plan = folder, plan
        self._now, self._before = (folder / name for name in self.NAMES)
        self._grown_from: Path | None = self._now  # what the next state is saved beside

    def now(self) -> SiteState:
        """The state after the last round; that of the round before if it could not be saved.

        A power cut may leave the newest file damaged, and the one before it whole.
        """
        if self._now.exists():
            try:
                return self.latest()
            except StateError:
                if not self._before_is_whole():
                    raise
        self._grown_from = self._before
        return SiteState.load(self._before, self._plan)

    def _before_is_whole(self) -> bool:
        with suppress(StateError):
            SiteState.load(self._before, self._plan)
            return self._before.exists()
        return False

    def latest(self) -> SiteState:
        """The state after the very last round, for those who ask what it left."""
        return SiteState.load(self._now, self._plan)

    def was_after(self, number: int) -> bool:
        """Whether the state before the last round is the one after that round."""
        return self._before.exists() and SiteState.load(self._before, self._plan).round == number

    def after(self, number: int, state: SiteState) -> SiteState:
        """What the state is or was after a round; a round that came since is dropped by `save`.

        Until then nothing on the disk changes: the next round may fail, or be asked for by
        somebody who should not.
        """
        if state.round > number == 0:
            state, self._grown_from = SiteState(), None
        elif state.round > number and self._before.exists():
            state, self._grown_from = SiteState.load(self._before, self._plan), self._before
        if state.round != number:
            raise StateError(
                f"{self.folder}: the state is that of round {state.round}, the server goes on "
                f"after round {number}: bring back this folder as it was, or begin a new run"
            )
        return state

    def save(self, state: SiteState, durable: bool) -> None:
        """One round further; the state before it is kept until the next."""
        if self._grown_from == self._now and self._now.exists():
            os.replace(self._now, self._before)
        state.save(self._now, self._plan, durable)
        if self._grown_from is None:
            self._before.unlink(missing_ok=True)  # of rounds that no longer count

    def forget(self) -> None:
        """There will be no further round."""
        for path in (self._now, self._before):
            path.unlink(missing_ok=True)
