"""What MONAI Label's clients ask (3D Slicer's extension among them), answered by the same service.

Each of those who can be asked is a model: `auto`, `global`, and every site. Of MONAI Label's other
parts (a store of images, training, active learning) there is none.
"""

from __future__ import annotations

import hmac
import json
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, File, Form, HTTPException, Query, Response, UploadFile

from konsil.serve.messages import Question, Reply
from konsil.serve.schema import Model, Problem
from konsil.serve.service import Service
from konsil.version import __version__

Output = Literal["image", "json", "all", "dicom_seg"]
PROBLEMS: dict[int | str, dict[str, Any]] = {
    code: {"model": Problem} for code in (400, 401, 403, 404, 408, 413, 422, 503)
}
RESULT: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "`params` as JSON and the mask as `image`, or one of them.",
        "content": {"multipart/form-data": {}, "application/json": {}, "*/*": {}},
    }
}


@dataclass
class Session:
    """A volume that a client has uploaded to ask about more than once."""

    home: Path
    folder: Path
    names: list[str]
    expires: float

    def to_json(self, name: str) -> dict[str, Any]:
        """As MONAI Label says it, but for where the files lie."""
        left = max(0, round(self.expires - time.monotonic()))
        return {"name": name, "image": self.names[0], "expiry": left}


class Sessions:
    """A few at a time: the oldest goes when there are too many, each after a while."""

    def __init__(self, service: Service) -> None:
        self.service, self._open = service, dict[str, Session]()

    async def add(self, files: list[UploadFile], expiry: int) -> str:
        """Keep what was uploaded; its name."""
        limits = self.service.limits
        seconds = min(expiry, limits.session_seconds) if expiry > 0 else limits.session_seconds
        home = self.service.new_folder()
        try:
            folder = await self.service.save(_without_paths(files), home)
        except BaseException:
            shutil.rmtree(home, ignore_errors=True)
            raise
        names = sorted(path.name for path in folder.iterdir())
        self._forget_old()
        while len(self._open) >= limits.sessions:
            self.remove(next(iter(self._open)))
        name = secrets.token_hex(16)
        self._open[name] = Session(home, folder, names, time.monotonic() + seconds)
        return name

    def get(self, name: str) -> Session:
        """An open session; HTTPException 404 if there is none of that name."""
        self._forget_old()
        if name not in self._open:
            raise HTTPException(404, "no such session: it has ended, or never was")
        return self._open[name]

    def remove(self, name: str) -> Session:
        """Forget a session and its files."""
        session = self.get(name) if name not in self._open else self._open[name]
        del self._open[name]
        shutil.rmtree(session.home, ignore_errors=True)
        return session

    def _forget_old(self) -> None:
        now = time.monotonic()
        for name in [name for name, one in self._open.items() if one.expires < now]:
            self.remove(name)


def monai_label(service: Service, token: str) -> APIRouter:
    """The endpoints, with sessions of their own."""
    router = APIRouter(tags=["MONAI Label"], responses=PROBLEMS)
    sessions = Sessions(service)
    model = service.pool.model
    _add_models(router, service, sessions, model)
    _add_sessions(router, sessions)
    _add_login(router, token)
    return router


def _add_models(router: APIRouter, service: Service, sessions: Sessions, model: Model) -> None:
    @router.get("/info/")
    def info() -> dict[str, Any]:
        """What there is: one model for each of those who can be asked."""
        return described(model)

    @router.post("/infer/{who}", responses=RESULT, response_class=Response)
    async def infer(
        who: str,
        image: Annotated[str, Query(description="Not used: there is no store of images.")] = "",
        session_id: Annotated[str, Query()] = "",
        output: Annotated[Output | None, Query()] = None,
        params: Annotated[str, Form(description="JSON; window, view, channel, site.")] = "{}",
        file: Annotated[UploadFile | None, File()] = None,
        label: Annotated[UploadFile | None, File(description="Not used.")] = None,
    ) -> Response:
        """Ask about an uploaded file, or about a session's volume."""
        if who not in model.ask:
            raise HTTPException(404, f"no such model; there are {', '.join(model.ask)}")
        question = _question(who, params)
        if session_id:
            reply = await service.ask_about(sessions.get(session_id).folder, question)
        elif file is not None:
            reply = await service.ask(_without_paths([file]), question)
        else:
            raise HTTPException(422, "neither a file nor a session")
        return _result(reply, output or "all", model)


def _add_sessions(router: APIRouter, sessions: Sessions) -> None:
    @router.put("/session/")
    async def create(
        files: Annotated[list[UploadFile], File()],
        uncompress: Annotated[bool, Query(description="Not used.")] = False,
        expiry: Annotated[int, Query(description="Seconds; 0: as long as may be.")] = 0,
    ) -> dict[str, Any]:
        """Upload a volume to ask about more than once."""
        name = await sessions.add(files, expiry)
        return {"session_id": name, "session_info": sessions.get(name).to_json(name)}

    @router.get("/session/{name}")
    def session(name: str) -> dict[str, Any]:
        """Whether a session is open, and how long."""
        return sessions.get(name).to_json(name)

    @router.delete("/session/{name}")
    def remove(name: str) -> dict[str, Any]:
        """Forget a session's volume now."""
        return sessions.remove(name).to_json(name)


def _add_login(router: APIRouter, token: str) -> None:
    @router.get("/auth/")
    def auth() -> dict[str, bool]:
        """Whether a token is needed."""
        return {"enabled": bool(token)}

    @router.post("/auth/token")
    def login(
        username: Annotated[str, Form()] = "", password: Annotated[str, Form()] = ""
    ) -> dict[str, str]:
        """The password is the server's token; any name will do."""
        if token and not hmac.compare_digest(password.encode(), token.encode()):
            raise HTTPException(401, "the password is the token that the server was started with")
        return {"access_token": token, "token_type": "bearer"}

    @router.get("/auth/token/valid")
    def valid() -> dict[str, str]:
        """Who gets here knows the token."""
        return {"name": "konsil"}


def described(model: Model) -> dict[str, Any]:
    """The super model in MONAI Label's words."""
    labels = {one.name: one.value for one in model.labels}
    kind = "segmentation" if model.targets == "masks" else "classification"
    about = {
        "auto": "The super model: each image goes to whom its selector names.",
        "global": "The model of all sites.",
    }
    models = {
        who: {
            "type": kind,
            "labels": labels,
            "dimension": 3,
            "description": about.get(who, f"The specialist of {who}."),
            "config": {},
        }
        for who in model.ask
    }
    empty: dict[str, Any] = {name: {} for name in ("trainers", "strategies", "scoring")}
    facts = {"name": f"Konsil: {model.name}", "version": __version__, "labels": list(labels)}
    more = {"description": f"A super model of {', '.join(model.sites)}", "models": models}
    return facts | more | empty | {"train_stats": {}, "datastore": {}}


def _question(who: str, params: str) -> Question:
    """Of MONAI Label's many parameters those that say how a file is read count."""
    try:
        said = json.loads(params or "{}")
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise HTTPException(422, "params: not a JSON object")
    known = {key: said[key] for key in ("window", "view", "channel") if said.get(key) is not None}
    site = said.get("site")
    if not isinstance(site, str | None):
        raise HTTPException(422, "params.site: not a name")
    return Question("", who, site, known, "answer", ("mask",))


def _result(reply: Reply, output: Output, model: Model) -> Response:
    """A worker's answer as MONAI Label's clients want it."""
    if reply.status != 200:
        return Response(reply.body, reply.status, media_type=reply.type)
    answer = json.loads(reply.body)
    mask = answer["mask"]
    labels = {one.name: one.value for one in model.labels}
    asked = [plane["asked"] for plane in answer["planes"]]
    params = {"label_names": labels, "asked": asked, "notes": answer["notes"]}
    if mask is None:
        params["prediction"] = [plane["label"] for plane in answer["planes"]]
    body = json.dumps(params)
    if mask is None or output == "json":
        return Response(body, media_type="application/json")
    import base64

    data = base64.b64decode(mask["base64"])
    if output in ("image", "dicom_seg"):
        shown = {"content-disposition": f'attachment; filename="{_ascii(mask["name"])}"'}
        return Response(data, headers=shown, media_type=mask["type"])
    return _both(body.encode(), data, _ascii(mask["name"]), mask["type"])


def _both(params: bytes, data: bytes, name: str, kind: str) -> Response:
    """Two parts, as a form that somebody sent would have them."""
    mark = secrets.token_hex(16).encode()
    head = b'--%s\r\nContent-Disposition: form-data; name="%s"%s\r\nContent-Type: %s\r\n\r\n'
    file = b'; filename="%s"' % name.encode()
    first = head % (mark, b"params", b"", b"application/json") + params + b"\r\n"
    second = head % (mark, b"image", file, kind.encode()) + data + b"\r\n"
    body = first + second + b"--%s--\r\n" % mark
    return Response(body, media_type=f"multipart/form-data; boundary={mark.decode()}")


def _without_paths(files: list[UploadFile]) -> list[UploadFile]:
    """MONAI Label's client names a file by its whole path on its own machine."""
    for file in files:
        file.filename = (file.filename or "").replace("\\", "/").rpartition("/")[2]
    return files


def _ascii(name: str) -> str:
    return name.encode("ascii", "replace").decode().replace('"', "_")
