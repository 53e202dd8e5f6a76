"""How the server's processes know where they work. Light: FLARE's own processes import no torch."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from konsil.files import write_text

SETTINGS_FILE = "KONSIL_SERVER"  # the environment variable that names the settings' file
CLIENT_SOCKET = "KONSIL_CLIENT"  # ... and, at a site, the site client's socket


@dataclass(frozen=True)
class ServerSettings:
    """What `konsil server start` writes down."""

    folder: str
    plugins: list[str] = field(default_factory=list)

    def write(self, path: Path) -> dict[str, str]:
        """Write them down; the environment in which they are found."""
        write_text(path, json.dumps(asdict(self)))
        return {SETTINGS_FILE: str(path)}

    @classmethod
    def read(cls) -> ServerSettings:
        """The settings of the server that this process belongs to."""
        return cls(**json.loads(Path(os.environ[SETTINGS_FILE]).read_text(encoding="utf-8")))

    def run_folder(self, run: str) -> Path:
        """Where a run is, through all of its sessions."""
        return Path(self.folder) / "runs" / run
