"""The page that follows runs: made here, part by part, from what lies in their folders."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from fastapi import FastAPI, HTTPException, Response
from fastapi.responses import FileResponse, HTMLResponse

from konsil import prepare, serve
from konsil.serve.guard import Guard
from konsil.serve.limits import Limits
from konsil.serve.server import Address, answer, bound
from konsil.watch.page import Part, parts, whole_page
from konsil.watch.places import find_runs
from konsil.watch.run import Watched

OWN = Path(__file__).parent / "page"
STYLE = Path(prepare.__file__).parent / "preview" / "templates"  # one look for all pages
STALE = 5.0  # seconds after which the time left is told anew, be there news or not
ICON = Path(serve.__file__).parent / "page"
FILES = {
    "page.css": (STYLE, "text/css"),
    "icon.svg": (ICON, "image/svg+xml"),
    "watch.css": (OWN, "text/css"),
    "watch.js": (OWN, "text/javascript"),
}


@dataclass(frozen=True)
class Shown:
    """What there is to be seen of a run, and which others there are."""

    run: str
    title: str
    runs: Mapping[str, str]  # name -> its state
    parts: Mapping[str, Part]

    def news(self, known: str) -> dict[str, Any]:
        """All but the parts that a browser has: `known` is name:mark,name:mark."""
        marks = dict(one.split(":", 1) for one in known.split(",") if ":" in one)
        changed = {n: vars(part) for n, part in self.parts.items() if marks.get(n) != part.mark}
        runs = [list(run) for run in self.runs.items()]  # in their order
        return {"run": self.run, "title": self.title, "runs": runs, "parts": changed}


class Watcher:
    """The runs of a place, those too that begin while it looks."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._runs: dict[str, Watched] = {}
        self._made: dict[Path, tuple[int, float, Mapping[str, Part]]] = {}
        self._lock = Lock()  # browsers ask in threads of their own

    def look(self) -> Mapping[str, Watched]:
        """Every run, as it is now."""
        with self._lock:
            found = find_runs(self.place)
            kept = {n: w for n, w in self._runs.items() if found.get(n) == w.folder}
            self._runs = {name: kept.get(name) or Watched(path) for name, path in found.items()}
            for watched in self._runs.values():
                watched.look()
            return dict(self._runs)

    def newest(self, runs: Mapping[str, Watched]) -> str:
        """The run that something has happened in last; of those without events the last name."""
        return max(runs, key=lambda name: (runs[name].story.last or 0.0, name), default="")

    def shown(self, run: str) -> Shown:
        """A run, or the newest; HTTPException if there is none of that name."""
        runs = self.look()
        if run and run not in runs:
            raise HTTPException(404, f"no run {run}; there are {', '.join(runs) or 'none yet'}")
        name = run or self.newest(runs)
        watched = runs.get(name) or Watched(self.place)  # nothing has begun yet
        states = {n: one.story.state for n, one in runs.items()}
        return Shown(name, watched.title, states, self._parts(watched))

    def _parts(self, watched: Watched) -> Mapping[str, Part]:
        """Made anew when there is news, and now and then because time goes on."""
        now = time.time()
        with self._lock:
            heard, at, made = self._made.get(watched.folder, (-1, 0.0, {}))
            if heard != watched.heard or now - at > STALE:
                heard, at, made = watched.heard, now, parts(watched, now)
                self._made[watched.folder] = heard, at, made
            return made


def create_app(watcher: Watcher, token: str = "", loopback: bool = True) -> Guard:
    """The application; around it the guard of `konsil serve`."""
    app = FastAPI(title="Konsil", openapi_url=None, docs_url=None, redoc_url=None)

    @app.get("/")
    def page(run: str = "") -> HTMLResponse:
        """The page: with a token, a browser fetches its parts with that, and none is in it."""
        if token:
            return HTMLResponse(whole_page({}, "konsil watch", {}, run))
        shown = watcher.shown(run)
        return HTMLResponse(whole_page(shown.parts, shown.title, shown.runs, shown.run))

    @app.get("/api/run")
    def news(run: str = "", known: str = "") -> dict[str, Any]:
        """What has changed of a run since a browser has asked last."""
        return watcher.shown(run).news(known)

    @app.get("/page/{name}")
    def page_file(name: str) -> Response:
        """What belongs to the page."""
        if name not in FILES:
            raise HTTPException(404, "no such page")
        folder, kind = FILES[name]
        return FileResponse(folder / name, media_type=kind)

    return Guard(app, Limits(), 0, token, loopback)


def watch(place: Path, address: Address, listening: Callable[[str], None]) -> None:
    """Show the runs of a place until somebody ends it; `listening` hears the page's address."""
    with bound(address) as listener:
        app = create_app(Watcher(place), address.token, address.loopback)
        answer(app, address, listener, listening)
