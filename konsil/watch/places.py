"""Where runs are kept: in a folder itself, below it, or at the server of a deployment."""

from __future__ import annotations

from pathlib import Path

from konsil.errors import RunError
from konsil.observers.following import EVENTS

PLAN = "plan.yaml"
LOCAL_SERVER = Path(".deploy", "server")  # of `konsil deploy local`, below the run's folder
USUAL_SERVER = "konsil-server"  # of `konsil server start` without --folder
KITS = {"fed_server.json": "the server", "fed_client.json": "a site", "fed_admin.json": "an admin"}


def find_place(path: Path) -> Path:
    """The folder to look for runs in, for a run's folder, a server's, or the server's kit."""
    if not path.is_dir():
        raise RunError(f"{path}: no such folder; give that of a run, or of a server")
    for name, whose in KITS.items():
        if (path / "startup" / name).exists() and not (path / "local").exists():
            return _place_of_kit(path, whose)
    if not find_runs(path) and not _is_server(path):
        raise RunError(
            f"{path}: no run in it; give the folder of a run (runs/NAME), of `konsil unseen` or "
            "`tune`, or the --folder of `konsil server start`"
        )
    return path


def _place_of_kit(kit: Path, whose: str) -> Path:
    """Where the server of this kit keeps its runs, if that is the usual place."""
    if whose != "the server":
        raise RunError(
            f"{kit}: the start-up kit of {whose}; a run is followed where the server keeps it "
            "(an admin asks from elsewhere: konsil deploy status)"
        )
    startup = Path(USUAL_SERVER, "flare", "startup")
    ours = {file.resolve() for file in (kit / "startup").iterdir()}
    if startup.is_dir() and ours & {file.resolve() for file in startup.iterdir()}:
        return Path(USUAL_SERVER)
    raise RunError(
        f"{kit}: a kit holds no runs, and the server that was started with it keeps them "
        f"elsewhere than in {USUAL_SERVER}: give the --folder of its `konsil server start`"
    )


def _is_server(path: Path) -> bool:
    """Whether a server keeps its runs there, be there any or not."""
    return (path / "flare" / "startup").exists() or (path / LOCAL_SERVER.parent).exists()


def find_runs(place: Path) -> dict[str, Path]:
    """Name -> folder of every run that is there by now, in the order of their names."""
    deployed = _at_server(place / LOCAL_SERVER)  # what has been fetched from there may be older
    if deployed:
        return deployed
    if (place / EVENTS).exists():
        return {place.resolve().name: place}
    below = {child.name: child for child in sorted(place.iterdir()) if (child / PLAN).exists()}
    if not below and (place / PLAN).exists():
        return {place.resolve().name: place}  # it has not begun
    return below | _at_server(place)


def _at_server(server: Path) -> dict[str, Path]:
    return {folder.name: folder for folder in sorted((server / "runs").glob("*/"))}
