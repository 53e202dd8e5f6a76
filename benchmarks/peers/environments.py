"""An environment for each peer, made by pip from package names; torch, MONAI and numpy as here."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

PEERS = {
    "pfl": "pfl[pytorch]==0.6.0",
    "flower": "flwr[simulation]==1.41.0",
    # bare: its own torch extras take the newest torch there is, and CUDA with it
    "flare": "nvflare==2.9.0",
}
COMMON = ("torch", "monai", "numpy")
READY = ".ready"


def constraints() -> list[str]:
    """The common packages in the versions that Konsil has here, whichever build of torch."""
    return [f"{name}=={version(name).split('+')[0]}" for name in COMMON]


def python_of(folder: Path, peer: str) -> Path:
    """The interpreter of a peer's environment."""
    return folder.resolve() / peer / "bin" / "python"


def is_ready(folder: Path, peer: str) -> bool:
    """Whether a peer's environment stands, with these very versions."""
    ready = folder / peer / READY
    return ready.exists() and ready.read_text(encoding="utf-8") == _wanted(peer)


def make(folder: Path, peer: str) -> None:
    """A peer's environment, unless it stands; pip is the ordinary one, configured as usual."""
    if is_ready(folder, peer):
        return
    python = python_of(folder, peer)
    subprocess.run([sys.executable, "-m", "venv", str(folder / peer)], check=True)
    pins = folder / peer / "constraints.txt"
    pins.write_text("\n".join(constraints()) + "\n", encoding="utf-8")
    install = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(pins)]
    subprocess.run([*install, *constraints(), PEERS[peer]], check=True)
    (folder / peer / READY).write_text(_wanted(peer), encoding="utf-8")


def _wanted(peer: str) -> str:
    return "\n".join([*constraints(), PEERS[peer]])
