"""A run's folder, looked at again and again: what is new in it is told to its story."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from konsil.observers.following import EVENTS, Following
from konsil.watch.places import PLAN
from konsil.watch.story import Story

OUTCOME = "outcome.json"  # of a deployed run: how its last session ended


class Watched:
    """A run and what is known of it; it need not have begun."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan: dict[str, Any] | None = None
        self.story = Story()
        self.outcome: dict[str, str] = {}
        self.heard = 0  # events, plans, outcomes: another number means that there is news
        self._log = Following(folder / EVENTS)

    @property
    def title(self) -> str:
        """The experiment's name; the folder's until there is a plan."""
        return str(self.plan["experiment"]["name"]) if self.plan else self.folder.resolve().name

    def look(self) -> Story:
        """Read what has been written since the last look."""
        if self.plan is None:
            self._begin_anew()
        before = self._log.replaced
        events = self._log.new()
        if self._log.replaced != before:  # another run lies in the folder now
            self._begin_anew()
        for event in events:
            self.story.tell(event)
        self.heard += len(events)
        outcome = _outcome(self.folder / OUTCOME)
        self.heard += outcome != self.outcome
        self.outcome = outcome
        return self.story

    def _begin_anew(self) -> None:
        plan = _plan(self.folder / PLAN)
        if plan is not None or self.heard:
            self.plan, self.story = plan, Story(plan)
            self.heard += 1


def _plan(path: Path) -> dict[str, Any] | None:
    """What plan.yaml says; None while it is not there, or says nothing that can be used."""
    try:
        facts = yaml.safe_load(path.read_text(encoding="utf-8"))
        facts["sites"], facts["experiment"]["name"]
        Story(facts)
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError, AttributeError):
        return None
    return dict(facts)


def _outcome(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {"state": str(found["state"]), "reason": str(found["reason"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # not a deployed run, or a session is at work
