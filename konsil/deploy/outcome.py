"""outcome.json: how a session ended, for whoever decides whether there is another."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from konsil.files import write_text

FILE = "outcome.json"


@dataclass(frozen=True)
class Outcome:
    """What the coordinator leaves in the run's folder; nothing is left if it was killed."""

    state: Literal["", "finished", "waiting", "failed"] = ""
    reason: str = ""

    @classmethod
    def read(cls, folder: Path) -> Outcome:
        """How the last session in this folder ended."""
        try:
            return cls(**json.loads((folder / FILE).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return cls()

    def write(self, folder: Path) -> None:
        """Leave it in the folder, whatever happens next."""
        write_text(folder / FILE, json.dumps(asdict(self)), durable=True)


def forget(folder: Path) -> None:
    """A new session begins: nothing is known of its end."""
    (folder / FILE).unlink(missing_ok=True)
