"""The server: a page, an API that says what it can (OpenAPI), and MONAI Label's endpoints."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, File, Form, HTTPException, Query, Request, Response, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from starlette.exceptions import HTTPException as AnyHTTPException

from konsil.serve.guard import Guard
from konsil.serve.messages import Question, Reply
from konsil.serve.monailabel import monai_label
from konsil.serve.pool import Pool
from konsil.serve.schema import Answer, Health, Models, Problem
from konsil.serve.service import Service
from konsil.version import __version__

PAGE = Path(__file__).parent / "page"
PAGE_FILES = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
Include = Literal["mask", "images", "overlays"]
WHY: dict[int, str] = {
    400: "not a question",
    401: "a token is needed",
    403: "a page of another server",
    408: "it arrived too slowly",
    413: "too large",
    422: "it cannot be answered",
    503: "too busy, or it took too long",
}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    code: {"model": Problem, "description": why} for code, why in WHY.items()
}
FOR_ALL: dict[int | str, dict[str, Any]] = {code: PROBLEMS[code] for code in (400, 401, 403)}
MASK: dict[int | str, dict[str, Any]] = {
    200: {"description": "The mask.", "content": {"application/octet-stream": {}}}
}

Files = Annotated[
    list[UploadFile], File(description="One picture or volume, or the files of a DICOM series.")
]
Ask = Annotated[str, Form(description="auto (the super model chooses), global, or a site.")]
Site = Annotated[str | None, Form(description="Read as this site's images, where sites differ.")]
Window = Annotated[
    str | None, Form(description="LOW,HIGH or LOW%,HIGH% or full, if not as in training.")
]
View = Annotated[str | None, Form(description="axial, coronal or sagittal, if not as in training.")]
Channel = Annotated[int | None, Form(ge=0, description="Which volume of a file of several.")]


def create_app(pool: Pool, token: str = "", loopback: bool = True) -> Guard:
    """The application around running workers; the guard around the application."""
    service = Service(pool)
    app = FastAPI(
        title="Konsil",
        description="Ask a super model about an image. Nothing that is sent is kept.",
        version=__version__,
        openapi_url="/api/openapi.json",
        docs_url=None,  # those pages fetch their scripts from elsewhere
        redoc_url=None,
        lifespan=_lifespan(service),
    )
    app.add_exception_handler(AnyHTTPException, _problem)
    app.add_exception_handler(RequestValidationError, _not_understood)
    app.add_exception_handler(Exception, _broken)
    guard = Guard(app, pool.setup.limits, pool.setup.workers, token, loopback)
    _add_page(app)
    _add_api(app, service, guard)
    app.include_router(monai_label(service, token))
    if token:
        _say_token(app)
    return guard


def _add_page(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(PAGE / "index.html", media_type="text/html")

    @app.get("/page/{name}", include_in_schema=False)
    def page_file(name: str) -> FileResponse:
        if name not in PAGE_FILES:
            raise HTTPException(404, "no such page")
        return FileResponse(PAGE / name, media_type=PAGE_FILES[name])


def _add_api(app: FastAPI, service: Service, guard: Guard) -> None:
    @app.get("/api/health", responses=FOR_ALL, tags=["konsil"])
    def health() -> Health:
        """Whether the server works, and how much it has to do."""
        alive = len(service.pool.processes())
        room = max(0, guard.room - guard.questions)
        facts = {"version": __version__, "workers": alive, "questions": guard.questions}
        return Health(status="ok" if alive else "starting", room=room, **facts)

    @app.get("/api/models", responses=FOR_ALL, tags=["konsil"])
    def models() -> Models:
        """The super model that is served: what it draws, who can be asked, how good it was."""
        return Models(models=[service.pool.model])

    @app.post("/api/predict", responses=PROBLEMS, response_model=Answer, tags=["konsil"])
    async def predict(
        files: Files,
        ask: Ask = "auto",
        site: Site = None,
        window: Window = None,
        view: View = None,
        channel: Channel = None,
        include: Annotated[
            list[Include], Query(description="What the answer has beside its numbers.")
        ] = [],  # noqa: B006  FastAPI copies it
    ) -> Response:
        """Ask about an image: who answered, how surely, and what they say."""
        reading = _said(window=window, view=view, channel=channel)
        question = Question("", ask, site, reading, "answer", tuple(include))
        return _sent(await service.ask(files, question))

    @app.post("/api/mask", responses=PROBLEMS | MASK, response_class=Response, tags=["konsil"])
    async def mask(
        files: Files,
        ask: Ask = "auto",
        site: Site = None,
        window: Window = None,
        view: View = None,
        channel: Channel = None,
    ) -> Response:
        """Ask about an image, and get the mask's file as `konsil predict` writes it."""
        reading = _said(window=window, view=view, channel=channel)
        return _sent(await service.ask(files, Question("", ask, site, reading, "mask")))


def _said(**words: Any) -> dict[str, Any]:
    return {key: value for key, value in words.items() if value not in (None, "")}


def _sent(reply: Reply) -> Response:
    headers = {"retry-after": "2"} if reply.status == 503 else {}
    if reply.name:
        plain = reply.name.encode("ascii", "replace").decode().replace('"', "_")
        headers["content-disposition"] = f'attachment; filename="{plain}"'
    return Response(reply.body, reply.status, headers, reply.type)


def _say_token(app: FastAPI) -> None:
    """The API's description says that a token is needed."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        schema = plain()
        schemes = schema.setdefault("components", {}).setdefault("securitySchemes", {})
        schemes["token"] = {"type": "http", "scheme": "bearer"}
        schema["security"] = [{"token": []}]
        return schema

    app.openapi = described  # type: ignore[method-assign]  # FastAPI's way to change it


def _lifespan(service: Service) -> Any:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    return lifespan


async def _problem(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, AnyHTTPException)
    return JSONResponse({"detail": str(error.detail)}, error.status_code, error.headers)


async def _not_understood(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    said = [f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}" for one in error.errors()]
    return JSONResponse({"detail": "; ".join(said)[:500]}, 422)


async def _broken(request: Request, error: Exception) -> JSONResponse:
    """What should not happen: the server's log has the traceback, a client has not."""
    return JSONResponse({"detail": "the server could not answer; its log says why"}, 500)
